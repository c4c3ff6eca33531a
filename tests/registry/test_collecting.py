"""Collecting garbage: what can be reached stays, whatever refers to it; what cannot goes, after a grace time."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from handmade import blobs_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compatkit.contracts.manifest import Manifest, Parent, edges, to_bytes
from compatkit.errors import EnvironmentFailure, IntegrityError, UsageError
from compatkit.foundation.codec import dumps, loads
from compatkit.registry import disk as durable
from compatkit.registry.document_graph import names
from compatkit.registry.maintenance import ages
from compatkit.registry.maintenance.gc import CollectionPlan, CollectionResult, plan
from compatkit.registry.maintenance.operations import Maintenance
from compatkit.registry.store import Store

Publish = Callable[..., Any]
DAY = 24 * 3600.0
NOW = timedelta(0)


def files(store: Store, *folders: str) -> dict[str, int]:
    """Return the sizes of all files below some folders of a registry, by path."""
    return {
        path.relative_to(store.root).as_posix(): path.lstat().st_size
        for folder in folders or ("",)
        for path in (store.root / folder).rglob("*")
        if path.is_symlink() or path.is_file()
    }


def age(store: Store, *paths: Path, seconds: float = 2 * DAY) -> None:
    """Let files, or all that are there, be as old as that."""
    then = time.time() - seconds
    for path in paths or [entry for entry in store.root.rglob("*") if not entry.is_symlink()]:
        os.utime(path, (then, then))


def at_once(store: Store, **options: Any) -> CollectionPlan:
    return plan(store, grace=NOW, alone=True, **options)


def store_gc(store: Store, **options: Any) -> CollectionPlan:
    return Maintenance(store).gc(**options)


def digests(plan_or_files: Any) -> set[str]:
    return {plan_or_file.digest for plan_or_file in plan_or_files}


def weights(store: Store, manifest: Manifest) -> bytes:
    """Return a component's payload, verified."""
    return store.read_blob(manifest.payload.file.blob, verify="always")


def unused(store: Store, data: bytes = b"nothing refers to this") -> str:
    return store.put_blob(data).blob


def test_what_is_in_use_is_not_planned_for(store: Store, publish: Publish):
    publish(store, "a/b")
    publish(store, "a/b", 1)
    age(store)
    result = plan(store)
    assert result.is_empty and result.referenced == 4  # two manifests, two payloads
    assert sum(result.bytes.values()) == 0


def test_what_nothing_refers_to_is_planned_for_when_it_is_old(store: Store, publish: Publish):
    publish(store, "a")
    old, young = unused(store, b"old"), unused(store, b"young!")
    age(store, store.objects.path(old), seconds=1.01 * DAY)
    age(store, store.objects.path(young), seconds=0.99 * DAY)
    result = plan(store)
    assert digests(result.blobs) == {old} and digests(result.young) == {young}
    assert result.bytes["blobs"] == 3 and result.bytes["young"] == 6
    assert DAY < result.blobs[0].age < 1.1 * DAY
    assert digests(plan(store, grace=timedelta(hours=20)).blobs) == {old, young}


def test_a_plan_is_json(store: Store):
    lonely = unused(store)
    document = json.loads(json.dumps(at_once(store).to_json()))
    assert document["totals"]["blobs"] == {"files": 1, "bytes": 22} and document["kept"] == 0
    assert document["blobs"][0]["digest"] == lonely and document["blobs"][0]["path"].startswith(
        "blobs/sha256/"
    )


