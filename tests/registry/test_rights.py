"""Who may read and write: what is made has the rights of the root folder, and two users share a registry."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compatkit.errors import EnvironmentFailure, IntegrityError
from compatkit.registry.blobs import GRACE_SECONDS
from compatkit.registry.store import Store

Publish = Callable[..., Any]
GROUP, FIRST, SECOND, STRANGER = 54321, 54322, 54323, 54324
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only the superuser can act as two other users"
)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(root: Path) -> tuple[set[int], set[int]]:
    """The rights of all folders and of all files below a root."""
    everything = [path for path in root.rglob("*")]
    return tuple(
        {stat.S_IMODE(path.lstat().st_mode) for path in everything if path.is_dir() == folder}
        for folder in (True, False)
    )  # type: ignore[return-value]


@pytest.mark.case("C2")
@pytest.mark.parametrize("mask", [0o002, 0o022, 0o077])
@pytest.mark.parametrize(
    ("root_mode", "file_mode"), [(0o2775, 0o444), (0o755, 0o444), (0o750, 0o440), (0o700, 0o400)]
)
def test_everything_has_the_rights_of_the_root_whatever_the_umask(
    tmp_path: Path, publish: Publish, mask: int, root_mode: int, file_mode: int
):
    root = tmp_path / "parts"
    root.mkdir()
    root.chmod(root_mode)
    with umask(mask):
        store = Store.init(root)
        publish(store, "a/b")
        store.put_blob(os.urandom(2**19))
        store.set_alias("a/b", "prod", "1.0.0")
        store.withdraw("a/b", "1.0.0", "too old")
    folders, files = modes(root)
    assert folders == {root_mode} and files == {file_mode}


@pytest.mark.case("C2")
def test_a_new_root_has_the_rights_that_the_umask_leaves(tmp_path: Path):
    with umask(0o027):
        store = Store.init(tmp_path / "parts")
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o750
    assert modes(store.root) == ({0o750}, {0o440})


def as_user(user: int, action: Callable[[], Any], mask: int = 0o002) -> str:
    """Run ``action`` in a child that is this user, of the shared group; return what it says."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([GROUP] if user != STRANGER else [])
            os.setgid(user)
            os.setuid(user)
            os.umask(mask)
            message = str(action())
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        os.write(write, message.encode()[:60000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        message = file.read()
    os.waitpid(child, 0)
    return message


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder of a group, mode 2775, that its members can reach."""
    above = [folder for folder in tmp_path.parents if stat.S_IMODE(folder.stat().st_mode) == 0o700]
    above.append(tmp_path)
    before = [(folder, stat.S_IMODE(folder.stat().st_mode)) for folder in above]
    for folder in above:
        folder.chmod(0o711)
    root = tmp_path / "shared"
    root.mkdir()
    os.chown(root, 0, GROUP)
    root.chmod(0o2775)
    yield root
    for folder, mode in before:
        folder.chmod(mode)


@needs_root
@pytest.mark.case("C2")
@pytest.mark.parametrize("masks", [(0o002, 0o002), (0o077, 0o022)], ids=["umask 002", "umasks 077 and 022"])
def test_two_users_of_a_group_read_and_publish(shared: Path, publish: Publish, masks: tuple[int, int]):
    assert "Store" in as_user(FIRST, lambda: Store.init(shared), masks[0])
    assert as_user(FIRST, lambda: publish(Store.open(shared), "team/a"), masks[0]) == "team/a@1.0.0"
    assert as_user(SECOND, lambda: publish(Store.open(shared), "team/a", value=1), masks[1]) == "team/a@2.0.0"
    assert (
        as_user(SECOND, lambda: publish(Store.open(shared), "team/b"), masks[1]) == "team/b@1.0.0"
    )  # same blob
    assert as_user(FIRST, lambda: Store.open(shared).set_alias("team/a", "prod", "2.0.0"), masks[0]) == "None"
    assert (
        as_user(SECOND, lambda: Store.open(shared).set_alias("team/a", "prod", "1.0.0"), masks[1]) == "None"
    )
    for user in (FIRST, SECOND):
        read = as_user(user, lambda: Store.open(shared).resolve("team/a:prod"))
        assert read == "team/a@1.0.0"
        for name in ("team/a", "team/b"):
            content = as_user(user, lambda name=name: len(_payload(Store.open(shared), name)))
            assert content == str(len(_payload(Store.open(shared), name)))


def _payload(store: Store, name: str) -> bytes:
    return store.read_blob(store.manifest(name).payload.file.blob)


@needs_root
@pytest.mark.case("C2", "D4")
def test_a_blob_of_another_user_is_kept_from_collection_by_a_copy(shared: Path, publish: Publish):
    as_user(FIRST, lambda: publish(Store.init(shared), "team/a"))
    store = Store.open(shared)
    blob = store.objects.path(store.manifest("team/a").payload.file.blob)
    old = blob.stat().st_mtime - 2 * GRACE_SECONDS
    os.utime(blob, (old, old))
    assert as_user(SECOND, lambda: publish(Store.open(shared), "team/b")) == "team/b@1.0.0"
    assert blob.stat().st_uid == SECOND and blob.stat().st_mtime > old + GRACE_SECONDS
    assert _payload(Store.open(shared), "team/a")


@needs_root
@pytest.mark.case("C2")
def test_a_stranger_reads_and_is_told_why_nothing_can_be_written(shared: Path, publish: Publish):
    as_user(FIRST, lambda: publish(Store.init(shared), "team/a"))
    assert as_user(STRANGER, lambda: len(_payload(Store.open(shared), "team/a"))).isdecimal()
    result = as_user(STRANGER, lambda: publish(Store.open(shared), "team/c"))
    assert (
        result.startswith("EnvironmentFailure") and "check owner and mode" in result and str(shared) in result
    )


@needs_root
@pytest.mark.case("C2")
def test_a_private_registry_is_closed_to_others(tmp_path: Path, publish: Publish, shared: Path):
    root = shared.parent / "private"
    root.mkdir(mode=0o700)
    publish(Store.init(root), "a")
    result = as_user(SECOND, lambda: Store.open(root))
    assert result.startswith("EnvironmentFailure") and "check owner and mode" in result


@pytest.mark.case("C1")
@pytest.mark.parametrize(
    "folder",
    ["blobs", "blobs/sha256", "refs", "refs/a", "refs/a/@versions", "tmp", "evidence", "trash", "quarantine"],
)
def test_nothing_is_read_or_written_through_a_link(
    store: Store, publish: Publish, tmp_path: Path, folder: str
):
    publish(store, "a")
    outside = tmp_path / "outside"
    here = store.root / folder
    here.mkdir(exist_ok=True)
    here.rename(outside)
    here.symlink_to(outside)
    before = sorted(outside.rglob("*"))

    def act() -> None:
        store = Store.open(store_root)
        damaged = store.objects.path(store.put_blob(b"to be damaged").blob)
        damaged.chmod(0o600)
        damaged.write_bytes(b"damaged")
        store.manifest("a")
        store.evidence.record("value:sha256:" + "0" * 64, "value:sha256:" + "1" * 64, {}, b"{}")
        store.objects.retain("sha256:" + "0" * 64)
        store.read_blob(store.put_blob(b"to be damaged").blob)

    store_root = store.root
    with pytest.raises(IntegrityError, match=rf"{folder} is a symbolic link.*not followed") as caught:
        act()
    assert caught.value.exit_code == 3
    assert sorted(outside.rglob("*")) == before


@pytest.mark.case("C2")
def test_a_missing_right_to_read_is_one_clear_error(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
):
    publish(store, "a")
    monkeypatch.setattr(os, "open", _refuse)
    with pytest.raises(EnvironmentFailure, match="check owner and mode"):
        store.manifest("a")


def _refuse(path: Any, *rest: Any, **kwargs: Any) -> int:
    raise PermissionError(13, os.strerror(13), str(path))
