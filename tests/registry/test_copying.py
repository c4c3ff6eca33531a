"""Importing: components come with all that belongs to them, numbers kept; the other registry is not trusted."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from handmade import blobs_in
from pointed import results

from compatkit.contracts.manifest import Manifest, Parent, Payload, function_digest, to_bytes
from compatkit.errors import (
    EnvironmentFailure,
    FormatError,
    IntegrityError,
    NotFound,
    UsageError,
    VersionExists,
)
from compatkit.foundation.codec import digest, dumps
from compatkit.registry import disk as durable
from compatkit.registry.copy.report import TransferReport
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.remotes.pushpull import import_components, pull
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import tensor_digest

Publish = Callable[..., Any]


@pytest.fixture
def source(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "source")


@pytest.fixture
def family(source: Store, publish: Publish) -> Store:
    """A head, the extractor that it was trained with, the record of their run, and a measured result of the pair."""
    run = source.put_blob(dumps({"run": "digits"}))
    edge = {"blob": run.blob, "bytes": run.bytes}
    extractor = publish(source, "digits/mnist.extractor", 1, training={"run": edge})
    parents = (Parent("trained_with", extractor.digest),)
    head = publish(source, "digits/mnist.head", 2, training={"run": edge}, parents=parents, kind="head")
    functions = [function_digest(source.manifest(item)) for item in (extractor, head)]
    source.evidence.record(*functions, {"metric": "accuracy"}, dumps({"accuracy": 0.9}))
    source.set_alias("digits/mnist.head", "prod", "1.0.0")
    return source


def bring(source: Store, target: Store, *patterns: str, **options: Any) -> TransferReport:
    settings = TransferSettings(**{"aliases": False, **options})
    return import_components(source, target, patterns or ("*",), settings=settings)


def weights(store: Store, manifest: Manifest) -> bytes:
    """Return a component's payload, verified."""
    return store.read_blob(manifest.payload.file.blob, verify="always")


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of every file below a folder."""
    return {
        str(path.relative_to(root)): (path.lstat().st_mode, path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }


def sound(store: Store) -> None:
    """Read everything that can be named, verified; nothing is missing and nothing unused."""
    reader = Store.open(store.root)
    for name, version in reader.references.each():
        manifest = reader.manifest(f"{name}@{reader.references.digest(name, version)}")
        assert weights(reader, manifest)
        for parent in manifest.parents:
            assert weights(reader, reader.manifest(parent.component))
    assert not list((store.root / "tmp").iterdir())


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def payload_file(store: Store, reference: str = "digits/mnist.head") -> Path:
    return store.objects.path(store.manifest(reference).payload.file.blob)


def test_a_whole_registry_is_copied(store: Store, family: Store):
    done = bring(family, store)
    assert [str(built) for built in done.created] == [
        "digits/mnist.extractor@1.0.0",
        "digits/mnist.head@1.0.0",
    ]
    assert (done.blobs, done.results, done.existing, done.unnamed, done.aliases) == (6, 1, [], [], [])
    assert done.bytes == sum(blobs_in(family).values())
    assert list(blobs_in(store)) == list(blobs_in(family))
    for name in family.names():
        assert store.resolve(name) == family.resolve(name)
    sound(store)


def test_the_source_is_not_changed(store: Store, family: Store):
    before = tree(family.root)
    bring(family, store, aliases=True)
    assert tree(family.root) == before


@pytest.mark.case("C2")
def test_a_source_that_cannot_be_written_is_read(
    store: Store, family: Store, monkeypatch: pytest.MonkeyPatch
):
    def refuse(operation: str, path: Path) -> None:
        if family.root in (path, *path.parents):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(durable, "step", refuse)
    assert len(bring(family, store, aliases=True).created) == 2


def test_importing_again_copies_nothing(store: Store, family: Store):
    first = bring(family, store)
    before = tree(store.root)
    again = bring(family, store)
    assert (again.created, again.blobs, again.bytes, again.results) == ([], 0, 0, 0)
    assert again.existing == first.created and tree(store.root) == before


def test_parents_come_along_with_their_names_and_results(store: Store, family: Store):
    done = bring(family, store, "digits/mnist.head")
    assert {str(built) for built in done.created} == {
        "digits/mnist.extractor@1.0.0",
        "digits/mnist.head@1.0.0",
    }
    assert done.results == 1
    pair = [function_digest(store.manifest(name)) for name in ("digits/mnist.extractor", "digits/mnist.head")]
    assert results(store, *pair) == results(family, *pair) == [dumps({"accuracy": 0.9})]
    sound(store)


def test_parents_of_parents_without_a_name_come_along(store: Store, source: Store, publish: Publish):
    reference = publish(source, "part", 0)
    for value in range(1, 5):
        reference = publish(source, "part", value, parents=(Parent("initialised_from", reference.digest),))
    for version in ("1.0.0", "2.0.0", "3.0.0", "4.0.0"):
        (source.root / "refs/part/@versions" / version).unlink()
    done = bring(source, store)
    assert [str(built) for built in done.created] == ["part@5.0.0"] and done.blobs == 10
    digests = [str(store.resolve("part").digest)]
    while parents := store.manifest(digests[-1]).parents:
        digests.append(parents[0].component)
    assert len(digests) == 5 and all(weights(store, store.manifest(digest)) for digest in digests)


@pytest.mark.parametrize(
    ("patterns", "options", "expected"),
    [
        ((), {}, ["a@1.0.0", "a@2.0.0", "b/c@1.0.0"]),
        (("a",), {}, ["a@1.0.0", "a@2.0.0"]),
        (("b/*",), {}, ["b/c@1.0.0"]),
        (("a", "*", "a@1.0.0"), {}, ["a@1.0.0", "a@2.0.0", "b/c@1.0.0"]),
        ((), {"versions": "latest"}, ["a@2.0.0", "b/c@1.0.0"]),
        (("a@1.0.0",), {}, ["a@1.0.0"]),
        (("a@^1",), {}, ["a@1.0.0"]),
        (("*@^1",), {}, ["a@1.0.0", "b/c@1.0.0"]),
        (("a:prod",), {}, ["a@1.0.0"]),
    ],
)
def test_patterns_say_what_comes(
    store: Store,
    source: Store,
    publish: Publish,
    patterns: tuple[str, ...],
    options: dict[str, Any],
    expected: list[str],
):
    publish(source, "a", 1)
    publish(source, "a", 2)
    publish(source, "b/c", 3)
    source.set_alias("a", "prod", "1.0.0")
    assert [str(built) for built in bring(source, store, *patterns, **options).created] == expected
    sound(store)


@pytest.mark.parametrize("pattern", ["nothing", "n*", "a@9.9.9", "a:none"])
def test_a_pattern_that_matches_nothing_is_an_error(
    store: Store, source: Store, publish: Publish, pattern: str
):
    publish(source, "a", 1)
    with pytest.raises(NotFound):
        bring(source, store, "a", pattern)
    assert store.names() == []


def test_a_registry_is_not_imported_into_itself(store: Store, publish: Publish):
    publish(store, "a")
    with pytest.raises(UsageError, match="this registry itself"):
        bring(Store.open(store.root), store)
    with pytest.raises(UsageError, match="'all' or 'latest'"):
        bring(store, Store.init(store.root.parent / "other"), versions="newest")


# --- what is here already


def test_a_number_that_belongs_to_other_bytes_is_refused_before_anything_is_linked(
    store: Store, source: Store, publish: Publish
):
    for value, name in enumerate(("a", "b", "c")):
        publish(source, name, value)
    publish(store, "b", 99)
    before = tree(store.root)
    with pytest.raises(
        VersionExists, match=r"b@1\.0\.0 is sha256:.* in .* and sha256:.* in .*nothing was imported"
    ):
        bring(source, store)
    assert tree(store.root) == before
    assert len(bring(source, store, "a", "c").created) == 2


def test_nothing_is_named_where_the_first_of_two_is_damaged(store: Store, source: Store, publish: Publish):
    for value, name in enumerate(("a", "b")):
        publish(source, name, value)
    payload_file(source, "a").unlink()
    with pytest.raises(IntegrityError) as error:
        bring(source, store)
    assert error.value.subject == source.manifest("a").payload.file.blob
    assert store.names() == []
    moved = pull(store, str(source.root))
    assert ([refusal.what for refusal in moved.refused], store.names()) == (["a@1.0.0"], ["b"])


def test_many_clashes_are_told_shortly(store: Store, source: Store, publish: Publish):
    for value in range(12):
        publish(source, f"n{value}", value)
        publish(store, f"n{value}", value + 100)
    with pytest.raises(VersionExists, match="and 4 more"):
        bring(source, store)


def test_versions_of_both_registries_stand_side_by_side(store: Store, source: Store, publish: Publish):
    publish(source, "a", 1, version="1.0.0")
    publish(source, "a", 2, version="3.0.0")
    publish(store, "a", 1, version="1.0.0")
    publish(store, "a", 5, version="2.0.0")
    done = bring(source, store)
    assert [str(built) for built in done.created] == ["a@3.0.0"] and [
        str(entry) for entry in done.existing
    ] == ["a@1.0.0"]
    assert [str(version) for version in store.versions("a")] == ["1.0.0", "2.0.0", "3.0.0"]


def test_a_parent_whose_number_is_taken_here_is_kept_by_its_digest(
    store: Store, family: Store, publish: Publish
):
    publish(store, "digits/mnist.extractor", 77)
    done = bring(family, store, "digits/mnist.head")
    assert [str(built) for built in done.created] == ["digits/mnist.head@1.0.0"]
    assert [str(entry) for entry in done.unnamed] == ["digits/mnist.extractor@1.0.0"]
    parent = store.manifest("digits/mnist.head").parents[0].component
    assert parent == done.unnamed[0].digest and weights(store, store.manifest(parent))
    assert plan(store, alone=True, grace=plan(store).grace * 0).is_empty


def test_a_damaged_blob_here_is_replaced(store: Store, family: Store):
    bring(family, store)
    path = payload_file(store)
    overwrite(path, path.read_bytes()[:-1] + b"?")
    done = bring(family, Store.open(store.root))
    assert done.blobs == 1 and len(list((store.root / "quarantine").iterdir())) == 1
    sound(store)


def test_a_missing_blob_here_is_copied_though_the_version_is_here(store: Store, family: Store):
    bring(family, store)
    payload_file(store).unlink()
    assert bring(family, store).blobs == 1
    sound(store)


# --- tombstones, aliases, results


def test_tombstones_come_along(store: Store, source: Store, publish: Publish):
    publish(source, "a", 1)
    publish(source, "a", 2)
    source.withdraw("a", "1.0.0", "trained on the test set")
    bring(source, store)
    assert store.tombstone("a", "1.0.0") == source.tombstone("a", "1.0.0")
    assert [str(version) for version in store.versions("a")] == ["2.0.0"]


def test_a_version_that_was_withdrawn_there_since_is_withdrawn_here_when_asked_for(
    store: Store, source: Store, publish: Publish
):
    publish(source, "a", 1)
    bring(source, store)
    source.withdraw("a", "1.0.0", "wrong")
    offered = bring(source, store).offered
    assert [(offer.kind, offer.what, offer.detail) for offer in offered] == [
        ("withdrawal", "a@1.0.0", "wrong")
    ]
    assert store.tombstone("a", "1.0.0") is None
    assert bring(source, store, follow_withdrawals=True).offered == []
    tombstone = store.tombstone("a", "1.0.0")
    assert tombstone is not None and tombstone.reason == "wrong"


def test_a_withdrawn_version_whose_weights_were_collected_comes_without_them(
    store: Store, source: Store, publish: Publish
):
    publish(source, "a", 1)
    publish(source, "a", 2)
    source.withdraw("a", "1.0.0", "wrong")
    past = time.time() - 10**6
    for path in source.root.rglob("*"):
        os.utime(path, (past, past))
    assert len(plan(source, withdrawn=True).apply().moved) == 1
    for path in (source.root / "trash").iterdir():
        path.unlink()
    assert len(bring(source, store).created) == 2
    assert weights(store, store.manifest("a"))
    assert store.manifest(f"a@{source.references.digest('a', source.references.versions('a')[0])}")


def test_aliases_come_along_unless_refused(store: Store, family: Store):
    bring(family, store, aliases=False)
    assert store.aliases("digits/mnist.head") == {}
    done = bring(family, store, aliases=True)
    assert done.aliases == ["digits/mnist.head:prod"]
    assert store.aliases("digits/mnist.head") == {"prod": "1.0.0"}
    assert bring(family, store, aliases=True).aliases == []


def test_an_alias_of_a_version_that_does_not_come_stays_behind(store: Store, source: Store, publish: Publish):
    publish(source, "a", 1)
    publish(source, "a", 2)
    source.set_alias("a", "old", "1.0.0")
    assert bring(source, store, versions="latest", aliases=True).aliases == []
    assert store.aliases("a") == {}


def test_results_can_be_left_behind(store: Store, family: Store):
    done = bring(family, store, evidence=False)
    assert (done.results, done.blobs) == (0, 5) and not list((store.root / "evidence").iterdir())


def test_results_of_pairs_of_which_only_one_part_comes_stay_behind(store: Store, family: Store):
    done = bring(family, store, "digits/mnist.extractor")
    assert done.results == 0 and not list((store.root / "evidence").iterdir())


def test_what_a_result_refers_to_comes_along(store: Store, family: Store):
    pair = [
        function_digest(family.manifest(name)) for name in ("digits/mnist.extractor", "digits/mnist.head")
    ]
    log = family.put_blob(b"a long log")
    family.evidence.record(*pair, {"metric": "speed"}, dumps({"log": {"blob": log.blob, "bytes": log.bytes}}))
    assert bring(family, store).results == 2
    assert store.read_blob(log.blob) == b"a long log"


def test_what_a_record_refers_to_comes_along(store: Store, source: Store, publish: Publish):
    log = source.put_blob(b"a long log")
    run = source.put_blob(dumps({"log": {"blob": log.blob}, "gone": {"blob": digest(b"never put")}}))
    publish(source, "a", training={"run": {"blob": run.blob, "bytes": run.bytes}})
    bring(source, store)
    assert store.read_blob(log.blob) == b"a long log"


# --- weights


def test_large_weights_are_streamed(
    store: Store,
    source: Store,
    manifest_of: Callable[..., Any],
    make_file: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
):
    size = 2_400_000
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    data = make_file({"weight": entry}, bytes(range(256)) * (size // 256))
    source.publish("a", manifest_of(Payload(source.put_blob(data), tensor_digest(data), 1, size)))
    monkeypatch.setattr(durable, "CHUNK", 2**16)
    read: list[int] = []
    original = os.read

    def counting(descriptor: int, size: int) -> bytes:
        piece = original(descriptor, size)
        read.append(len(piece))
        return piece

    monkeypatch.setattr(os, "read", counting)
    assert bring(source, store).bytes > size
    assert max(read) == 2**16 and sum(read) >= size
    assert weights(store, store.manifest("a")) == data


@pytest.mark.case("C2")
def test_what_is_copied_has_the_rights_of_its_new_registry(tmp_path: Path, family: Store):
    store = Store.init(tmp_path / "shared")
    store.root.chmod(0o2770)
    for path in family.objects.path(family.resolve("digits/mnist.head").digest or "").parent.iterdir():
        path.chmod(0o777)
    bring(family, store)
    modes = {
        stat.S_IMODE(path.stat().st_mode) for path in (store.root / "blobs").rglob("*") if path.is_file()
    }
    assert modes == {0o440}


# --- a source that lies


def flipped(source: Store) -> type[Exception]:
    path = payload_file(source)
    overwrite(path, path.read_bytes()[:-1] + b"?")
    return IntegrityError


def truncated(source: Store) -> type[Exception]:
    path = payload_file(source)
    overwrite(path, path.read_bytes()[:-1])
    return IntegrityError


def grown(source: Store) -> type[Exception]:
    path = payload_file(source)
    overwrite(path, path.read_bytes() + b"0")
    return IntegrityError


def missing(source: Store) -> type[Exception]:
    payload_file(source).unlink()
    return IntegrityError


def pipe(source: Store) -> type[Exception]:
    path = payload_file(source)
    path.unlink()
    os.mkfifo(path)
    return IntegrityError


def link_out(source: Store) -> type[Exception]:
    path = payload_file(source)
    path.rename(source.root.parent / "secret")
    path.symlink_to(source.root.parent / "secret")
    return IntegrityError


def linked_shard(source: Store) -> type[Exception]:
    folder = payload_file(source).parent
    folder.rename(source.root.parent / "elsewhere")
    folder.symlink_to(source.root.parent / "elsewhere")
    return IntegrityError


def damaged_manifest(source: Store) -> type[Exception]:
    path = source.objects.path(str(source.resolve("digits/mnist.head").digest))
    overwrite(path, path.read_bytes().replace(b"head", b"haed"))
    return IntegrityError


def retold(source: Store, change: Callable[[bytes], bytes]) -> None:
    """Let the head's version point at another manifest, whose digest is right."""
    manifest = to_bytes(source.manifest("digits/mnist.head"))
    edge = source.put_blob(change(manifest))
    overwrite(source.root / "refs/digits/mnist.head/@versions/1.0.0", f"{edge.blob}\n".encode())