def test_planning_changes_nothing(store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch):
    publish(store, "a")
    unused(store)

    def refuse(operation: str, path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(durable, "step", refuse)
    assert at_once(store).bytes["blobs"] == 22


def test_a_blob_goes_to_the_trash_and_is_deleted_a_grace_time_later(store: Store, publish: Publish):
    publish(store, "a")
    lonely = unused(store)
    age(store)
    before = files(store)
    done = plan(store).apply()
    assert (done.moved, done.moved_bytes, done.freed) == ([lonely], 22, 0)
    (away,) = files(store, "trash")
    assert away.startswith(f"trash/{lonely[7:]}-{os.getpid()}-") and len(files(store)) == len(before)

    later = plan(store)
    assert later.is_empty and digests(later.waiting) == {lonely}
    age(store, store.root / away, seconds=1.01 * DAY)
    done = plan(store).apply()
    assert (done.deleted, done.freed) == (1, 22)
    assert sum(before.values()) - sum(files(store).values()) == 22
    assert store.manifest("a")


def test_without_a_grace_one_call_leaves_nothing(store: Store, publish: Publish):
    publish(store, "a")
    before = files(store)
    unused(store)
    assert at_once(store).apply().freed == 22
    assert files(store) == before


def test_numbers_are_those_of_what_happened(store: Store, publish: Publish):
    publish(store, "a")
    lonely = [unused(store, bytes(size)) for size in (10, 200, 3000)]
    before = sum(files(store).values())
    result = at_once(store)
    reports: list[tuple[int, int, str]] = []
    done = result.apply(lambda *report: reports.append(report))
    assert sorted(done.moved) == sorted(lonely) and done.deleted == 3
    assert done.freed == 3210 == before - sum(files(store).values())
    assert {what for _, _, what in reports} == {"following references", "moving to trash", "deleting"}
    assert json.loads(json.dumps(done.to_json()))["freed"] == 3210


def test_a_file_with_another_name_elsewhere_frees_nothing(store: Store, tmp_path: Path):
    os.link(store.objects.path(unused(store)), tmp_path / "another name")
    done = at_once(store).apply()
    assert (done.deleted, done.freed) == (1, 0) and (tmp_path / "another name").exists()


# --- what refers to bytes


def by_extension(store: Store, publish: Publish, text: str) -> None:
    publish(store, "user", 7, extensions={"tool": {"deep": [{"blob": text, "bytes": 22}]}})


def by_training(store: Store, publish: Publish, text: str) -> None:
    publish(store, "user", 7, training={"run": {"blob": text, "bytes": 22}})


def by_a_record_that_a_manifest_refers_to(store: Store, publish: Publish, text: str) -> None:
    run = store.put_blob(dumps({"log": {"blob": text}}))
    publish(store, "user", 7, training={"run": {"blob": run.blob, "bytes": run.bytes}})


def by_a_withdrawn_version(store: Store, publish: Publish, text: str) -> None:
    publish(store, "user", 7, training={"run": {"blob": text, "bytes": 22}})
    store.withdraw("user", "1.0.0", "wrong")


def by_a_grandparent(store: Store, publish: Publish, text: str) -> None:
    first = publish(store, "first", 7, extensions={"tool": {"blob": text}})
    second = publish(store, "second", 8, parents=(Parent("trained_with", first.digest),))
    publish(store, "third", 9, parents=(Parent("trained_with", second.digest),))
    for name in ("first", "second"):  # the names are lost; the parents' own edges remain
        (store.root / f"refs/{name}/@versions/1.0.0").unlink()


def by_the_text_of_a_manifest(store: Store, publish: Publish, text: str) -> None:
    publish(store, "user", 7, extensions={"tool": {"see": text}})


def by_a_manifest_with_escapes(store: Store, publish: Publish, item: str) -> None:
    text = dumps({"blob": item}).decode().replace(item, "".join(f"\\u{ord(letter):04x}" for letter in item))
    manifest = store.put_blob(text.encode())
    path = store.root / "refs/user/@versions/1.0.0"
    path.parent.mkdir(parents=True)
    path.write_text(f"{manifest.blob}\n")


def by_a_manifest_with_blanks(store: Store, publish: Publish, text: str) -> None:
    manifest = store.put_blob(json.dumps({"edges": [{"blob": text}]}, indent=1).encode())
    path = store.root / "refs/user/@versions/1.0.0"
    path.parent.mkdir(parents=True)
    path.write_text(f"{manifest.blob}\n")


def by_evidence(store: Store, publish: Publish, text: str) -> None:
    path = store.root / "evidence" / ("1" * 64) / ("2" * 64) / ("3" * 64) / text[7:]
    path.parent.mkdir(parents=True)
    path.write_text(f"{text}\n")


def by_a_result(store: Store, publish: Publish, text: str) -> None:
    store.evidence.record(
        "value:sha256:" + "1" * 64, "value:sha256:" + "2" * 64, {}, dumps({"component": text})
    )


def by_a_damaged_file_in_quarantine(store: Store, publish: Publish, text: str) -> None:
    (store.root / "quarantine" / "1.0.0-1-2").write_text(f"{text}\n\n\n")


def by_the_draft_of_a_reference(store: Store, publish: Publish, text: str) -> None:
    (store.root / "tmp" / f"{os.getpid()}-{'a' * 16}").write_text(f"{text}\n")


REFERRING = [
    by_extension,
    by_training,
    by_a_record_that_a_manifest_refers_to,
    by_a_withdrawn_version,
    by_a_grandparent,
    by_the_text_of_a_manifest,
    by_a_manifest_with_escapes,
    by_a_manifest_with_blanks,
    by_evidence,
    by_a_result,
    by_a_damaged_file_in_quarantine,
    by_the_draft_of_a_reference,
]


@pytest.mark.parametrize("refer", REFERRING, ids=lambda item: item.__name__)
def test_what_is_referred_to_stays(store: Store, publish: Publish, refer: Callable[..., None]):
    first, other = unused(store), unused(store, b"another")
    refer(store, publish, first)
    assert digests(at_once(store).blobs) == {other}
    at_once(store).apply()
    assert store.read_blob(first) == b"nothing refers to this"
    assert store.objects.size(other) is None


def test_files_of_other_programs_stay_and_keep_nothing(store: Store):
    first = unused(store)
    for place in ("NOTES", "refs/notes.txt", "policies/list", f"signatures/{first[7:]}.sig", "attic/list"):
        (store.root / place).parent.mkdir(exist_ok=True)
        (store.root / place).write_text(f"keep {first}")
    at_once(store).apply()
    assert store.objects.size(first) is None and len(files(store, "attic", "policies", "signatures")) == 3


@pytest.mark.parametrize("refer", [by_evidence, by_a_damaged_file_in_quarantine, by_the_draft_of_a_reference])
def test_what_a_component_that_is_referred_to_needs_stays_too(
    store: Store, publish: Publish, refer: Callable[..., None]
):
    reference = publish(store, "a", 3)
    before = files(store, "blobs")
    (store.root / "refs/a/@versions/1.0.0").unlink()
    assert len(at_once(store).blobs) == 2
    refer(store, publish, reference.digest)
    at_once(store).apply()
    assert files(store, "blobs").keys() >= before.keys()


def test_a_digest_is_kept_whatever_kind_of_bytes_it_is_said_to_be(store: Store, publish: Publish):
    """One document calls the bytes weights, another a log: neither can have them deleted for both."""
    reference = publish(store, "a")
    payload = store.manifest(reference).payload.file
    publish(store, "b", 5, training={"log": {"blob": payload.blob, "bytes": payload.bytes}})
    store.withdraw("a", "1.0.0", "bad")
    age(store)
    assert plan(store, withdrawn=True).is_empty


def test_draft_content_that_is_no_reference_keeps_nothing(store: Store):
    lonely = unused(store)
    (store.root / "tmp" / f"{os.getpid()}-{'a' * 16}").write_bytes(dumps({"component": lonely}))
    assert digests(at_once(store).blobs) == {lonely}


KEYS = st.one_of(st.sampled_from(["blob", "component", "bytes", 'a"blob":']), st.text(max_size=3))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.one_of(
            st.sampled_from([f"sha256:{letter * 64}" for letter in "abc"]),
            st.text(max_size=6),
            st.floats(allow_nan=False, allow_infinity=False),
            st.none(),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(KEYS, inner, max_size=3),
        ),
        max_leaves=12,
    ),
    st.booleans(),
)
def test_the_quick_search_finds_every_edge_that_strict_reading_finds(value: Any, canonical: bool):
    try:
        data = dumps({"value": value}) if canonical else json.dumps({"value": value}).encode()
        expected = set(edges(loads(data, what="document")))
    except Exception:
        return  # twins of keys in composed form: no document
    result = dict(names(data, "sha256:" + "0" * 64, component=True))
    assert expected <= result.keys()
    assert expected <= {entry for entry, how in result.items() if how in ("blob", "component", "payload")}


