"""push, pull and clone: what is moved is the same, byte by byte; what is missing moves, what lies is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import fsspec
import pytest
from far import EXTRACTOR, HEAD, Fault, content, signature, write
from handmade import blobs_in

from compatkit.components.registry import Registry
from compatkit.contracts.manifest import Payload, edges
from compatkit.errors import (
    CompatkitError,
    EnvironmentFailure,
    FormatError,
    Incomplete,
    IntegrityError,
    LayoutError,
    MalformedSignature,
    NotFound,
    OtherDigest,
    UsageError,
    VersionExists,
)
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry import disk as durable
from compatkit.registry.blobs import blob_path
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.check import examine
from compatkit.registry.remotes import files
from compatkit.registry.remotes import remote as far_side
from compatkit.registry.remotes.pushpull import pull, push
from compatkit.registry.remotes.read_ahead import read_ahead
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import tensor_digest

Publish = Callable[..., Any]
FOLLOW = TransferSettings().following()


@pytest.fixture(params=["memory", "folder"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address of each kind: an object store, and a folder."""
    if request.param == "memory":
        return request.getfixturevalue("memory")
    return str(tmp_path / "far")


def test_what_is_pushed_and_pulled_is_the_same_byte_by_byte(store: Store, source: Store, remote: str):
    sent = push(source, remote).check()
    assert sorted(map(str, sent.created)) == [f"{EXTRACTOR}@1.0.0", f"{HEAD}@1.0.0", f"{HEAD}@2.0.0"]
    pulled = pull(store, remote).check()
    assert content(store.root) == content(source.root)
    assert (pulled.blobs, pulled.bytes) == (sent.blobs, sent.bytes)
    assert (pulled.results, pulled.signatures) == (1, 1)
    assert sorted(pulled.aliases) == [f"{HEAD}:old", f"{HEAD}:prod"]
    assert [(str(withdrawal.reference), withdrawal.reason) for withdrawal in pulled.withdrawn] == [
        (f"{HEAD}@1.0.0", "trained on the test set")
    ]
    assert examine(store).sound


def test_nothing_moves_twice(store: Store, source: Store, remote: str):
    push(source, remote)
    pull(store, remote)
    for again in (push(source, remote), pull(store, remote)):
        assert (again.created, again.blobs, again.results, again.signatures) == ([], 0, 0, 0)
        assert (again.aliases, again.withdrawn, again.refused) == ([], [], [])
        assert len(again.existing) == 3


# --- what is asked for


@pytest.mark.parametrize(
    ("patterns", "versions", "expected"),
    [
        ([EXTRACTOR], "all", [f"{EXTRACTOR}@1.0.0"]),
        (["digits/*"], "latest", [f"{EXTRACTOR}@1.0.0", f"{HEAD}@2.0.0"]),
        ([f"{HEAD}:prod"], "all", [f"{EXTRACTOR}@1.0.0", f"{HEAD}@2.0.0"]),
        (["*.head@^2"], "all", [f"{EXTRACTOR}@1.0.0", f"{HEAD}@2.0.0"]),
    ],
)
def test_patterns_say_what_moves_and_parents_come_along(
    tmp_path: Path, source: Store, memory: str, patterns: list[str], versions: Any, expected: list[str]
):
    push(source, memory)
    settings = TransferSettings(versions=versions)
    for name, move in (
        ("sent", lambda to: push(source, str(to.root), patterns, settings=settings)),
        ("came", lambda to: pull(to, memory, patterns, settings=settings)),
    ):
        target = Store.init(tmp_path / name)
        assert sorted(map(str, move(target).check().created)) == expected
        assert examine(target).sound


@pytest.mark.parametrize("pattern", ["nothing", "n*", f"{HEAD}@9.9.9", f"{HEAD}:none", f"{HEAD}@1.0.0"])
def test_a_pattern_that_matches_nothing_is_an_error(store: Store, source: Store, memory: str, pattern: str):
    push(source, memory)
    for move in (lambda: push(source, f"{memory}-fresh", [pattern]), lambda: pull(store, memory, [pattern])):
        with pytest.raises(NotFound) as error:
            move()
        assert "/remote-" not in str(error.value), "a scratch folder is told"
    assert store.names() == [] and not fsspec.filesystem("memory").exists(f"{memory}-fresh")


def test_what_is_near_is_named_where_nothing_matches(store: Store, source: Store, memory: str):
    push(source, memory)
    with pytest.raises(NotFound, match=f"perhaps {HEAD}"):
        pull(store, memory, ["digits/mnist.haed"])