def manifest_with_a_key_twice(source: Store) -> type[Exception]:
    retold(source, lambda data: data.replace(b'{"about"', b'{"schema":1,"about"', 1))
    return FormatError


def manifest_of_a_newer_schema(source: Store) -> type[Exception]:
    retold(source, lambda data: data.replace(b'"schema":1', b'"schema":2'))
    return FormatError


def manifest_that_promises_other_tensors(source: Store) -> type[Exception]:
    tensors = source.manifest("digits/mnist.head").payload.tensors.encode()
    retold(source, lambda data: data.replace(tensors, b"tensors:sha256:" + b"0" * 64))
    return IntegrityError


def manifest_with_another_size(source: Store) -> type[Exception]:
    size = source.manifest("digits/mnist.head").payload.file.bytes
    retold(source, lambda data: data.replace(f'"bytes":{size}}}'.encode(), b'"bytes":1}'))
    return IntegrityError


def weights_that_are_none(source: Store) -> type[Exception]:
    before = source.manifest("digits/mnist.head").payload.file
    edge = source.put_blob(b"\x80\x04" + b"pickle" * 20)
    retold(
        source,
        lambda data: data.replace(before.blob.encode(), edge.blob.encode()).replace(
            f'"bytes":{before.bytes}}},"parameters"'.encode(), f'"bytes":{edge.bytes}}},"parameters"'.encode()
        ),
    )
    return FormatError