def test_weights_are_told_from_other_bytes(store: Store, publish: Publish):
    reference = publish(store, "a", parents=(Parent("trained_with", publish(store, "p", 4).digest),))
    manifest = store.manifest(reference)
    result = dict(names(to_bytes(manifest), str(reference.digest), component=True))
    assert result[manifest.payload.file.blob] == "payload"
    assert result[manifest.parents[0].component] == "component"


# --- against a slow and obvious reference


def reachable(store: Store) -> set[str]:
    """Follow every edge of every version, re-reading as often as needed."""
    ahead = [store.references.digest(name, version) for name, version in store.references.each()]
    saved: set[str] = set()
    while ahead:
        pop = ahead.pop()
        if pop is not None and pop not in saved:
            saved.add(pop)
            data = store.read_blob(pop)
            if data.startswith(b"{"):
                ahead.extend(edges(loads(data, what="document")))
    return saved


KINDS = st.sampled_from(["publish", "child", "blob", "withdraw", "forget", "collect"])
ACTIONS = st.lists(
    st.tuples(KINDS, st.integers(0, 5)),
    max_size=14,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTIONS)
def test_after_any_history_exactly_what_can_be_reached_is_kept(
    tmp_path_factory: pytest.TempPathFactory, publish: Publish, actions: list[tuple[str, int]]
):
    store = Store.init(tmp_path_factory.mktemp("history") / "parts")
    for action, value in actions:
        made = list(store.references.each())
        if action == "publish":
            publish(store, f"n{value % 3}", value)
        elif action == "child" and made:
            name, version = made[value % len(made)]
            parent = Parent("trained_with", str(store.references.digest(name, version)))
            publish(store, f"child{value % 2}", value, parents=(parent,))
        elif action == "blob":
            unused(store, bytes([value]))
        elif action == "withdraw" and made:
            store.withdraw(*made[value % len(made)], "why not")
        elif action == "forget" and made:
            name, version = made[value % len(made)]
            (store.root / f"refs/{name}/@versions/{version}").unlink()
        elif action == "collect":
            at_once(store).apply()
    store = Store.open(store.root)
    saved = reachable(store)
    result = at_once(store)
    assert saved | digests(result.blobs) == set(blobs_in(store)) and not saved & digests(result.blobs)
    result.apply()
    assert set(blobs_in(store)) == saved
    assert at_once(store).is_empty