def test_a_plan_says_what_would_move_and_moves_nothing(tmp_path: Path, source: Store, remote: str):
    planned = push(source, remote, settings=TransferSettings(dry_run=True))
    assert not (tmp_path / "far").exists() and not fsspec.filesystem("memory").exists(remote)
    sent = push(source, remote)
    assert (planned.planned, planned.created) == (True, sent.created)
    results = len(sent.copied) - len(
        planned.copied
    )  # what was measured is looked for when the parts are there
    assert results == sent.results == 1
    assert {item.digest for item in planned.copied} <= {item.digest for item in sent.copied}
    target = Store.init(tmp_path / "here")
    before = content(target.root)
    wanted = pull(target, remote, settings=TransferSettings(dry_run=True))
    assert (wanted.bytes, sorted(map(str, wanted.created))) == (planned.bytes, sorted(map(str, sent.created)))
    assert content(target.root) == before and not list((target.root / "tmp").iterdir())


def test_results_and_aliases_can_be_left_behind(store: Store, source: Store, memory: str):
    push(source, memory)
    pulled = pull(store, memory, settings=TransferSettings(aliases=False, evidence=False))
    assert (pulled.results, pulled.aliases) == (0, [])
    assert not [path for path in content(store.root) if path.startswith("evidence") or "/@log/" in path]


def test_an_empty_registry_moves_as_nothing(tmp_path: Path, store: Store, remote: str):
    assert push(store, remote).check().created == []
    pulled = pull(Store.init(tmp_path / "other"), remote).check()
    assert pulled.created == [] and [note for note in pulled.notes if "no components" in note]
    with pytest.raises(NotFound, match="is empty"):
        pull(store, remote, ["digits/*"]) if remote != str(store.root) else None


def test_progress_is_told(store: Store, source: Store, memory: str):
    result: list[tuple[int, int, str]] = []
    push(source, memory)
    pull(store, memory, settings=TransferSettings(progress=lambda *args: result.append(args)))
    assert all(0 <= done <= total for done, total, _ in result)
    assert {"reading manifests", "creating versions", "looking for results"} <= {
        what for _, _, what in result
    }
    assert any(what.endswith(" MB") for _, _, what in result)


# --- addresses


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("", UsageError, "an address such as s3://"),
        ("nonsense://x", UsageError, "nonsense:// is not an address"),
        ("simplecache::memory://x", UsageError, "chains file systems"),
        ("memory://nobody/is/here", LayoutError, "has no compatkit.json"),
        ("hf://one", UsageError, "hf://datasets/USER/NAME"),
        ("s3://bucket/x", UsageError, "unexpected keyword"),
    ],
)
def test_addresses_that_cannot_be_used_are_told(
    store: Store, address: str, error: type[Exception], message: str
):
    options = {"surprise": 1} if address.startswith("s3:") else None
    with pytest.raises(error, match=message):
        pull(store, address, options=options)