def damaged_version(source: Store) -> type[Exception]:
    overwrite(source.root / "refs/digits/mnist.head/@versions/1.0.0", b"sha256:../../../../etc/passwd\n")
    return IntegrityError


def damaged_result(source: Store) -> type[Exception]:
    (pointer,) = (path for path in (source.root / "evidence").rglob("*") if path.is_file())
    overwrite(source.objects.path(f"sha256:{pointer.name}"), b"{}")
    return IntegrityError


def damaged_pointer(source: Store) -> type[Exception]:
    (pointer,) = (path for path in (source.root / "evidence").rglob("*") if path.is_file())
    overwrite(pointer, b"sha256:" + b"0" * 64 + b"\n")
    return IntegrityError


LIES = [
    flipped,
    truncated,
    grown,
    missing,
    pipe,
    link_out,
    linked_shard,
    damaged_manifest,
    manifest_with_a_key_twice,
    manifest_of_a_newer_schema,
    manifest_that_promises_other_tensors,
    manifest_with_another_size,
    weights_that_are_none,
    damaged_version,
    damaged_result,
    damaged_pointer,
]


@pytest.mark.case("A9", "C1", "E1")
@pytest.mark.parametrize("lie", LIES, ids=lambda item: item.__name__)
def test_what_the_source_lies_about_is_refused_and_not_named_here(
    store: Store, family: Store, lie: Callable[[Store], type[Exception]]
):
    expected = lie(family)
    remote = {str(path): path.lstat().st_size for path in family.root.rglob("*") if not path.is_dir()}
    with pytest.raises(expected):
        bring(Store.open(family.root), store)
    names = (
        ["digits/mnist.extractor", "digits/mnist.head"] if lie in (damaged_result, damaged_pointer) else []
    )
    assert store.names() == names
    assert {str(path): path.lstat().st_size for path in family.root.rglob("*") if not path.is_dir()} == remote
    sound(store)