# --- withdrawn versions


def test_weights_of_a_version_withdrawn_long_ago_may_go_but_not_its_manifest(store: Store, publish: Publish):
    reference = publish(store, "a")
    publish(store, "a", 1)
    payload = store.manifest(reference).payload.file.blob
    store.withdraw("a", "1.0.0", "bad")
    age(store)
    assert plan(store).is_empty
    result = plan(store, withdrawn=True)
    assert digests(result.withdrawn) == {payload} and not result.blobs
    result.apply()
    assert store.objects.size(payload) is None
    assert store.manifest(f"a@{reference.digest}") and store.tombstone("a", "1.0.0")
    assert weights(store, store.manifest("a"))
    age(store)
    assert plan(store, withdrawn=True).apply().deleted == 1
    assert plan(store, withdrawn=True).is_empty and plan(store).is_empty


def test_weights_withdrawn_a_moment_ago_stay(store: Store, publish: Publish):
    publish(store, "a")
    age(store)
    store.withdraw("a", "1.0.0", "bad")
    assert plan(store, withdrawn=True).is_empty


@pytest.mark.parametrize("user", ["child", "another name", "a younger version"])
def test_withdrawn_weights_that_something_alive_uses_stay(store: Store, publish: Publish, user: str):
    reference = publish(store, "a")
    if user == "child":
        publish(store, "b", 1, parents=(Parent("initialised_from", reference.digest),))
    else:
        publish(store, "b" if user == "another name" else "a", training={"seed": 1})
    store.withdraw("a", "1.0.0", "bad")
    age(store)
    assert plan(store, withdrawn=True).is_empty


