"""Large blobs: written in pieces, mapped where that is safe, remembered once verified, kept while they are needed."""

from __future__ import annotations

import gc
import mmap
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from handmade import blobs_in

from compatkit.errors import EnvironmentFailure, IntegrityError, UsageError
from compatkit.foundation.mounts import is_local
from compatkit.registry import blobs as objects
from compatkit.registry.blobs import GRACE_SECONDS, SMALL
from compatkit.registry.local_cache import FILE, LocalCache
from compatkit.registry.store import Store
from compatkit.registry.weights.header import check_header
from compatkit.registry.weights.tensorfile import deserialize, pieces, serialize

Publish = Callable[..., Any]
ZERO = "sha256:" + "0" * 64


def large(seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights of 1 MB and some, in several dtypes and shapes."""
    draw = torch.Generator().manual_seed(seed)
    return {
        "conv.weight": torch.randn(64, 32, 11, 11, generator=draw),
        "conv.bias": torch.randn(64, generator=draw).to(torch.bfloat16),
        "norm.num_batches_tracked": torch.tensor(7),
        "mask": torch.rand(3, 5, generator=draw) > 0.5,
        "none": torch.zeros(0, 4),
    }


def same(item: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return item.keys() == other.keys() and all(
        item[name].dtype == other[name].dtype and torch.equal(item[name], other[name]) for name in item
    )


def settle(store: Store) -> None:
    """Let all files be older than the clock's grain."""
    for path in (store.root / "blobs").rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - 60, time.time() - 60))


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe that the clock's grain is fine: change times cannot be set back."""
    monkeypatch.setattr(objects, "SETTLED_NS", -1)


def test_the_bytes_are_those_of_the_safetensors_library_but_for_the_blanks_behind_the_header():
    state = {"b": torch.randn(3, 2), "a": torch.randn(5), "n": torch.tensor(3), "é": torch.randn(1)}
    for note, metadata in ((None, None), ("note", {"compatkit": "note"})):
        mine, theirs = serialize(state, note), safetensors.torch.save(state, metadata)
        (length, header, tensors), other = split_file(mine), split_file(theirs)
        assert (header.rstrip(), tensors) == (other[1].rstrip(), other[2])
        assert (8 + length) % 64 == 0
    assert same(safetensors.torch.load(serialize(large())), large())


def split_file(data: bytes) -> tuple[int, bytes, bytes]:
    length = int.from_bytes(data[:8], "little")
    return length, data[8 : 8 + length], data[8 + length :]


def test_weights_lie_where_torch_would_place_them_because_results_depend_on_it(store: Store):
    """A counter and a bias of odd size do not push the weights of others off their places."""
    state = large() | {
        "bn.num_batches_tracked": torch.tensor(3),
        "fc.bias": torch.randn(5),
        "fc.weight": torch.randn(5, 16),
        "odd.weight": torch.randn(3, 3),
    }
    for verify in ("auto", "always"):
        loaded = store.load_state(store.put_state(state, parameters=1), verify=verify)
        assert same(loaded, state)
        assert all(item.data_ptr() % 64 == 0 for item in loaded.values() if item.ndim > 1)
    entries = check_header(serialize(state)).tensors
    whole = [item for item in entries if (item.stop - item.start) % 64 == 0]
    assert "fc.weight" in {item.name for item in whole}
    assert all(item.start % 64 == 0 for item in whole)


def test_files_of_others_are_copied_where_their_tensors_lie_elsewhere():
    state = {"a": torch.randn(5), "b": torch.randn(7, 7), "n": torch.tensor(3)}
    loaded = deserialize(safetensors.torch.save(state))
    assert same(loaded, state) and loaded["b"].data_ptr() % 64 == 0


def test_tensors_are_written_without_being_copied():
    state = {"weight": torch.arange(6.0)}
    *_, body = pieces(state)
    state["weight"][0] = 9.0
    assert torch.frombuffer(bytearray(body), dtype=torch.float32)[0] == 9.0


def test_what_was_put_comes_back_bit_by_bit(store: Store):
    payload = store.put_state(large(), parameters=1)
    assert payload.file.bytes > SMALL
    for verify in ("auto", "auto", "always", "never"):
        assert same(store.load_state(payload, verify=verify), large())


