"""Crashes, full disks and missing rights at every step: the store stays whole and the retry succeeds."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compatkit.errors import EnvironmentFailure
from compatkit.registry import durable
from compatkit.registry.durable import replace_file
from compatkit.registry.store import Store

SCRIPT = Path(__file__).parent / "scripts" / "crash.py"
Publish = Callable[..., Any]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """Record the steps of what follows."""
    seen: list[tuple[str, Path]] = []
    monkeypatch.setattr(durable, "step", lambda operation, path: seen.append((operation, path)))
    return seen


def fail_at(number: int, code: int) -> Callable[[str, Path], None]:
    """Return a step hook that raises at the given step, counted from 0 without removals."""
    left = number

    def step(operation: str, path: Path) -> None:
        nonlocal left
        if operation == "unlink":
            return
        left -= 1
        if left == -1:
            raise OSError(code, os.strerror(code), str(path))

    return step


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the script forks")
def test_a_process_killed_at_any_step_leaves_only_unreferenced_bytes(tmp_path: Path):
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    deaths = {name: int(count) for name, count in (line.split() for line in run.stdout.splitlines())}
    assert deaths.keys() == {"init", "first_publish", "second_publish", "move"}
    assert min(deaths.values()) > 8


def test_the_version_is_linked_last(store: Store, publish: Publish, steps: list[tuple[str, Path]]):
    publish(store, "a/b")
    links = [path.relative_to(store.root).parts[0] for operation, path in steps if operation == "link"]
    assert links == ["blobs", "blobs", "refs"]  # payload, manifest, version
    version = next(
        at for at, (operation, path) in enumerate(steps) if operation == "link" and path.name == "1.0.0"
    )
    assert {operation for operation, _ in steps[version + 1 :]} == {"sync-folder", "unlink"}


def test_the_disk_is_asked_for_every_file_and_folder(
    store: Store, publish: Publish, steps: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
):
    asked: list[int] = []
    monkeypatch.setattr(os, "fsync", asked.append)
    publish(store, "a")
    assert len(asked) == sum(operation in ("sync", "sync-folder") for operation, _ in steps) > 6


def test_files_are_durable_before_they_get_their_name(
    store: Store, publish: Publish, steps: list[tuple[str, Path]]
):
    publish(store, "a")
    order = [operation for operation, _ in steps if operation in ("write", "sync", "link")]
    assert order == ["write", "sync", "link"] * 3
    for at, (operation, path) in enumerate(steps):
        if operation == "link":
            synced = [folder for later, folder in steps[at:] if later == "sync-folder"]
            assert path.parent in synced and store.root in synced


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO], ids=errno.errorcode.get)
def test_an_error_at_any_step_is_one_clear_error_and_the_retry_succeeds(
    tmp_path: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch, code: int
):
    number = 0
    while True:
        store = Store.init(tmp_path / str(number))
        monkeypatch.setattr(durable, "step", fail_at(number, code))
        try:
            publish(store, "a/b")
        except EnvironmentFailure as error:
            assert error.exit_code == 4
            assert str(store.root) in str(error) and errno.errorcode[code] in str(error)
        else:
            break
        finally:
            monkeypatch.setattr(durable, "step", lambda operation, path: None)
        again = Store.open(store.root)
        assert list((again.root / "tmp").iterdir()) == []
        for name in again.names():  # only if the failure came after the version was linked
            again.manifest(name)
        assert str(publish(again, "a/b")) == "a/b@1.0.0"
        number += 1
    assert number > 20


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "the disk is full; free space"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "mounted read-only"),
        (errno.EACCES, "no right to do so"),
        (errno.EMFILE, "too many files open"),
        (errno.EIO, "check the disk"),
        (errno.EFBIG, "larger than"),
        (errno.ENOTCONN, "check the file system"),
    ],
)
def test_the_message_says_what_to_do(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
):
    monkeypatch.setattr(durable, "step", fail_at(3, code))
    with pytest.raises(EnvironmentFailure, match=f"{remedy}.*Nothing half written is left"):
        publish(store, "a")
    assert store.names() == []


def test_a_folder_without_the_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(durable, "step", fail_at(0, errno.EACCES))
    with pytest.raises(EnvironmentFailure, match="no right to do so"):
        Store.init(tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


def test_a_read_only_registry_is_read(store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch):
    reference = publish(store, "a")
    store.set_alias("a", "prod", "1.0.0")

    def refuse(operation: str, path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(durable, "step", refuse)
    reader = Store.open(store.root)
    assert reader.resolve("a:prod") == reference == reader.select("*")[0]
    assert reader.read_blob(reader.manifest("a").payload.file.blob)
    for write in (
        lambda: reader.put_blob(b"new"),
        lambda: reader.set_alias("a", "prod", None),
        lambda: reader.withdraw("a", "1.0.0", "x"),
    ):
        with pytest.raises(EnvironmentFailure, match="read-only"):
            write()


def test_damage_in_a_read_only_registry_is_still_reported(store: Store, monkeypatch: pytest.MonkeyPatch):
    from compatkit.errors import IntegrityError

    edge = store.put_blob(b"content")
    blob = next(one for one in (store.root / "blobs").rglob("*") if one.is_file())
    blob.chmod(0o644)
    blob.write_bytes(b"damaged")
    monkeypatch.setattr(durable, "step", fail_at(0, errno.EROFS))
    with pytest.raises(IntegrityError, match="could not be moved to quarantine"):
        store.read_blob(edge.blob)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit of the file size")
def test_a_real_limit_of_the_file_size(store: Store):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, hard))
    try:
        with pytest.raises(EnvironmentFailure, match="EFBIG"):
            store.put_blob(os.urandom(2**20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [one for one in store.root.rglob("*") if one.is_file() and one.name != "compatkit.json"]


def test_short_writes_are_continued(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(durable, "CHUNK", 7)
    data = os.urandom(1000)
    assert store.read_blob(store.put_blob(data).blob) == data


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK])
def test_without_hard_links_an_exclusive_create_takes_their_place(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch, code: int
):
    def no_links(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(durable.os, "link", no_links)
    reference = publish(store, "a")
    assert publish(store, "a") == reference and store.manifest("a")
    assert (store.root / "refs/a/@versions/1.0.0").stat().st_mode & 0o222 == 0
    assert list((store.root / "tmp").iterdir()) == []


def test_a_version_cut_off_without_hard_links_is_no_version_and_its_number_is_skipped(
    store: Store, publish: Publish
):
    publish(store, "a")
    (store.root / "refs/a/@versions/2.0.0").write_bytes(b"")
    assert list(map(str, store.versions("a"))) == ["1.0.0"]
    assert str(store.resolve("a")) == "a@1.0.0"
    assert str(publish(store, "a", value=1)) == "a@3.0.0"


def test_replacing_a_file_keeps_the_old_one_if_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "checkpoint"
    replace_file(path, b"old")
    for number in range(4):  # create, write, sync, rename
        monkeypatch.setattr(durable, "step", fail_at(number, errno.ENOSPC))
        with pytest.raises(EnvironmentFailure, match="the disk is full"):
            replace_file(path, b"new")
        assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(durable, "step", lambda operation, path: None)
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o200