def test_withdrawn_weights_that_only_withdrawn_versions_use_go(store: Store, publish: Publish):
    reference = publish(store, "a")
    publish(store, "b", 1, parents=(Parent("initialised_from", reference.digest),))
    for name in ("a", "b"):
        store.withdraw(name, "1.0.0", "bad")
    age(store)
    result = plan(store, withdrawn=True)
    assert len(result.withdrawn) == 2
    result.apply()
    assert set(blobs_in(store)) == {
        str(store.references.digest(name, version)) for name, version in store.references.each()
    }


# --- damage


def version_file(store: Store) -> Path:
    return store.root / "refs/user/@versions/1.0.0"


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def manifest_file(store: Store) -> Path:
    return store.objects.path(version_file(store).read_text().split()[0])


def damaged_version(store: Store) -> str:
    overwrite(version_file(store), b"sha256:beef\n")
    return "@versions/1.0.0"


def version_of_zeros(store: Store) -> str:
    overwrite(version_file(store), bytes(72))
    return "@versions/1.0.0"


def linked_version(store: Store) -> str:
    version_file(store).rename(store.root.parent / "elsewhere")
    version_file(store).symlink_to(store.root.parent / "elsewhere")
    return "is a link"


def linked_name(store: Store) -> str:
    (store.root / "refs/user").rename(store.root.parent / "elsewhere")
    (store.root / "refs/user").symlink_to(store.root.parent / "elsewhere")
    return "refs/user is a symbolic link"


def linked_evidence(store: Store) -> str:
    (store.root / "evidence").rename(store.root.parent / "elsewhere")
    (store.root / "evidence").symlink_to(store.root.parent / "elsewhere")
    return "evidence is a symbolic link"


def flipped_manifest(store: Store) -> str:
    path = manifest_file(store)
    overwrite(path, path.read_bytes().replace(b"extractor", b"extracto\x00"))
    return "has the digest"


def truncated_manifest(store: Store) -> str:
    overwrite(manifest_file(store), b"")
    return "has the digest"


def missing_manifest(store: Store) -> str:
    manifest_file(store).unlink()
    return "user@1.0.0 refers to it"


def manifest_that_is_none(store: Store) -> str:
    overwrite(version_file(store), f"{store.put_blob(b'no JSON').blob}\n".encode())
    return "cannot be read"


def missing_parent(store: Store) -> str:
    parent = store.manifest("user").parents[0].component
    (store.root / "refs/parent/@versions/1.0.0").unlink()
    store.objects.path(parent).unlink()
    return parent[7:]


def damaged_record(store: Store) -> str:
    path = store.objects.path(store.manifest("user").training["run"]["blob"])
    overwrite(path, path.read_bytes()[:-1] + b" ")
    return "has the digest"


def damaged_pointer(store: Store) -> str:
    (pointer,) = (path for path in (store.root / "evidence").rglob("*") if path.is_file())
    overwrite(pointer, b"sha256:" + b"0" * 64 + b"\n")
    return "expected the digest in its name"


def missing_result(store: Store) -> str:
    (pointer,) = (path for path in (store.root / "evidence").rglob("*") if path.is_file())
    store.objects.path(f"sha256:{pointer.name}").unlink()
    return "the result .* refers to it"