@pytest.mark.skipif(not os.path.exists("/proc/self/mountinfo"), reason="the system does not list its mounts")
def test_large_files_on_a_local_disk_are_mapped_and_writing_into_them_stays_in_this_process(store: Store):
    payload = store.put_state(large(), parameters=1)
    if not is_local(store.root.stat().st_dev):
        pytest.skip("the temporary folder is on no disk that is known to be local")
    path = store.objects.path(payload.file.blob)
    assert isinstance(store.objects.view(payload.file.blob), mmap.mmap)
    before = path.read_bytes()
    loaded = store.load_state(payload)
    loaded["conv.weight"].zero_()
    loaded["conv.bias"] += 1
    assert path.read_bytes() == before and same(store.load_state(payload), large())
    path.unlink()
    gc.collect()
    assert not loaded["conv.weight"].any()  # lives as long as the tensors


def test_a_device_that_is_not_known_to_be_local_is_read_into_memory(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    payload = store.put_state(large(), parameters=1)
    monkeypatch.setattr(objects, "is_local", lambda device: False)
    assert isinstance(store.objects.view(payload.file.blob), bytes)
    assert same(store.load_state(payload), large())
    assert not is_local(0xFFFFFFFF)


@pytest.mark.case("A9")
@pytest.mark.parametrize("place", [0, 100, 2**18, -1], ids=["first", "header", "middle", "last"])
def test_a_flipped_bit_of_a_mapped_file_is_found(store: Store, place: int):
    payload = store.put_state(large(), parameters=1)
    path = store.objects.path(payload.file.blob)
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="does not match its digest"):
        store.load_state(payload)
    assert len(list((store.root / "quarantine").iterdir())) == 1
    assert store.put_state(large(), parameters=1) == payload and same(store.load_state(payload), large())


@pytest.mark.case("A8")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]
)
def test_weights_that_are_not_finite_are_refused_unless_allowed(
    store: Store, value: float, dtype: torch.dtype
):
    state = {"fine": torch.ones(3), "bad": torch.tensor([1.0, value]).to(dtype)}
    with pytest.raises(IntegrityError, match="'bad' holds values that are not finite"):
        store.put_state(state, parameters=5)
    assert not any(path.is_file() for path in (store.root / "blobs").rglob("*"))
    assert store.put_state(state, parameters=5, nonfinite=True).count == 2


@pytest.mark.case("A8")
def test_large_finite_weights_are_no_infinity(store: Store):
    state = {"half": torch.full((100,), 6e4, dtype=torch.float16), "single": torch.full((100,), 3e38)}
    assert same(store.load_state(store.put_state(state, parameters=200)), state)


def test_a_file_that_was_verified_is_not_hashed_again_by_another_process(
    store: Store, settled: None, monkeypatch: pytest.MonkeyPatch
):
    payload = store.put_state(large(), parameters=1)
    Store.open(store.root).load_state(payload)
    hashed: list[int] = []
    monkeypatch.setattr(objects, "digest_of", lambda data: hashed.append(len(data)) or ZERO)
    monkeypatch.setattr(
        objects, "_file_digest", lambda descriptor: hashed.append(os.fstat(descriptor).st_size) or ZERO
    )
    assert same(Store.open(store.root).load_state(payload), large())
    assert not hashed
    os.utime(store.objects.path(payload.file.blob))  # touched: look again
    with pytest.raises(IntegrityError):
        Store.open(store.root).load_state(payload)
    assert hashed == [payload.file.bytes]


@pytest.mark.case("C5")
def test_a_file_that_changed_a_moment_ago_is_not_remembered(store: Store):
    payload = store.put_state(large(), parameters=1)
    store.load_state(payload)
    assert not store.objects.stamps and store.local_cache.stamp(payload.file.blob) is None


@pytest.mark.case("C5")
def test_a_file_from_the_future_is_hashed_each_time(store: Store):
    payload = store.put_state(large(), parameters=1)
    path = store.objects.path(payload.file.blob)
    os.utime(path, (time.time() + 3600, time.time() + 3600))
    store.load_state(payload)
    assert not store.objects.stamps


