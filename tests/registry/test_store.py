"""The store: publish, resolve, list, select, alias, withdraw; and what each refuses."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from compatkit.contracts.manifest import About, Edge, Manifest, Parent, Payload, to_bytes
from compatkit.errors import (
    AliasMoved,
    FormatError,
    IntegrityError,
    InvalidName,
    NotFound,
    UsageError,
    VersionExists,
    VersionTooSmall,
)
from compatkit.registry.names import Reference, Version
from compatkit.registry.store import Store

Publish = Callable[..., Reference]


def test_what_is_published_is_found_and_loaded(store: Store, manifest_of: Callable[..., Manifest]):
    state = {"w": torch.randn(3, 2), "steps": torch.tensor(4)}
    payload = store.put_state(state, parameters=6)
    manifest = manifest_of(payload)
    reference = store.publish("digits/mnist.extractor", manifest)
    assert str(reference) == "digits/mnist.extractor@1.0.0"
    again = Store.open(store.root)
    assert again.id == store.id
    assert again.resolve("digits/mnist.extractor") == reference
    assert again.manifest(reference) == manifest == again.manifest(str(reference.digest))
    loaded = again.load_state(again.manifest("digits/mnist.extractor@^1"), verify="always")
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    assert payload.count == 2 and payload.parameters == 6


def test_files_lie_where_the_layout_says(store: Store, publish: Publish):
    reference = publish(store, "a/b")
    store.set_alias("a/b", "prod", "1.0.0")
    hexadecimal = str(reference.digest).removeprefix("sha256:")
    blob = store.root / "blobs" / "sha256" / hexadecimal[:2] / hexadecimal
    assert blob.read_bytes() == to_bytes(store.manifest(reference))
    assert (store.root / "refs/a/b/@versions/1.0.0").read_text() == f"{reference.digest} a/b@1.0.0\n"
    assert (store.root / "refs/a/b/@aliases/prod").read_text().split()[0] == "1.0.0"
    assert list((store.root / "tmp").iterdir()) == []


def test_the_same_manifest_again_is_the_same_version(store: Store, publish: Publish):
    assert publish(store, "a") == publish(store, "a") == publish(store, "a", version="1.0.0")
    assert [str(version) for version in store.versions("a")] == ["1.0.0"]


def test_the_change_chooses_the_number(store: Store, publish: Publish):
    assert str(publish(store, "a").version) == "1.0.0"
    assert str(publish(store, "a", about=About(title="x")).version) == "1.0.1"
    assert str(publish(store, "a", value=1).version) == "2.0.0"
    assert str(publish(store, "a", value=2, version="7.1.0").version) == "7.1.0"
    assert str(publish(store, "a", value=3).version) == "8.0.0"


def test_a_version_is_never_rewritten(store: Store, publish: Publish):
    first = publish(store, "a")
    with pytest.raises(VersionExists, match=re.escape(str(first.digest))):
        publish(store, "a", value=1, version="1.0.0")
    assert store.resolve("a@1.0.0") == first


@pytest.mark.parametrize("version", ["1.0.1", "1.1.0", "1.9.9"])
def test_a_step_smaller_than_the_change_is_refused(store: Store, publish: Publish, version: str):
    publish(store, "a")
    with pytest.raises(VersionTooSmall, match=r"at least 2\.0\.0 is needed, because .*new weights"):
        publish(store, "a", value=1, version=version)
    assert len(store.versions("a")) == 1


def test_a_larger_step_is_allowed_and_an_older_line_goes_on(store: Store, publish: Publish):
    publish(store, "a")
    publish(store, "a", value=1, version="3.0.0")
    assert str(publish(store, "a", about=About(title="fix"), version="1.0.1")) == "a@1.0.1"
    assert str(store.resolve("a")) == "a@3.0.0"
    publish(store, "a", about=About(title="more"), version="1.2.0")
    with pytest.raises(VersionTooSmall, match="must be higher"):
        publish(store, "a", about=About(title="late"), version="1.1.0")


@pytest.mark.case("B6")
@pytest.mark.parametrize("version", ["1", "latest", "01.0.0", ""])
def test_bad_versions_are_refused(store: Store, publish: Publish, version: str):
    with pytest.raises(InvalidName):
        publish(store, "a", version=version)


@pytest.mark.case("B1")
@pytest.mark.parametrize("name", ["../a", "A", "a/b/c/d", "a/@versions"])
def test_bad_names_leave_the_store_as_it_is(store: Store, publish: Publish, name: str):
    with pytest.raises(InvalidName):
        publish(store, name)
    assert store.names() == [] and list((store.root / "refs").iterdir()) == []


@pytest.mark.case("E1", "F")
def test_blobs_that_are_not_there_stop_a_publish(
    store: Store, put: Callable[..., Payload], manifest_of: Callable[..., Manifest]
):
    payload, missing = put(store), "sha256:" + "e" * 64
    for manifest in (
        manifest_of(attrs.evolve(payload, file=Edge(missing, 3))),
        manifest_of(payload, training={"run": {"blob": missing, "bytes": 3}}),
        manifest_of(payload, parents=(Parent("trained_with", missing),)),
        manifest_of(payload, extensions={"x": [{"component": missing}]}),
    ):
        with pytest.raises(IntegrityError, match=f"refers to {missing}"):
            store.publish("a", manifest)
    assert store.names() == []


@pytest.mark.case("E2")
@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"tensors": "tensors:sha256:" + "0" * 64}, "states 1 tensors"),
        ({"count": 2}, "states 2 tensors"),
    ],
)
def test_a_payload_that_is_not_what_the_manifest_says_stops_a_publish(
    store: Store,
    put: Callable[..., Payload],
    manifest_of: Callable[..., Manifest],
    wrong: dict[str, Any],
    complaint: str,
):
    with pytest.raises(IntegrityError, match=complaint):
        store.publish("a", manifest_of(attrs.evolve(put(store), **wrong)))


@pytest.mark.case("E1")
def test_a_wrong_size_stops_a_publish(
    store: Store, put: Callable[..., Payload], manifest_of: Callable[..., Manifest]
):
    payload = put(store)
    with pytest.raises(IntegrityError, match="the blob has"):
        store.publish("a", manifest_of(attrs.evolve(payload, file=attrs.evolve(payload.file, bytes=1))))


@pytest.mark.case("A10")
def test_a_payload_that_is_no_tensor_file_stops_a_publish(
    store: Store, put: Callable[..., Payload], manifest_of: Callable[..., Manifest]
):
    edge = store.put_blob(b"\x80\x04K\x01.")
    with pytest.raises(FormatError, match="pickle"):
        store.publish("a", manifest_of(attrs.evolve(put(store), file=edge)))
    assert store.names() == []


def test_resolving(store: Store, publish: Publish):
    first = publish(store, "a/b")
    patch = publish(store, "a/b", about=About(title="x"))
    two = publish(store, "a/b", value=1)
    store.set_alias("a/b", "prod", "1.0.0")
    for text, expected in {
        "a/b": two,
        "a/b@1.0.0": first,
        "a/b@^1": patch,
        "a/b@^2": two,
        "a/b:prod": first,
        f"a/b@{patch.digest}": patch,
    }.items():
        assert store.resolve(text) == expected
    assert store.resolve(two) is two


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("digits/mnist.haed", "perhaps digits/mnist.head"),
        ("digits", "no component is named"),
        ("digits/mnist.head@1.0.1", "no version 1.0.1: its versions are 1.0.0"),
        ("digits/mnist.head@^2", "its versions are 1.0.0"),
        ("digits/mnist.head:best", r"no alias 'best'; its aliases are: prod \(1\.0\.0\)"),
        ("digits/mnist.head@sha256:" + "0" * 64, "no version of digits/mnist.head is sha256:0000"),
        ("nobody@1.0.0", "no component is named"),
        ("nobody:prod", "no component is named"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(
    store: Store, publish: Publish, text: str, complaint: str
):
    publish(store, "digits/mnist.head")
    store.set_alias("digits/mnist.head", "prod", "1.0.0")
    with pytest.raises(NotFound, match=complaint) as caught:
        store.resolve(text)
    assert caught.value.exit_code == 2


def test_an_empty_registry_says_so(store: Store):
    with pytest.raises(NotFound, match="is empty"):
        store.resolve("a")


@pytest.mark.case("B5")
def test_names_that_are_paths_of_others_live_side_by_side(store: Store, publish: Publish):
    for value, name in enumerate(["a", "a/b", "a/b/c"]):
        publish(store, name, value)
    assert store.names() == ["a", "a/b", "a/b/c"]
    assert len({store.resolve(name).digest for name in store.names()}) == 3


def test_names_and_patterns(store: Store, publish: Publish):
    names = ["digits/mnist.extractor", "digits/mnist.head", "digits/usps.extractor", "toys"]
    for name in names:
        publish(store, name)
    assert store.names() == names
    assert store.names("digits/*.extractor") == [names[0], names[2]]
    assert store.names("nothing*") == []
    assert [entry.name for entry in store.select("digits/*")] == names[:3]
    assert store.select("toys@1.0.0") == [store.resolve("toys")]


def test_select_takes_the_version_asked_for_and_passes_over_names_without(store: Store, publish: Publish):
    publish(store, "x.head")
    publish(store, "y.head")
    publish(store, "y.head", value=1)
    store.set_alias("y.head", "prod", "1.0.0")
    assert list(map(str, store.select("*.head"))) == ["x.head@1.0.0", "y.head@2.0.0"]
    assert list(map(str, store.select("*.head@^1"))) == ["x.head@1.0.0", "y.head@1.0.0"]
    assert list(map(str, store.select("?.head:prod"))) == ["y.head@1.0.0"]
    with pytest.raises(NotFound, match=r"none of the 2 names has @\^3"):
        store.select("*.head@^3")
    with pytest.raises(NotFound, match="matches no component"):
        store.select("*.tail")
    with pytest.raises(InvalidName):
        store.select("*@newest")


@pytest.mark.case("C6")
def test_stray_files_and_unknown_folders_are_ignored(store: Store, publish: Publish):
    publish(store, "a")
    refs = store.root / "refs"
    (refs / ".DS_Store").write_bytes(b"\0")
    (refs / "notes.txt").write_text("x")
    (refs / "a" / "@versions" / ".1.0.0.swp").write_text("x")
    (refs / "a" / "@aliases").mkdir()
    (refs / "a" / "@aliases" / "prod~").write_text("x")
    (refs / "a" / "@later").mkdir()
    (refs / "empty" / "@versions").mkdir(parents=True)
    (store.root / "of-a-later-version").mkdir()
    again = Store.open(store.root)
    assert again.names() == ["a"] and list(map(str, again.versions("a"))) == ["1.0.0"]
    assert again.aliases("a") == {}


def test_an_alias_moves_by_compare_and_swap_and_keeps_a_log(store: Store, publish: Publish):
    publish(store, "a")
    publish(store, "a", value=1)
    store.set_alias("a", "prod", "1.0.0", expected=None)
    store.set_alias("a", "prod", Version(2, 0, 0), expected="1.0.0")
    with pytest.raises(AliasMoved, match=r"should point at 1\.0\.0, but points at 2\.0\.0"):
        store.set_alias("a", "prod", "1.0.0", expected="1.0.0")
    with pytest.raises(AliasMoved, match="should point at nothing"):
        store.set_alias("a", "prod", "1.0.0", expected=None)
    store.set_alias("a", "prod", "2.0.0")  # where it is already: no move
    store.set_alias("a", "prod", None)
    assert store.aliases("a") == {}
    assert [(move.number, move.before, move.after) for move in store.alias_log("a", "prod")] == [
        (1, None, "1.0.0"),
        (2, "1.0.0", "2.0.0"),
        (3, "2.0.0", None),
    ]
    store.set_alias("a", "prod", "1.0.0", expected=None)
    assert store.aliases("a") == {"prod": "1.0.0"}


@pytest.mark.case("D1")
def test_an_alias_whose_pointer_is_lost_or_late_follows_the_log(store: Store, publish: Publish):
    publish(store, "a")
    publish(store, "a", value=1)
    store.set_alias("a", "prod", "1.0.0")
    pointer: Path = store.root / "refs/a/@aliases/prod"
    late = pointer.read_bytes()
    store.set_alias("a", "prod", "2.0.0")
    pointer.unlink()
    assert store.aliases("a") == {"prod": "2.0.0"}
    pointer.write_bytes(late)
    assert store.aliases("a") == {"prod": "2.0.0"}
    pointer.write_bytes(b"garbage")
    assert store.aliases("a") == {"prod": "2.0.0"}
    shutil.rmtree(store.root / "refs/a/@log")
    with pytest.raises(FormatError, match="Remove the file"):
        store.resolve("a:prod")


def test_setting_an_alias_to_what_it_is_shows_it_where_its_pointer_is_behind(store: Store, publish: Publish):
    publish(store, "a")
    publish(store, "a", value=1)
    pointer: Path = store.root / "refs/a/@aliases/prod"
    late = b"1.0.0 1\n"
    store.set_alias("a", "prod", "1.0.0")
    assert pointer.read_bytes() == late
    store.set_alias("a", "prod", "2.0.0")
    for behind in (late, b"1.0.0\n", None):  # from before the move, by hand, and none at all
        pointer.unlink() if behind is None else pointer.write_bytes(behind)
        store.set_alias("a", "prod", "2.0.0")
        assert pointer.read_bytes() == b"2.0.0 2\n"
    store.set_alias("a", "prod", None)
    pointer.write_bytes(late)
    store.set_alias("a", "prod", None)
    assert not pointer.exists() and store.aliases("a") == {}
    assert [move.number for move in store.alias_log("a", "prod")] == [1, 2, 3], "nothing was moved for it"
    store.set_alias("a", "prod", "1.0.0")
    before = pointer.stat().st_ino, pointer.stat().st_mtime_ns
    store.set_alias("a", "prod", "1.0.0")
    after = pointer.stat().st_ino, pointer.stat().st_mtime_ns
    assert after == before, "what is up to date is not written again"


@pytest.mark.case("B6")
def test_an_alias_needs_a_version_that_exists(store: Store, publish: Publish):
    publish(store, "a")
    with pytest.raises(NotFound):
        store.set_alias("a", "prod", "2.0.0")
    with pytest.raises(NotFound):
        store.set_alias("b", "prod", "1.0.0")
    with pytest.raises(InvalidName):
        store.set_alias("a", "1.0.0", "1.0.0")
    assert store.aliases("a") == {} and store.aliases("b") == {}


@pytest.mark.case("B6")
def test_a_withdrawn_version_is_found_by_digest_only_and_its_number_is_not_reused(
    store: Store, publish: Publish
):
    first = publish(store, "a")
    second = publish(store, "a", value=1)
    store.set_alias("a", "prod", "2.0.0")
    store.withdraw("a", "2.0.0", "trained on the test set")
    store.withdraw("a", "2.0.0", "another reason")  # the first stays
    assert store.resolve("a") == first and store.versions("a") == [first.version]
    for text in ("a@2.0.0", "a:prod"):
        with pytest.raises(NotFound, match=r"withdrawn.*trained on the test set.*versions are 1\.0\.0"):
            store.resolve(text)
    with pytest.raises(NotFound, match="matches no version"):
        store.resolve("a@^2")
    assert store.resolve(f"a@{second.digest}") == second
    assert str(publish(store, "a", value=2)) == "a@3.0.0"
    with pytest.raises(VersionExists):
        publish(store, "a", value=3, version="2.0.0")
    tombstone = store.tombstone("a", "2.0.0")
    assert tombstone is not None and tombstone.reason == "trained on the test set"


def test_withdrawing_needs_a_reason_and_a_version(store: Store, publish: Publish):
    publish(store, "a")
    with pytest.raises(UsageError, match="needs a reason"):
        store.withdraw("a", "1.0.0", " ")
    with pytest.raises(NotFound):
        store.withdraw("a", "2.0.0", "never was")


def test_when_every_version_is_withdrawn_the_next_number_is_free(store: Store, publish: Publish):
    publish(store, "a")
    store.withdraw("a", "1.0.0", "broken")
    with pytest.raises(NotFound, match="withdrawn"):
        store.resolve("a")
    assert store.versions("a") == []
    assert str(publish(store, "a", value=1)) == "a@2.0.0"


def test_a_second_read_of_a_manifest_decodes_nothing(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a digest names never changes, so a store decodes and checks it once."""
    reference = publish(store, "a")
    again = Store.open(store.root)
    first = again.manifest(str(reference))
    monkeypatch.setattr(
        "compatkit.contracts.manifest.from_bytes", lambda *_, **__: pytest.fail("decoded again")
    )
    assert again.manifest(str(reference)) is first
    assert again.manifest(str(reference.digest)) is first