DAMAGE = [
    damaged_version,
    version_of_zeros,
    linked_version,
    linked_name,
    linked_evidence,
    flipped_manifest,
    truncated_manifest,
    missing_manifest,
    manifest_that_is_none,
    missing_parent,
    damaged_record,
    damaged_pointer,
    missing_result,
]


@pytest.fixture
def used(store: Store, publish: Publish) -> Store:
    """A registry with a bit of everything, and one blob that nothing refers to."""
    run = store.put_blob(dumps({"run": 1}))
    parent = publish(store, "parent", 1)
    edge = {"blob": run.blob, "bytes": run.bytes}
    publish(store, "user", 2, training={"run": edge}, parents=(Parent("trained_with", parent.digest),))
    store.evidence.record("value:sha256:" + "1" * 64, "value:sha256:" + "2" * 64, {}, dumps({"accuracy": 1}))
    unused(store)
    return store


@pytest.mark.case("C1", "E1")
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda item: item.__name__)
def test_nothing_is_collected_while_a_reference_or_document_is_damaged(
    used: Store, damage: Callable[[Store], str]
):
    result = at_once(used)
    assert len(result.blobs) == 1
    message = damage(used)
    before = files(used)
    with pytest.raises(IntegrityError, match=message) as error:
        at_once(used)
    assert "compatkit verify" in str(error.value) or "link" in str(error.value)
    with pytest.raises(IntegrityError, match=message):
        result.apply()
    assert files(used) == before


def test_damage_that_appears_while_collecting_brings_back_what_was_taken_out(
    used: Store, monkeypatch: pytest.MonkeyPatch
):
    result = at_once(used)
    path = used.root / "refs/late/@versions/1.0.0"

    def step(operation: str, target: Path) -> None:
        if operation == "touch" and not path.exists():
            path.parent.mkdir(parents=True)
            path.write_text("sha256:garbage\n")

    monkeypatch.setattr(durable, "step", step)
    before = files(used, "blobs")
    with pytest.raises(IntegrityError, match=r"late@1\.0\.0"):
        result.apply()
    assert files(used, "blobs") == before and not files(used, "trash")


def test_damaged_weights_are_no_obstacle(used: Store):
    path = used.objects.path(used.manifest("user").payload.file.blob)
    overwrite(path, b"damaged")
    assert len(at_once(used).apply().moved) == 1
    assert path.read_bytes() == b"damaged"


def test_an_empty_version_file_is_a_publish_that_was_cut_off_and_refers_to_nothing(used: Store):
    path = used.root / "refs/user/@versions/2.0.0"
    path.write_bytes(b"")
    assert len(at_once(used).apply().moved) == 1 and path.exists()


def test_what_is_lost_for_good_can_be_passed_over(used: Store):
    manifest = used.manifest("user")
    run = manifest.training["run"]["blob"]
    used.objects.path(run).unlink()
    with pytest.raises(IntegrityError, match=f"compatkit gc --lost {run}"):
        at_once(used)
    assert len(at_once(used, lost=[run]).apply().moved) == 1
    assert weights(used, used.manifest("user"))


def test_what_only_a_lost_document_refers_to_goes(used: Store):
    reference = used.resolve("user")
    used.objects.path(str(reference.digest)).unlink()
    result = at_once(used, lost=[reference.digest])
    assert len(result.blobs) == 3  # the lonely one, its weights, its record
    result.apply()
    assert weights(used, used.manifest("parent"))


# --- the rest of a registry


