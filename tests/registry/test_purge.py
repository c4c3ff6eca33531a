"""Weights of withdrawn versions are deleted at once, with every copy, unless something else needs them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compatkit.contracts.manifest import Parent
from compatkit.errors import IntegrityError, NotFound
from compatkit.registry import disk as durable
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.gc import plan as plan_collection
from compatkit.registry.maintenance.operations import Maintenance
from compatkit.registry.maintenance.purge import PurgePlan
from compatkit.registry.remotes.pushpull import import_components, pull, push
from compatkit.registry.restoring import restore
from compatkit.registry.store import Store

Publish = Callable[..., Any]
EYE, HAND, REASON = "digits/eye", "digits/hand", "trained on private images"


def purge(store: Store, *patterns: str) -> PurgePlan:
    return Maintenance(store).purge(patterns or None)


def weights(store: Store, name: str) -> str:
    return store.manifest(name).payload.file.blob


def holding(store: Store, digest: str) -> list[str]:
    """Return all files of the registry with the bytes of a digest: the slow and obvious search."""
    return [
        path.relative_to(store.root).as_posix()
        for path in sorted(store.root.rglob("*"))
        if path.is_file() and f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" == digest
    ]


@pytest.fixture
def leaked(store: Store, publish: Publish) -> Store:
    """A withdrawn version, with copies of its weights in trash, in quarantine and in a draft; and a second version."""
    digest = str(publish(store, EYE, 1).digest)
    publish(store, EYE, 2)
    store.withdraw(EYE, "1.0.0", REASON)
    blob = store.manifest(digest).payload.file.blob
    content = store.objects.path(blob).read_bytes()
    for folder, name in (("trash", f"{blob[7:]}-1-{'0' * 16}"), ("quarantine", f"{blob[7:]}-1-{'1' * 16}")):
        (store.root / folder / name).write_bytes(content if folder == "trash" else content[:-1])
    (store.root / "tmp" / f"4194303-{'2' * 16}").write_bytes(content)
    return store


def test_every_copy_is_deleted_at_once(leaked: Store) -> None:
    blob = weights(leaked, f"{EYE}@{leaked.references.digest(EYE, leaked.references.versions(EYE)[0])}")
    assert len(holding(leaked, blob)) == 3
    plan = purge(leaked)
    (item,) = plan.weights
    assert item.digest == blob and item.versions == (f"{EYE}@1.0.0",) and len(item.paths) == 4
    assert not plan.needed and len(holding(leaked, blob)) == 3, "a plan changes nothing"
    done = plan.apply()
    assert done.applied and sorted(len(item.paths) for item in done.weights) == [4]
    assert holding(leaked, blob) == []
    assert not any(blob[7:] in path.name for path in leaked.root.rglob("*"))
    assert [fault.code for fault in examine(leaked).faults] == ["blob-collected"]
    assert leaked.load_state(leaked.manifest(EYE)), "the other version is untouched"
    assert purge(leaked).weights == () and purge(leaked).apply().weights == ()
    with pytest.raises(IntegrityError):
        leaked.objects.read(blob)


def test_a_collection_would_have_waited(leaked: Store) -> None:
    blob = purge(leaked).weights[0].digest
    plan_collection(leaked, withdrawn=True).apply()
    assert holding(leaked, blob) != []


def test_nothing_that_stands_is_purged(store: Store, publish: Publish) -> None:
    publish(store, EYE, 1)
    assert purge(store).weights == ()
    with pytest.raises(NotFound) as error:
        purge(store, f"{EYE}@1.0.0")
    assert error.value.subject == f"{EYE}@1.0.0"


def test_patterns_choose_withdrawn_versions(store: Store, publish: Publish) -> None:
    for value in range(3):
        publish(store, EYE, value)
        store.withdraw(EYE, f"{value + 1}.0.0", REASON)
    assert [item.versions for item in purge(store, f"{EYE}@2.*").weights] == [(f"{EYE}@2.0.0",)]
    purge(store, f"{EYE}@2.*").apply()
    assert {version for item in purge(store, "digits/*").weights for version in item.versions} == {
        f"{EYE}@1.0.0",
        f"{EYE}@3.0.0",
    }


def test_what_still_refers_to_weights_is_named_and_they_stay(store: Store, publish: Publish) -> None:
    digest = str(publish(store, EYE, 1).digest)
    publish(store, HAND, 1, kind="head", parents=(Parent("trained_with", digest),), about=_about("other"))
    publish(store, "other/eye", 1, about=_about("the same weights"))
    store.withdraw(EYE, "1.0.0", REASON)
    blob = store.manifest(digest).payload.file.blob
    named = set[str]()
    for _ in range(2):
        plan = purge(store)
        assert plan.weights == () and plan.needed[0].versions[0] == f"{EYE}@1.0.0"
        assert plan.apply().weights == () and holding(store, blob)
        named.add(plan.needed[0].needed_by)
        store.withdraw(plan.needed[0].needed_by.partition("@")[0], "1.0.0", REASON)
    assert named == {f"{HAND}@1.0.0", "other/eye@1.0.0"}
    purge(store).apply()
    assert holding(store, blob) == []


def test_another_name_of_the_same_component_is_what_needs_them(store: Store, publish: Publish) -> None:
    digest = str(publish(store, EYE, 1).digest)
    for name in ("a/eye", "zoo/eye"):  # before and after it in any order
        assert str(publish(store, name, 1).digest) == digest
    for name in ("a/eye", EYE):
        store.withdraw(name, "1.0.0", REASON)
    (needed,) = purge(store).needed
    assert sorted(needed.versions) == ["a/eye@1.0.0", f"{EYE}@1.0.0"] and needed.needed_by == "zoo/eye@1.0.0"


def test_a_pull_brings_purged_weights_back_only_for_what_stands(
    store: Store, publish: Publish, tmp_path: Path
) -> None:
    digest = str(publish(store, EYE, 1).digest)
    blob = store.manifest(digest).payload.file.blob
    remote = tmp_path / "remote"
    push(store, remote).check()
    store.withdraw(EYE, "1.0.0", REASON)
    purge(store).apply()
    assert pull(store, remote, settings=TransferSettings(dry_run=True)).blobs == 0
    assert pull(store, remote).check().blobs == 0 and holding(store, blob) == []
    import_components(Store.open(remote), store)
    assert holding(store, blob) == []

    assert str(publish(Store.open(remote), "other/eye", 1).digest) == digest
    assert pull(store, remote).check().blobs == 1 and holding(store, blob)


def test_a_restoration_that_is_followed_brings_purged_weights_back(
    store: Store, publish: Publish, tmp_path: Path
) -> None:
    blob = store.manifest(str(publish(store, EYE, 1).digest)).payload.file.blob
    remote = tmp_path / "remote"
    store.withdraw(EYE, "1.0.0", REASON)
    push(store, remote).check()
    purge(store).apply()
    restore(Store.open(remote), EYE, "1.0.0", "allowed after all")
    report = pull(store, remote, settings=TransferSettings(follow_withdrawals=True)).check()
    assert report.blobs == 1 and holding(store, blob) and store.resolve(f"{EYE}@1.0.0")


def _about(title: str) -> Any:
    from compatkit.contracts.manifest import About

    return About(title=title)


def test_a_draft_that_is_about_to_be_published_keeps_them(leaked: Store) -> None:
    digest = leaked.references.digest(EYE, leaked.references.versions(EYE)[0])
    plan = purge(leaked)
    draft = leaked.root / "tmp" / f"{os.getpid()}-{'3' * 16}"
    draft.write_bytes(f"{digest} other/eye@1.0.0\n".encode())
    done = plan.apply()
    assert done.weights == () and str(draft) in done.needed[0].needed_by
    assert holding(leaked, plan.weights[0].digest)
    draft.unlink()
    purge(leaked).apply()
    assert holding(leaked, plan.weights[0].digest) == []


def test_published_between_the_move_and_the_second_mark(
    leaked: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = purge(leaked).weights[0].digest
    begun = False

    def step(operation: str, path: Path) -> None:
        nonlocal begun
        if operation == "unlink" or begun or "trash" not in str(path):
            return
        begun = True
        publish(leaked, "other/eye", 1)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "step", step)
        purge(leaked).apply()
    assert begun and holding(leaked, blob)
    assert leaked.load_state(leaked.manifest("other/eye")) and not examine(leaked).count("error")


@pytest.mark.parametrize("outer", ["purge", "publish"])
@pytest.mark.parametrize("number", range(0, 24, 2))
def test_whoever_publishes_the_same_weights_meanwhile_keeps_them_or_is_told(
    leaked: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch, outer: str, number: int
) -> None:
    """One runs completely at one step of the other."""
    published = False

    def publishes() -> None:
        nonlocal published
        try:
            publish(leaked, "other/eye", 1)
            published = True
        except IntegrityError:
            pass

    actions = {"publish": publishes, "purge": lambda: purge(leaked).apply()}
    left = number

    def step(operation: str, path: Path) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            actions["purge" if outer == "publish" else "publish"]()

    with monkeypatch.context() as patch:
        patch.setattr(durable, "step", step)
        actions[outer]()
    assert not examine(leaked).count("error")
    assert ("other/eye" in leaked.names()) == published
    if published:
        assert leaked.load_state(leaked.manifest("other/eye"), verify="always")
    else:
        publish(leaked, "other/eye", 1)
    assert leaked.load_state(leaked.manifest("other/eye"), verify="always")


@pytest.mark.parametrize("number", range(12))
def test_a_killed_call_is_continued_by_the_same_call(
    leaked: Store, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    class Killed(BaseException):
        pass

    left, blob = number, purge(leaked).weights[0].digest

    def step(operation: str, path: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(durable, "step", step)
        try:
            purge(leaked).apply()
        except Killed:
            pass
    assert not examine(leaked).count("error") and leaked.load_state(leaked.manifest(EYE))
    purge(leaked).apply()
    assert holding(leaked, blob) == [] and not any(blob[7:] in path.name for path in leaked.root.rglob("*"))


def test_a_damaged_reference_stops_it_and_what_was_moved_comes_back(
    leaked: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = purge(leaked).weights[0].digest
    plan = purge(leaked)
    version = leaked.root / f"refs/{EYE}/@versions/2.0.0"

    def step(operation: str, path: Path) -> None:
        if "trash" in str(path):
            version.chmod(0o644)
            version.write_bytes(b"x")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "step", step)
        with pytest.raises(IntegrityError):
            plan.apply()
    assert leaked.objects.size(blob) is not None


def test_a_manifest_that_cannot_be_read_is_named(leaked: Store) -> None:
    digest = leaked.references.digest(EYE, leaked.references.versions(EYE)[0])
    path = leaked.objects.path(str(digest))
    path.chmod(0o644)
    path.write_bytes(b"x")
    with pytest.raises(IntegrityError):
        purge(Store.open(leaked.root))
    plan = Maintenance(Store.open(leaked.root)).purge(lost=[str(digest)])
    assert plan.unreadable == (f"{EYE}@1.0.0",) and plan.weights == ()


def test_a_clock_that_is_ahead_or_behind_does_not_matter(
    leaked: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = purge(leaked).weights[0].digest
    for path in leaked.root.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() + 10**6, time.time() + 10**6))
    purge(leaked).apply()
    assert holding(leaked, blob) == []