@pytest.mark.parametrize("lie", [flipped, missing, damaged_manifest], ids=lambda item: item.__name__)
def test_sound_components_of_a_damaged_source_can_be_imported(
    store: Store, family: Store, lie: Callable[[Store], type[Exception]]
):
    lie(family)
    assert [str(built) for built in bring(family, store, "digits/mnist.extractor").created] == [
        "digits/mnist.extractor@1.0.0"
    ]
    sound(store)


def test_bytes_that_a_collection_took_out_of_the_source_are_found(store: Store, family: Store):
    path = payload_file(family)
    path.rename(family.root / "trash" / f"{path.name}-1-{'a' * 16}")
    assert len(bring(family, store).created) == 2
    assert (family.root / "trash" / f"{path.name}-1-{'a' * 16}").exists()
    sound(store)


@pytest.mark.case("C3")
def test_a_sparse_file_of_a_terabyte_is_refused_before_it_is_read(store: Store, family: Store):
    path = payload_file(family)
    path.chmod(0o644)
    os.truncate(path, 2**40)
    with pytest.raises(IntegrityError, match="got 1099511627776"):
        bring(family, store)


def test_a_manifest_longer_than_any_document_is_refused(store: Store, family: Store):
    path = family.objects.path(str(family.resolve("digits/mnist.head").digest))
    path.chmod(0o644)
    os.truncate(path, 2**40)
    with pytest.raises(IntegrityError, match="bytes, got more"):
        bring(family, store)