def test_drafts_of_dead_processes_are_deleted_when_they_are_old(store: Store):
    dead = store.root / "tmp" / f"{2**22 + 1}-{'a' * 16}"
    young, alive, foreign = (
        store.root / "tmp" / name
        for name in (f"{2**22 + 1}-{'b' * 16}", f"{os.getpid()}-{'c' * 16}", "notes.txt")
    )
    for path in (dead, young, alive, foreign):
        path.write_bytes(b"12345")
    age(store, dead, alive, foreign, seconds=1.5 * DAY)
    result = plan(store)
    assert {draft.path for draft in result.drafts} == {f"tmp/{dead.name}", f"tmp/{alive.name}"}
    assert len(plan(store, grace=timedelta(hours=30)).drafts) == 2
    age(store, alive, seconds=0.9 * DAY)
    done = plan(store).apply()
    assert (done.drafts, done.freed) == (1, 5)
    assert {path.name for path in (store.root / "tmp").iterdir()} == {young.name, alive.name, foreign.name}


def test_drafts_of_running_processes_are_left_alone_for_a_day_whatever_the_grace(store: Store):
    alive = store.root / "tmp" / f"{os.getppid()}-{'c' * 16}"
    alive.write_bytes(b"12345")
    age(store, alive, seconds=0.9 * DAY)
    assert not at_once(store).drafts
    age(store, alive, seconds=1.1 * DAY)
    assert len(at_once(store).drafts) == 1


def test_a_draft_that_nobody_will_link_keeps_nothing(store: Store):
    lonely = unused(store)
    draft = store.root / "tmp" / f"{2**22 + 1}-{'a' * 16}"
    draft.write_text(f"{lonely}\n")
    done = at_once(store).apply()
    assert (done.drafts, done.moved) == (1, [lonely])


@pytest.mark.case("C6")
def test_quarantine_is_listed_and_never_deleted(store: Store):
    path = store.root / "quarantine" / f"{'0' * 64}-1-2"
    path.write_bytes(b"damaged")
    age(store)
    result = plan(store)
    assert [(entry.path, entry.bytes) for entry in result.quarantine] == [(f"quarantine/{path.name}", 7)]
    result.apply()
    assert path.exists()


def test_blobs_in_the_trash_that_are_referred_to_come_back(store: Store, publish: Publish):
    reference = publish(store, "a")
    path = store.objects.path(str(reference.digest))
    path.rename(store.root / "trash" / f"{path.name}-1-{'a' * 16}")
    result = at_once(store)
    assert digests(result.back) == {reference.digest} and not result.trash
    assert result.apply().back == [reference.digest]
    assert path.exists() and not files(store, "trash")


def test_a_second_copy_in_the_trash_is_deleted_when_it_is_old(store: Store, publish: Publish):
    reference = publish(store, "a")
    path = store.objects.path(str(reference.digest))
    copy = store.root / "trash" / f"{path.name}-1-{'a' * 16}"
    copy.write_bytes(path.read_bytes())
    assert not plan(store).trash
    age(store, copy)
    assert plan(store).apply().deleted == 1 and store.manifest("a")


def test_foreign_files_in_the_trash_stay(store: Store):
    (store.root / "trash" / "mine").write_text("x")
    age(store)
    result = plan(store)
    assert not result.trash and not result.waiting
    result.apply()
    assert (store.root / "trash" / "mine").exists()


# --- time


@pytest.mark.case("C5")
def test_files_from_the_future_are_young(store: Store):
    lonely = unused(store)
    age(store, store.objects.path(lonely), seconds=-DAY)
    result = at_once(store)
    assert not result.blobs and digests(result.young) == {lonely} and result.young[0].age < 0


@pytest.mark.case("C5")
def test_a_clock_that_runs_ahead_of_the_file_system_collects_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    lonely = unused(store)
    ahead = time.time() + 10 * DAY
    monkeypatch.setattr(ages.time, "time", lambda: ahead)
    result = plan(store)
    assert digests(result.blobs) == {lonely}  # a plan cannot know
    assert result.apply().moved == [] and store.objects.size(lonely) == 22


@pytest.mark.case("C5")
def test_a_clock_that_was_set_back_collects_nothing(store: Store, monkeypatch: pytest.MonkeyPatch):
    lonely = unused(store)
    age(store, store.objects.path(lonely))
    result = plan(store)
    behind = time.time() - 10 * DAY
    monkeypatch.setattr(ages.time, "time", lambda: behind)
    assert result.apply().moved == [] and plan(store).is_empty


