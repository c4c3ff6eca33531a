"""Verified reads: damage of any kind is found, moved away and named; a good file is hashed only once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compatkit.errors import IntegrityError, InvalidName, UsageError
from compatkit.registry import blobs as objects
from compatkit.registry.blobs import BlobMismatch
from compatkit.registry.store import Store

DATA = bytes(range(256)) * 64


def path_of(store: Store, digest: str) -> Path:
    hexadecimal = digest.removeprefix("sha256:")
    return store.root / "blobs" / "sha256" / hexadecimal[:2] / hexadecimal


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def age(path: Path) -> None:
    """Make a file old enough to be stamped."""
    os.utime(path, ns=(time.time_ns() - 10**10,) * 2)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be stamped at once (ctime cannot be set back)."""
    monkeypatch.setattr(objects, "SETTLED_NS", -(10**18))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the length of everything that is hashed."""
    lengths: list[int] = []

    def counting(data: bytes) -> str:
        lengths.append(len(data))
        return digest(data)

    digest = objects.digest_of
    monkeypatch.setattr(objects, "digest_of", counting)
    return lengths


def flipped(position: int) -> bytes:
    damaged = bytearray(DATA)
    damaged[position] ^= 1
    return bytes(damaged)


DAMAGE = {
    "first bit": flipped(0),
    "last bit": flipped(len(DATA) - 1),
    "some bit": flipped(4711),
    "a zeroed page": DATA[:4096] + bytes(4096) + DATA[8192:],
    "truncated": DATA[:-1],
    "longer": DATA + b"\0",
    "empty": b"",
    "right size, other bytes": bytes(len(DATA)),
}


@pytest.mark.case("A9")
@pytest.mark.parametrize("damaged", DAMAGE.values(), ids=DAMAGE)
def test_damage_goes_to_quarantine_with_a_clear_error(store: Store, damaged: bytes):
    edge = store.put_blob(DATA)
    path = path_of(store, edge.blob)
    overwrite(path, damaged)
    with pytest.raises(
        IntegrityError, match=r"expected sha256:.*got sha256:.*moved to.*Publish the same"
    ) as caught:
        store.read_blob(edge.blob)
    subject = caught.value.subject
    assert isinstance(subject, BlobMismatch)
    assert (
        (subject.expected, subject.path) == (edge.blob, path) and subject.actual != edge.blob and subject.hint
    )
    assert caught.value.exit_code == 3
    assert not path.exists()
    assert [entry.read_bytes() for entry in (store.root / "quarantine").iterdir()] == [damaged]
    with pytest.raises(IntegrityError, match=r"is missing.*a damaged copy is in"):
        store.read_blob(edge.blob)


def test_putting_the_same_bytes_again_heals(store: Store):
    edge = store.put_blob(DATA)
    overwrite(path_of(store, edge.blob), flipped(3))
    assert store.put_blob(DATA) == edge
    assert store.read_blob(edge.blob) == DATA


@pytest.mark.case("A9")
def test_swapped_blobs_are_found(store: Store):
    item, two = store.put_blob(DATA), store.put_blob(DATA[::-1])
    first, second = path_of(store, item.blob), path_of(store, two.blob)
    first.rename(store.root / "tmp" / "x")
    second.rename(first)
    (store.root / "tmp" / "x").rename(second)
    for edge in (item, two):
        with pytest.raises(IntegrityError, match="not match its digest"):
            store.read_blob(edge.blob)


@pytest.mark.usefixtures("settled")
def test_a_file_is_hashed_once_until_it_changes(store: Store, hashed: list[int]):
    edge = store.put_blob(DATA)
    hashed.clear()
    for _ in range(3):
        assert store.read_blob(edge.blob) == DATA
    assert hashed == [len(DATA)]
    age(path_of(store, edge.blob))
    store.read_blob(edge.blob)
    assert len(hashed) == 2
    store.read_blob(edge.blob, verify="always")
    assert len(hashed) == 3


@pytest.mark.case("A9", "C5")
@pytest.mark.usefixtures("settled")
def test_a_change_after_the_stamp_is_found_even_with_size_and_mtime_kept(store: Store):
    edge = store.put_blob(DATA)
    path = path_of(store, edge.blob)
    age(path)
    store.read_blob(edge.blob)
    before = path.stat()
    overwrite(path, flipped(9))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(IntegrityError):
        store.read_blob(edge.blob)


@pytest.mark.case("C5")
def test_a_fresh_file_is_not_stamped_because_clocks_are_coarse(store: Store, hashed: list[int]):
    edge = store.put_blob(DATA)
    hashed.clear()
    store.read_blob(edge.blob)
    store.read_blob(edge.blob)
    assert len(hashed) == 2


def test_never_trusts_the_disk(store: Store):
    edge = store.put_blob(DATA)
    overwrite(path_of(store, edge.blob), b"x")
    assert store.read_blob(edge.blob, verify="never") == b"x"
    with pytest.raises(UsageError, match="'auto', 'always' or 'never'"):
        store.read_blob(edge.blob, verify="sometimes")  # type: ignore[arg-type]


@pytest.mark.case("A9", "E1")
def test_a_damaged_manifest_and_payload_are_found(store: Store, publish: Callable[..., Any]):
    reference = publish(store, "a")
    manifest = store.manifest("a")
    overwrite(path_of(store, manifest.payload.file.blob), b"x")
    with pytest.raises(IntegrityError):
        store.load_state(manifest)
    overwrite(path_of(store, str(reference.digest)), b"{}")
    assert store.manifest("a") == manifest, "a store reads a manifest once"
    with pytest.raises(IntegrityError):
        Store.open(store.root).manifest("a")
    assert publish(store, "b") and publish(store, "a") == reference  # the same bytes again heal both
    assert Store.open(store.root).manifest("a") == manifest


@pytest.mark.parametrize(
    "content", [b"", b"sha256:12\n", b"../../x\n", b"sha256:" + b"A" * 64 + b"\n", b"x" * 72]
)
def test_a_damaged_version_file_is_named(store: Store, publish: Callable[..., Any], content: bytes):
    publish(store, "a")
    path = store.root / "refs/a/@versions/1.0.0"
    overwrite(path, content)
    with pytest.raises(IntegrityError, match="should hold one line"):
        store.resolve("a@1.0.0")


@pytest.mark.case("C1")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("kind", ["link out", "dangling link", "folder", "pipe"])
def test_what_is_no_plain_file_is_not_followed(store: Store, tmp_path: Path, kind: str):
    edge = store.put_blob(DATA)
    path = path_of(store, edge.blob)
    path.unlink()
    secret = tmp_path / "secret"
    secret.write_bytes(DATA)
    {
        "link out": lambda: path.symlink_to(secret),
        "dangling link": lambda: path.symlink_to(tmp_path / "nowhere"),
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
    }[kind]()
    with pytest.raises(IntegrityError, match="link, folder, pipe or device"):
        store.read_blob(edge.blob)


@pytest.mark.case("B2")
@pytest.mark.parametrize("digest", ["sha256:../../../etc/passwd", "md5:00", "", "sha256:" + "0" * 63])
def test_a_digest_that_is_none_never_becomes_a_path(store: Store, digest: str):
    with pytest.raises(InvalidName):
        store.read_blob(digest)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o444), (0o002, 0o444), (0o077, 0o400), (0o027, 0o440)])
def test_files_are_read_only_and_honor_the_umask(
    tmp_path: Path, publish: Callable[..., Any], umask: int, mode: int
):
    before = os.umask(umask)
    try:
        store = Store.init(tmp_path / "parts")
        publish(store, "a")
    finally:
        os.umask(before)
    files = [path for path in store.root.rglob("*") if path.is_file()]
    assert len(files) == 5  # marker, payload, manifest, version, record of the publication
    assert {file.stat().st_mode & 0o777 for file in files} == {mode}
    folder = (store.root / "refs" / "a").stat().st_mode & 0o777
    assert folder == 0o777 & ~umask


def test_large_blobs_are_hashed_beside_the_write(store: Store):
    data = os.urandom(objects.SMALL + 5)
    edge = store.put_blob(data)
    assert edge == store.put_blob(data)
    assert store.read_blob(edge.blob) == data and edge.bytes == len(data)
    assert list((store.root / "tmp").iterdir()) == []