def test_passwords_in_an_address_are_not_told(store: Store, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(LayoutError) as error:
        pull(store, "memory://me:secret@host/parts")
    assert "secret" not in str(error.value) and "memory://host/parts" in str(error.value)


def test_a_registry_is_no_remote_of_itself(store: Store):
    for move in (push, pull):
        with pytest.raises(UsageError, match="is this registry itself"):
            move(store, f"file://{store.root}")


def test_a_folder_with_other_files_is_not_made_a_registry(tmp_path: Path, source: Store):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").write_bytes(b"jpg")
    with pytest.raises(LayoutError, match="other files"):
        push(source, str(tmp_path / "photos"))


@pytest.mark.parametrize("key", ["min_reader", "min_writer"])
def test_a_remote_of_a_newer_layout_is_refused(store: Store, source: Store, memory: str, key: str):
    push(source, memory)
    system = fsspec.filesystem("memory")
    marker = system.cat_file(f"{memory}/compatkit.json").replace(f'"{key}":1'.encode(), f'"{key}":2'.encode())
    system.pipe_file(f"{memory}/compatkit.json", marker)
    with pytest.raises(LayoutError, match="Upgrade compatkit"):
        (pull if key == "min_reader" else push)(store if key == "min_reader" else source, memory)


# --- both sides changed


def test_a_differing_version_is_never_overwritten_and_the_rest_moves(
    tmp_path: Path, store: Store, source: Store, memory: str, publish: Publish
):
    push(source, memory)
    mine = publish(store, EXTRACTOR, 77)
    theirs = source.resolve(EXTRACTOR)
    pulled = pull(store, memory)
    with pytest.raises(
        Incomplete, match=f"1 refused.*{mine.digest} in .*{theirs.digest} in memory://"
    ) as error:
        pulled.check()
    assert isinstance(error.value.errors[0], VersionExists) and error.value.exit_code == 2
    assert [refusal.what for refusal in pulled.refused] == [
        f"{EXTRACTOR}@1.0.0"
    ] and error.value.subject is pulled
    assert [str(reference) for reference in pulled.created] == [f"{HEAD}@1.0.0", f"{HEAD}@2.0.0"]
    assert store.resolve(EXTRACTOR) == mine
    assert store.manifest(str(theirs.digest)), "the heads' own extractor came, without a name"
    sent = push(store, memory)
    assert [(refusal.what, type(refusal.error)) for refusal in sent.refused] == [
        (f"{EXTRACTOR}@1.0.0", VersionExists)
    ]
    assert pull(Store.init(tmp_path / "third"), memory).check().created and examine(store).sound


def test_a_parent_whose_number_is_taken_comes_without_it(
    store: Store, source: Store, memory: str, publish: Publish
):
    push(source, memory)
    publish(store, EXTRACTOR, 77)
    pulled = pull(store, memory, [HEAD]).check()
    assert [str(reference) for reference in pulled.unnamed] == [f"{EXTRACTOR}@1.0.0"]
    assert examine(store).sound


def test_a_version_that_was_withdrawn_there_is_offered_and_withdrawn_here_when_asked_for(
    store: Store, source: Store, memory: str
):
    push(source, memory)
    pull(store, memory)
    source.withdraw(EXTRACTOR, "1.0.0", "a bug")
    assert [str(withdrawal.reference) for withdrawal in push(source, memory).withdrawn] == [
        f"{EXTRACTOR}@1.0.0"
    ]
    offered = pull(store, memory).offered
    assert [(offer.kind, offer.what, offer.detail) for offer in offered] == [
        ("withdrawal", f"{EXTRACTOR}@1.0.0", "a bug")
    ]
    assert store.tombstone(EXTRACTOR, "1.0.0") is None
    pulled = pull(store, memory, settings=FOLLOW)
    assert [(str(withdrawal.reference), withdrawal.reason) for withdrawal in pulled.withdrawn] == [
        (f"{EXTRACTOR}@1.0.0", "a bug")
    ]
    assert store.tombstone(EXTRACTOR, "1.0.0") == source.tombstone(EXTRACTOR, "1.0.0")


def test_whoever_pushes_what_was_withdrawn_there_is_told(store: Store, source: Store, memory: str):
    push(source, memory)
    pull(store, memory)
    source.withdraw(EXTRACTOR, "1.0.0", "a bug")
    push(source, memory)
    sent = push(store, memory)
    assert [(str(withdrawal.reference), withdrawal.reason) for withdrawal in sent.withdrawn] == [
        (f"{EXTRACTOR}@1.0.0", "a bug")
    ]
    assert store.tombstone(EXTRACTOR, "1.0.0") is None


def test_an_alias_follows_where_its_log_goes_on_and_stays_where_both_moved_it(
    tmp_path: Path, store: Store, source: Store, remote: str
):
    push(source, remote)
    pull(store, remote)
    store.set_alias(EXTRACTOR, "best", "1.0.0")
    store.set_alias(HEAD, "prod", None)
    assert sorted(push(store, remote).aliases) == [f"{EXTRACTOR}:best", f"{HEAD}:prod"]
    pulled = pull(source, remote)
    assert pulled.aliases == [f"{EXTRACTOR}:best"] and source.aliases(HEAD) == {"prod": "2.0.0"}
    assert [(offer.what, offer.detail) for offer in pulled.offered] == [(f"{HEAD}:prod", "2.0.0 -> removed")]
    assert pull(source, remote, settings=FOLLOW).aliases == [f"{HEAD}:prod"]
    assert source.aliases(HEAD) == {} and content(source.root) == content(store.root)
    source.set_alias(HEAD, "prod", "2.0.0")
    store.set_alias(HEAD, "best", "2.0.0")
    source.set_alias(HEAD, "best", "2.0.0")
    push(source, remote)
    here = store.alias_log(HEAD, "best")
    pulled = pull(store, remote, settings=FOLLOW)
    assert pulled.aliases == [f"{HEAD}:prod"]
    if here != source.alias_log(HEAD, "best"):  # within a second, both moves are the same
        assert [item.partition(" is ")[0] for item in pulled.diverged] == [f"{HEAD}:best"]
    assert store.alias_log(HEAD, "best") == here


def test_aliases_that_both_sides_moved_stay_and_are_told(store: Store, source: Store, memory: str):
    push(source, memory)
    pull(store, memory)
    store.set_alias(HEAD, "prod", None)
    source.set_alias(EXTRACTOR, "best", "1.0.0")
    write(
        source,
        f"refs/{HEAD}/@log/prod/3",
        b'{"from":"2.0.0","time":"2020-01-01T00:00:00+00:00","to":"2.0.0"}\n',
    )
    push(source, memory)
    pulled = pull(store, memory).check()
    assert pulled.aliases == [f"{EXTRACTOR}:best"]
    assert pulled.diverged == [f"{HEAD}:prod is 2.0.0 in {memory} and removed in {store.root}"]
    assert store.aliases(HEAD) == {}


def test_an_alias_of_a_version_that_does_not_come_stays_behind(store: Store, source: Store, memory: str):
    source.set_alias(HEAD, "prod", "2.0.0")
    push(source, memory)
    pulled = pull(store, memory, [EXTRACTOR]).check()
    assert pulled.aliases == [] and store.aliases(EXTRACTOR) == {}
    other = fsspec.filesystem("memory").cat_file(f"{memory}/refs/{HEAD}/@aliases/prod")
    assert other == b"2.0.0 2\n"


def test_policies_stay_where_they_were_set(store: Store, source: Store, memory: str):
    push(source, memory).check()
    pull(store, memory).check()
    assert [item.scope for item in source.policies.all()] == ["digits/*"]
    assert store.policies.all() == [] and not fsspec.filesystem("memory").find(f"{memory}/policies")


def test_a_pusher_who_is_slower_loses_and_overwrites_nothing(
    tmp_path: Path, source: Store, memory: str, publish: Publish, monkeypatch: pytest.MonkeyPatch
):
    rival = Store.init(tmp_path / "rival")
    theirs = publish(rival, HEAD, 50, version="2.0.0")
    push(Store.init(tmp_path / "nothing"), memory)

    def step(operation: str, path: str) -> None:
        if operation == "create" and path.endswith(f"{HEAD}/@versions/2.0.0"):
            monkeypatch.setattr(files, "step", lambda operation, path: None)
            push(rival, memory).check()

    monkeypatch.setattr(files, "step", step)
    sent = push(source, memory)
    assert [(refusal.what, type(refusal.error)) for refusal in sent.refused] == [
        (f"{HEAD}@2.0.0", VersionExists)
    ]
    assert f"{theirs.digest} there" in str(sent.refused[0].error)
    assert sorted(map(str, sent.created)) == [f"{EXTRACTOR}@1.0.0", f"{HEAD}@1.0.0"]
    here = Store.init(tmp_path / "here")
    pull(here, memory).check()
    assert here.resolve(f"{HEAD}@2.0.0") == theirs and examine(here).sound


# --- signatures


def test_who_accepts_is_asked_before_anything_of_a_component_comes(store: Store, source: Store, memory: str):
    push(source, memory)
    requests: dict[str, list[bytes]] = {}

    def accept(digest: str, signatures: Any, name: str) -> None:
        assert not blobs_in(store)
        requests[f"{name} {digest}"] = list(signatures)
        if not signatures:
            raise CompatkitError(f"{name} has no signature")

    pulled = pull(store, memory, settings=TransferSettings(accept=accept))
    head = source.resolve(HEAD)
    assert requests.pop(f"{HEAD}@2.0.0 {head.digest}") == [signature(str(head.digest))]
    assert set(map(len, requests.values())) == {0}
    assert [str(reference) for reference in pulled.created] == [f"{HEAD}@2.0.0"]
    assert sorted(refusal.what for refusal in pulled.refused) == [f"{EXTRACTOR}@1.0.0", f"{HEAD}@1.0.0"]
    assert [str(reference) for reference in pulled.unnamed] == [f"{EXTRACTOR}@1.0.0"], (
        "its digest stands in what was accepted"
    )
    assert store.names() == [HEAD] and examine(store).sound


# --- interrupted


def reachable(system: Any, root: str) -> set[str]:
    """Return the digests that the versions in a remote reach, and fail where one is not there."""
    names = [path for path in system.find(root) if "/@versions/" in path]
    ahead, seen = [system.cat_file(path).decode().split()[0] for path in names], set[str]()
    while ahead:
        digest = ahead.pop()
        if digest not in seen:
            seen.add(digest)
            data = system.cat_file(f"{root}/{blob_path(digest)}")
            assert digest_of(data) == digest
            ahead += edges(json.loads(data)) if data.startswith(b"{") else []
    return seen


@pytest.mark.parametrize("stride", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_push_that_is_cut_off_anywhere_leaves_nothing_that_dangles_and_goes_on(
    source: Store, memory: str, monkeypatch: pytest.MonkeyPatch, stride: int
):
    system, whole = fsspec.filesystem("memory"), content(source.root)
    fault, at = Fault(monkeypatch, at=0), 0
    while True:
        remote = f"{memory}/{at}"
        fault.calls.clear()
        fault.at = at
        try:
            push(source, remote).check()
            break
        except EnvironmentFailure as error:
            assert "Repeat the command" in str(error)
        reachable(system, remote)
        present = {path.removeprefix(f"{remote.removeprefix('memory:/')}/") for path in system.find(remote)}
        fault.mend()
        push(source, remote).check()
        again = present & set(fault.written(("put", "upload")))
        assert not [path for path in again if path.startswith("blobs/")], "moved twice"
        files = {path: system.cat_file(f"{remote}/{path}") for path in whole}
        assert files == whole
        at += stride
    assert at > 40


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_pull_that_is_cut_off_anywhere_names_nothing_that_is_not_whole_and_goes_on(
    tmp_path: Path, source: Store, memory: str, monkeypatch: pytest.MonkeyPatch, stride: int
):
    push(source, memory)
    whole = content(source.root)
    fault, at = Fault(monkeypatch, at=0), 0
    while True:
        here = Store.init(tmp_path / f"here{at}")
        fault.calls.clear()
        fault.at = at
        try:
            pull(here, memory).check()
            break
        except EnvironmentFailure:
            digests = {path for path in content(here.root) if path.startswith("blobs/")}
        for name, version in here.references.each():
            assert here.read_blob(
                here.manifest(f"{name}@{here.references.digest(name, version)}").payload.file.blob
            )
        fault.mend()
        pull(here, memory).check()
        assert not digests & {path for operation, path in fault.calls if operation == "read"}, "moved twice"
        assert content(here.root) == whole
        shutil.rmtree(here.root)
        at += stride
    assert at > 20


@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_a_disk_that_is_full_at_any_step_of_a_pull_leaves_nothing_half(
    tmp_path: Path, source: Store, memory: str, monkeypatch: pytest.MonkeyPatch, stride: int
):
    push(source, memory)
    whole, at, count = content(source.root), 0, 0

    def step(operation: str, path: Path) -> None:
        nonlocal count
        count += 1
        if 0 <= at < count and operation != "unlink":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    while True:
        here, count = Store.init(tmp_path / f"here{at}"), 0
        monkeypatch.setattr(durable, "step", step)
        try:
            pull(here, memory, settings=TransferSettings(jobs=1)).check()
            break
        except EnvironmentFailure as error:
            assert "the disk is full" in str(error)
        monkeypatch.setattr(durable, "step", lambda operation, path: None)
        assert not list((here.root / "tmp").iterdir())
        for name, version in here.references.each():
            assert here.read_blob(
                here.manifest(f"{name}@{here.references.digest(name, version)}").payload.file.blob
            )
        pull(here, memory).check()
        assert content(here.root) == whole
        shutil.rmtree(here.root)
        at += stride
    assert at > 100


def large(store: Store, manifest_of: Callable[..., Any], make_file: Callable[..., bytes], size: int) -> Any:
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    data = make_file({"weight": entry}, bytes(range(256)) * (size // 256))
    return store.publish("large", manifest_of(Payload(store.put_blob(data), tensor_digest(data), 1, size)))


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let blobs come in small pieces, and be uploaded from their files."""
    monkeypatch.setattr(durable, "CHUNK", 2**16)
    monkeypatch.setattr(far_side, "LARGE_BLOB", 2**16)
    return 2**16


def test_a_large_blob_that_is_cut_off_leaves_nothing_and_comes_anew(
    store: Store,
    source: Store,
    remote: str,
    manifest_of: Callable[..., Any],
    make_file: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
    pieces: int,
):
    if "://" not in remote:
        pytest.skip("a folder is not read through fsspec")
    part = large(source, manifest_of, make_file, 20 * pieces)
    payload = source.manifest("large").payload.file
    push(source, remote, ["large"])
    read = files.Files.read

    def cut(self: Any, path: str, start: int, count: int) -> bytes | None:
        if path == blob_path(payload.blob) and start >= 7 * pieces:
            raise EnvironmentFailure("the network is gone")
        return read(self, path, start, count)

    monkeypatch.setattr(files.Files, "read", cut)
    with pytest.raises(EnvironmentFailure, match="network is gone"):
        pull(store, remote, ["large"])
    assert store.names() == [] and not list((store.root / "tmp").iterdir())
    monkeypatch.setattr(files.Files, "read", read)
    assert pull(store, remote, ["large"]).check().created == [part]
    assert not list((store.root / "tmp").iterdir())
    assert store.read_blob(payload.blob, verify="always") == source.read_blob(payload.blob)


def test_a_full_disk_gets_its_room_back(
    store: Store,
    source: Store,
    memory: str,
    manifest_of: Callable[..., Any],
    make_file: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
    pieces: int,
):
    large(source, manifest_of, make_file, 20 * pieces)
    push(source, memory, ["large"])
    left = 9

    def step(operation: str, path: Path) -> None:
        nonlocal left
        left -= operation == "write"
        if left < 0 and operation == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(durable, "step", step)
    with pytest.raises(EnvironmentFailure, match="the disk is full"):
        pull(store, memory, ["large"])
    assert not list((store.root / "tmp").iterdir())


# --- rights


def test_a_remote_that_cannot_be_written_can_be_pulled_from_and_not_pushed_to(
    store: Store, source: Store, memory: str, publish: Publish, monkeypatch: pytest.MonkeyPatch
):
    push(source, memory)

    def refuse(operation: str, path: str) -> None:
        if operation in ("put", "upload", "create", "remove", "rename"):
            raise PermissionError(errno.EACCES, "Access Denied", path)

    monkeypatch.setattr(files, "step", refuse)
    assert len(pull(store, memory).check().created) == 3
    publish(source, "new", 9)
    with pytest.raises(EnvironmentFailure, match="no permission; check the credentials"):
        push(source, memory)


# --- a remote that lies


def overwrite(
    path: Callable[[Store], str], change: Callable[[bytes], bytes]
) -> Callable[[Any, str, Store], None]:
    def lie(system: Any, root: str, source: Store) -> None:
        file = f"{root}/{path(source)}"
        system.pipe_file(file, change(system.cat_file(file)))

    return lie


def weights(source: Store) -> str:
    return blob_path(source.manifest(HEAD).payload.file.blob)


def document(source: Store) -> str:
    return blob_path(str(source.resolve(HEAD).digest))


def under(pattern: str) -> Callable[[Store], str]:
    return lambda source: next(path for path in sorted(content(source.root)) if fnmatchcase(path, pattern))


def result(source: Store) -> str:
    return blob_path(f"sha256:{under('evidence/*')(source).rpartition('/')[2]}")


def missing(system: Any, root: str, source: Store) -> None:
    system.rm_file(f"{root}/{weights(source)}")


def retold(change: Callable[[bytes, Store], bytes]) -> Callable[[Any, str, Store], None]:
    """Let the head's version point at another manifest, whose digest is right."""

    def lie(system: Any, root: str, source: Store) -> None:
        data = change(source.read_blob(str(source.resolve(HEAD).digest)), source)
        system.pipe_file(f"{root}/{blob_path(digest_of(data))}", data)
        system.pipe_file(f"{root}/refs/{HEAD}/@versions/2.0.0", f"{digest_of(data)}\n".encode())

    return lie


def other_tensors(data: bytes, source: Store) -> bytes:
    return data.replace(source.manifest(HEAD).payload.tensors.encode(), b"tensors:sha256:" + b"0" * 64)


def other_size(data: bytes, source: Store) -> bytes:
    return data.replace(f'"bytes":{source.manifest(HEAD).payload.file.bytes}}}'.encode(), b'"bytes":1}')


HEAD_2, SIGNATURE, SIGNED = f"{HEAD}@2.0.0", "signatures/*", "signatures/"
VERSION = under(f"refs/{HEAD}/@versions/2.0.0")
LIES: dict[str, tuple[Callable[[Any, str, Store], None], str, type[Exception]]] = {
    "weights flipped": (overwrite(weights, lambda data: data[:-1] + b"?"), HEAD_2, IntegrityError),
    "weights cut": (overwrite(weights, lambda data: data[:-1]), HEAD_2, IntegrityError),
    "weights grown": (overwrite(weights, lambda data: data + b"0"), HEAD_2, IntegrityError),
    "weights empty": (overwrite(weights, lambda data: b""), HEAD_2, IntegrityError),
    "weights missing": (missing, HEAD_2, IntegrityError),
    "manifest flipped": (
        overwrite(document, lambda data: data.replace(b"head", b"haed")),
        HEAD_2,
        IntegrityError,
    ),
    "manifest empty": (overwrite(document, lambda data: b""), HEAD_2, IntegrityError),
    "manifest long": (overwrite(document, lambda data: data + b" " * 2**21), HEAD_2, IntegrityError),
    "key twice": (
        retold(lambda data, source: data.replace(b'{"about"', b'{"schema":1,"about"', 1)),
        HEAD_2,
        FormatError,
    ),
    "newer schema": (
        retold(lambda data, source: data.replace(b'"schema":1', b'"schema":2')),
        HEAD_2,
        FormatError,
    ),
    "other tensors": (retold(other_tensors), HEAD_2, IntegrityError),
    "other size": (retold(other_size), HEAD_2, IntegrityError),
    "no manifest": (retold(lambda data, source: b"[1]\n"), HEAD_2, FormatError),
    "version path": (
        overwrite(VERSION, lambda data: b"sha256:../../../../etc/passwd\n"),
        HEAD_2,
        IntegrityError,
    ),
    "version of another number": (
        overwrite(VERSION, lambda data: data.replace(b"@2.0.0", b"@1.0.0")),
        HEAD_2,
        IntegrityError,
    ),
    "version long": (overwrite(VERSION, lambda data: data * 2**12), HEAD_2, IntegrityError),
    "tombstone": (overwrite(under("refs/*/@tombstones/*"), lambda data: b"[]"), f"{HEAD}@1.0.0", FormatError),
    "signature long": (overwrite(under(SIGNATURE), lambda data: data * 2**14), SIGNED, MalformedSignature),
    "signature cut": (overwrite(under(SIGNATURE), lambda data: data[:-9]), SIGNED, MalformedSignature),
    "signature renamed": (
        overwrite(under(SIGNATURE), lambda data: signature(f"sha256:{'1' * 64}")),
        SIGNED,
        OtherDigest,
    ),
    "alias move": (
        overwrite(under("*/@log/prod/2"), lambda data: b'{"to":"../x"}'),
        f"{HEAD}:prod",
        FormatError,
    ),
    "pointer": (
        overwrite(under("evidence/*"), lambda data: b"sha256:" + b"0" * 64 + b"\n"),
        "evidence/",
        IntegrityError,
    ),
    "result": (overwrite(result, lambda data: data + b" "), "evidence/", IntegrityError),
}


def test_a_pointer_that_lies_moves_no_alias(store: Store, source: Store, memory: str):
    push(source, memory)
    overwrite(under("*/@aliases/prod"), lambda data: b"../x 1")(fsspec.filesystem("memory"), memory, source)
    pull(store, memory).check()
    assert store.aliases(HEAD) == source.aliases(HEAD) and "prod" in store.aliases(HEAD)


@pytest.mark.parametrize("kind", LIES)
def test_what_a_remote_lies_about_is_refused_and_named_and_the_rest_comes(
    tmp_path: Path, store: Store, source: Store, memory: str, kind: str
):
    push(source, memory)
    lie, what, expected = LIES[kind]
    lie(fsspec.filesystem("memory"), memory, source)
    pulled = pull(store, memory)
    assert [refusal.what for refusal in pulled.refused if refusal.what.startswith(what)], pulled.refused
    assert all(isinstance(refusal.error, expected) for refusal in pulled.refused), pulled.refused
    message = " ".join(str(refusal.error) for refusal in pulled.refused)
    assert "/remote-" not in message and (memory in message or "as in the manifest" in message), message
    with pytest.raises(Incomplete) as error:
        pulled.check()
    assert error.value.exit_code == 3
    assert f"{EXTRACTOR}@1.0.0" in map(str, pulled.created)
    if what == HEAD_2:
        assert [str(item) for item in store.versions(HEAD)] == [] and f"{HEAD}@1.0.0" in map(
            str, pulled.created
        )
    assert not list((store.root / "tmp").iterdir())
    if not what.startswith(HEAD):  # an alias and its versions are sound beside what was refused
        assert examine(store).sound
    push(source, f"{memory}-sound")
    pull(store, f"{memory}-sound").check()
    here = content(store.root)
    more = {path for path in here if path not in content(source.root)}
    assert {path: here[path] for path in here.keys() - more} == content(source.root), (
        "it comes from a sound remote"
    )
    assert all(path.startswith("blobs/") for path in more), (
        "of what was refused, bytes that nothing refers to"
    )


def test_a_damaged_marker_is_refused(store: Store, source: Store, memory: str):
    push(source, memory)
    fsspec.filesystem("memory").pipe_file(f"{memory}/compatkit.json", b"{")
    with pytest.raises(FormatError, match=r"memory://.*compatkit\.json"):
        pull(store, memory)


@pytest.mark.parametrize(
    "path",
    [
        "refs/../../evil/@versions/1.0.0",
        "refs/Big/@versions/1.0.0",
        "refs/a/@versions/01.0.0",
        "refs/a/b/c/d/@versions/1.0.0",
        "refs/a/@elsewhere/1.0.0",
        "refs/a/@log/prod/../../../1",
        "refs/a",
    ],
)
def test_files_that_no_registry_has_are_left_alone(
    tmp_path: Path, store: Store, source: Store, memory: str, path: str
):
    push(source, memory)
    fsspec.filesystem("memory").store[f"{memory.removeprefix('memory:/')}/{path}"] = fsspec.filesystem(
        "memory"
    ).store[f"{memory.removeprefix('memory:/')}/compatkit.json"]
    assert len(pull(store, memory).check().created) == 3
    assert content(store.root) == content(source.root) and not list(tmp_path.rglob("evil"))


def test_damage_here_is_not_pushed(source: Store, memory: str):
    digest = source.manifest(HEAD).payload.file.blob
    write(source, blob_path(digest), b"?")
    sent = push(Store.open(source.root), memory)
    assert [refusal.what for refusal in sent.refused] == [HEAD_2] and isinstance(
        sent.refused[0].error, IntegrityError
    )
    assert not fsspec.filesystem("memory").exists(f"{memory}/{blob_path(digest)}")


def test_a_blob_of_another_size_there_is_written_anew(store: Store, source: Store, memory: str):
    push(source, memory)
    overwrite(weights, lambda data: data[:5])(fsspec.filesystem("memory"), memory, source)
    assert push(source, memory).check().blobs == 1
    pull(store, memory).check()
    assert content(store.root) == content(source.root)


def test_a_registry_that_far_misses_weights_of_withdrawn_versions_only_is_whole(
    store: Store, source: Store, memory: str
):
    push(source, memory)
    head = source.manifest(str(source.references.digest(HEAD, source.references.versions(HEAD)[0])))
    fsspec.filesystem("memory").rm_file(f"{memory}/{blob_path(head.payload.file.blob)}")
    assert len(pull(store, memory).check().created) == 3


# --- in Python, as people call it


def test_a_registry_is_pushed_pulled_and_cloned_in_python(
    tmp_path: Path, store: Store, source: Store, memory: str
):
    assert len(Registry(source).push(memory, "digits/*", create=True, jobs=2).created) == 3
    assert Registry(store).pull(memory, [EXTRACTOR], versions="latest", evidence=False).results == 0
    copy = Registry.clone(memory, tmp_path / "copy")
    assert content(copy.store.root) == content(source.root) and copy.store.id != source.id
    with pytest.raises(LayoutError, match="already a registry"):
        Registry.clone(memory, tmp_path / "copy")


def test_what_is_refused_is_an_error_in_python(tmp_path: Path, store: Store, source: Store, memory: str):
    Registry(source).push(memory, create=True)
    overwrite(weights, lambda data: data[:-1] + b"?")(fsspec.filesystem("memory"), memory, source)
    with pytest.raises(Incomplete, match="1 refused; 2 new copied") as error:
        Registry(store).pull(memory)
    assert [str(reference) for reference in error.value.subject.created] == [
        f"{EXTRACTOR}@1.0.0",
        f"{HEAD}@1.0.0",
    ]
    with pytest.raises(Incomplete):
        Registry.clone(memory, tmp_path / "copy")
    assert Store.open(tmp_path / "copy").names() == [EXTRACTOR, HEAD], "the rest came"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speed": 9}, "no argument 'speed'"),
        ({"jobs": 0}, ">= 1"),
        ({"versions": "new"}, "'all' or 'latest'"),
    ],
)
def test_choices_that_there_are_not_are_told(
    store: Store, memory: str, settings: dict[str, Any], message: str
):
    with pytest.raises(UsageError, match=message):
        Registry(store).push(memory, create=True, **settings)


# --- ranges that are asked for ahead


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 35, 90, 100])
@pytest.mark.parametrize("count", [10, 3, 100])
def test_ranges_come_in_order_whatever_is_asked_for_at_once(
    monkeypatch: pytest.MonkeyPatch, size: int, count: int
):
    monkeypatch.setattr(durable, "CHUNK", 10)
    data, requests = bytes(range(size)), list[tuple[int, int]]()

    def ask(at: int, many: int) -> bytes:
        requests.append((at, many))
        return data[at : at + many]

    with read_ahead(ask, size) as read:
        pieces = list(iter(lambda: read(count), b""))
    assert b"".join(pieces) == data and all(len(item) <= count for item in pieces)
    assert all(many <= max(count, 10) and at + many <= size for at, many in requests)


def test_a_range_that_fails_is_told_in_its_turn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(durable, "CHUNK", 10)

    def ask(at: int, many: int) -> bytes:
        if at == 20:
            raise EnvironmentFailure("gone")
        return b"x" * many

    with pytest.raises(EnvironmentFailure, match="gone"), read_ahead(ask, 100) as read:
        assert read(10) == read(10) == b"x" * 10
        read(10)