@pytest.mark.case("E3")
@pytest.mark.parametrize("damage", ["no database", "other tables", "a folder", "locked", "gone"])
def test_what_is_remembered_is_never_needed(tmp_path: Path, damage: str):
    local_cache = LocalCache(tmp_path / "cache")
    local_cache.remember_verified(ZERO, (1, 2**64 - 1, 3, 4, 5))
    local_cache.remember_proved("fact")
    assert local_cache.stamp(ZERO) == (1, 2**64 - 1, 3, 4, 5) and local_cache.is_proved("fact")
    path = tmp_path / "cache" / FILE
    again = LocalCache(tmp_path / "cache")
    holder = None
    if damage == "no database":
        path.write_bytes(b"x" * 5000)
    elif damage == "other tables":
        path.unlink()
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE verified (something)")
        other.close()
    elif damage == "a folder":
        path.unlink()
        path.mkdir()
    elif damage == "locked":
        holder = sqlite3.connect(path)
        holder.execute("BEGIN EXCLUSIVE")
    else:
        path.unlink()
    assert again.stamp(ZERO) is None and not again.is_proved("fact")
    again.remember_proved("fact")
    if holder is not None:
        holder.close()
    assert (
        damage in ("a folder", "locked")
        or again.is_proved("fact")
        or LocalCache(again.folder).remember_proved("fact") is None
    )


def test_a_cache_that_cannot_be_written_is_done_without(
    store: Store, settled: None, monkeypatch: pytest.MonkeyPatch
):
    payload = store.put_state(large(), parameters=1)
    (store.local_cache.folder.parent).mkdir(parents=True, exist_ok=True)
    store.local_cache.folder.write_text("a file where the folder should be")
    assert same(Store.open(store.root).load_state(payload), large())


@pytest.mark.case("D6")
def test_what_is_remembered_is_asked_for_by_a_connection_of_its_own_after_a_fork(tmp_path: Path):
    local_cache = LocalCache(tmp_path)
    local_cache.remember_proved("before")
    child = os.fork()
    if child == 0:
        local_cache.remember_proved("child")
        os._exit(0 if local_cache.is_proved("before") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert local_cache.is_proved("child") and local_cache.is_proved("before")


def test_verify_is_one_of_three_words(store: Store):
    edge = store.put_blob(b"x")
    for ask in (store.read_blob, store.objects.view):
        with pytest.raises(UsageError, match="'auto', 'always' or 'never'"):
            ask(edge.blob, verify="sometimes")  # type: ignore[operator]


def test_every_blob_is_listed_once_and_strays_are_not(store: Store):
    edges = sorted(store.put_blob(bytes([value])).blob for value in range(20))
    shard = store.objects.path(edges[0]).parent
    (shard / ".DS_Store").write_bytes(b"")
    (shard / ("f" * 64)).write_bytes(b"in the wrong folder")
    (shard.parent / "README").write_bytes(b"")
    assert list(blobs_in(store)) == edges


@pytest.mark.case("D4")
def test_a_blob_that_is_held_is_young_again(store: Store):
    edge = store.put_blob(b"content")
    path = store.objects.path(edge.blob)
    for age in (GRACE_SECONDS, -GRACE_SECONDS):
        os.utime(path, (time.time() - age, time.time() - age))
        assert store.objects.retain(edge.blob)
        assert abs(path.stat().st_mtime - time.time()) < 5
    assert not store.objects.retain(ZERO)


@pytest.mark.case("D4")
@pytest.mark.parametrize("way", ["hold", "read", "view", "put"])
def test_a_blob_that_was_taken_out_as_unused_comes_back(store: Store, way: str):
    edge = store.put_blob(b"content")
    path = store.objects.path(edge.blob)
    away = store.root / "trash" / f"{path.name}-1-00"
    os.utime(path, (1, 1))
    path.rename(away)
    if way == "hold":
        assert store.objects.retain(edge.blob) and path.stat().st_mtime > 1
    elif way == "put":
        assert store.put_blob(b"content") == edge
    else:
        assert bytes(getattr(store.objects, way)(edge.blob)) == b"content"
    assert path.read_bytes() == b"content" and not away.exists()


@pytest.mark.case("D4")
def test_a_damaged_blob_in_the_trash_is_not_taken_for_good(store: Store):
    edge = store.put_blob(b"content")
    path = store.objects.path(edge.blob)
    path.unlink()
    (store.root / "trash" / f"{path.name}-1-00").write_bytes(b"damaged")
    with pytest.raises(IntegrityError, match="not match its digest"):
        store.read_blob(edge.blob)
    assert store.put_blob(b"content") == edge and store.read_blob(edge.blob) == b"content"


@pytest.mark.case("D4", "D5")
def test_what_a_version_refers_to_is_there_although_it_was_collected_just_before_the_link(
    store: Store, publish: Publish, put: Callable[..., Any], manifest_of: Callable[..., Any], monkeypatch: Any
):
    from compatkit.registry import disk as durable

    payload = put(store)
    path = store.objects.path(payload.file.blob)

    def collect(operation: str, place: Path) -> None:
        """Take the payload away while the draft of the version is being written."""
        is_linked = (store.root / "refs/a/@versions/1.0.0").exists()
        is_draft = operation == "create" and "tmp" in place.parts and not is_linked
        if is_draft and path.exists() and store.manifest_count:
            path.rename(store.root / "trash" / f"{path.name}-1-00")

    monkeypatch.setattr(
        type(store), "manifest_count", property(lambda item: len(blobs_in(item)) > 1), raising=False
    )
    monkeypatch.setattr(durable, "step", collect)
    store.publish("a", manifest_of(payload))
    assert path.exists() and store.read_blob(payload.file.blob, verify="always")


@pytest.mark.case("D1")
def test_a_damaged_file_that_was_replaced_by_a_good_one_meanwhile_is_not_taken_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    edge = store.put_blob(b"content")
    path = store.objects.path(edge.blob)
    path.unlink()
    path.write_bytes(b"damaged")
    real = objects.digest_of

    def slow(data: Any) -> str:
        if bytes(data) == b"damaged":  # another process mends it at this moment
            path.rename(store.root / "quarantine" / f"{path.name}-1-00")
            path.write_bytes(b"content")
        return real(data)

    monkeypatch.setattr(objects, "digest_of", slow)
    with pytest.raises(IntegrityError, match="replaced it meanwhile; try again"):
        store.read_blob(edge.blob)
    assert store.read_blob(edge.blob) == b"content"


def test_a_full_disk_while_hashing_beside_it_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFailure, match="the disk is full"):
        store.put_state(large(), parameters=1)
    assert not list((store.root / "tmp").iterdir())