# --- failures


def test_a_number_that_is_taken_at_the_last_moment_is_refused(
    store: Store, source: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
):
    publish(source, "a", 1)
    other = Store.open(store.root)

    def step(operation: str, path: Path) -> None:
        if operation == "link" and path.name == "1.0.0":
            monkeypatch.setattr(durable, "step", lambda operation, path: None)
            publish(other, "a", 99)

    monkeypatch.setattr(durable, "step", step)
    with pytest.raises(VersionExists, match="published concurrently"):
        bring(source, store)
    assert store.read_blob(store.manifest("a").payload.file.blob)


def test_an_import_that_was_cut_off_goes_on_where_it_was(
    store: Store, source: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
):
    for value in range(5):
        publish(source, "a", value)
    left = 40

    def step(operation: str, path: Path) -> None:
        nonlocal left
        left -= operation != "unlink"
        if left == 0 and operation != "unlink":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(durable, "step", step)
    with pytest.raises(EnvironmentFailure, match="the disk is full"):
        bring(source, store, jobs=1)
    copied = len(blobs_in(store))
    assert 0 < copied < 10 and store.names() == []
    assert bring(source, store).blobs == 10 - copied
    sound(store)


def test_progress_is_reported(store: Store, family: Store):
    result: list[tuple[int, int, str]] = []
    bring(family, store, progress=lambda *args: result.append(args))
    assert all(0 <= done <= total for done, total, _ in result)
    assert {"reading manifests", "creating versions"} <= {what for _, _, what in result}
    assert any(what.endswith(" MB") for _, _, what in result)


def test_weights_without_tensors_are_copied(
    store: Store, source: Store, manifest_of: Callable[..., Any], make_file: Callable[..., bytes]
):
    data = make_file({})
    source.publish("empty", manifest_of(Payload(source.put_blob(data), tensor_digest(data), 0, 0)))
    assert len(bring(source, store).created) == 1