@pytest.mark.parametrize("grace", [timedelta(seconds=-1), timedelta(hours=1), timedelta(0)])
def test_a_grace_that_would_take_bytes_away_from_publishers_is_refused(store: Store, grace: timedelta):
    with pytest.raises(UsageError, match="grace"):
        plan(store, grace=grace)
    if grace >= timedelta(0):
        assert plan(store, grace=grace, alone=True).is_empty


# --- between planning and applying


def test_what_was_published_since_the_plan_stays(store: Store, publish: Publish, put: Callable[..., Any]):
    put(store, 5)
    result = at_once(store)
    assert len(result.blobs) == 1
    reference = publish(store, "a", 5)
    assert result.apply().moved == []
    assert weights(store, store.manifest(reference))


def test_what_was_put_again_since_the_plan_stays(store: Store):
    lonely = unused(store)
    age(store)
    result = plan(store)
    assert digests(result.blobs) == {lonely}
    unused(store)  # makes it young
    assert result.apply().moved == []


def test_weights_of_withdrawn_versions_are_found(store: Store, publish: Publish):
    payload = store.manifest(publish(store, "a")).payload.file.blob
    store.withdraw("a", "1.0.0", "bad")
    age(store)
    assert digests(store_gc(store, withdrawn=True).withdrawn) == {payload} and store_gc(store).is_empty


def test_only_what_is_in_the_plan_is_deleted(store: Store):
    first = unused(store)
    result = at_once(store)
    second = unused(store, b"later")
    assert result.apply().moved == [first] and store.objects.size(second) == 5


def test_applying_twice_does_it_once(store: Store):
    unused(store)
    result = at_once(store)
    assert result.apply().freed == 22 and result.apply() == CollectionResult()


@pytest.mark.case("D4")
def test_two_collections_at_once_do_it_once_between_them(store: Store, publish: Publish):
    publish(store, "a")
    before = sum(files(store).values())
    for value in range(40):
        unused(store, bytes([value]) * 100)
    plans = [at_once(Store.open(store.root)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda item: item.apply(), plans))
    while not at_once(store).is_empty:  # one may have looked while another had files in hand
        done.append(at_once(store).apply())
    assert sum(result.freed for result in done) == 4000 and sum(files(store).values()) == before
    assert store.manifest("a")


def test_a_registry_that_cannot_be_written_says_so(store: Store, monkeypatch: pytest.MonkeyPatch):
    unused(store)
    result = at_once(store)

    def refuse(operation: str, path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(durable, "step", refuse)
    with pytest.raises(EnvironmentFailure, match="read-only"):
        result.apply()


def test_a_file_that_cannot_be_read_is_named(store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch):
    publish(store, "a")
    original = os.open

    def refuse(path: Any, *rest: Any, **options: Any) -> int:
        if str(path).endswith("@versions/1.0.0"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(EnvironmentFailure, match=r"@versions/1.0.0.*check owner and mode"):
        at_once(store)


def test_what_is_missing_for_a_moment_only_is_waited_for(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where there are no hard links: the version is there, and its publisher puts the manifest again."""
    publish(store, "a/b")
    digest = (store.root / "refs/a/b/@versions/1.0.0").read_text().split()[0].removeprefix("sha256:")
    blob = store.root / f"blobs/sha256/{digest[:2]}/{digest}"
    data, waited = blob.read_bytes(), []
    blob.unlink()

    def come_back(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            blob.write_bytes(data)

    monkeypatch.setattr("compatkit.registry.maintenance.marks.time.sleep", come_back)
    assert plan(store, grace=timedelta(0), alone=True).blobs == ()
    assert waited == [0.05, 0.05]
    blob.unlink()
    with pytest.raises(IntegrityError, match="is missing, from trash/ too"):
        plan(store, grace=timedelta(0), alone=True)