@pytest.mark.parametrize("state", ["good", "damaged", "in the trash", "missing"])
def test_a_large_blob_is_hashed_while_it_is_written_and_synced_only_if_it_is_unknown(
    store: Store, monkeypatch: pytest.MonkeyPatch, state: str
):
    from compatkit.registry import disk as durable

    content = [b"first", b"second" * 100]
    path = store.objects.path(store.put_blob(b"".join(content)).blob)
    monkeypatch.setattr(objects, "LARGE", 1)
    if state == "damaged":
        path.unlink()
        path.write_bytes(b"damaged")
    elif state == "in the trash":
        path.rename(store.root / "trash" / f"{path.name}-1-00")
    elif state == "missing":
        path.unlink()
    store = Store.open(store.root)  # which remembers nothing
    synced = list[Path]()
    monkeypatch.setattr(durable, "step", lambda what, place: what != "sync" or synced.append(place))
    edge = store.objects.put(*content)
    assert store.objects.path(edge.blob) == path and path.read_bytes() == b"".join(content)
    assert edge.bytes == len(b"".join(content))
    is_new = state in ("damaged", "missing")
    assert is_new == any(place.parent == store.root / "tmp" for place in synced)
    assert not list((store.root / "tmp").iterdir())


@pytest.mark.case("D6")
@pytest.mark.parametrize("end", ["", "-journal"])
@pytest.mark.parametrize("kind", ["pipe", "dangling link", "link"])
def test_what_is_no_plain_file_is_no_memory_and_is_never_opened(tmp_path: Path, kind: str, end: str):
    """SQLite would wait at a pipe for ever, and write at the other end of a link."""
    folder, outside = tmp_path / "cache", tmp_path / "outside"
    folder.mkdir()
    if kind == "link":
        outside.write_bytes(b"not yours")
    place = folder / f"memory.sqlite{end}"
    os.mkfifo(place) if kind == "pipe" else place.symlink_to(outside)
    local_cache = LocalCache(folder)
    local_cache.remember_proved("fact")
    assert not local_cache.is_proved("fact")
    assert outside.read_bytes() == b"not yours" if kind == "link" else not outside.exists()
