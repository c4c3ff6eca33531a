"""Crashes, full disks and missing rights at every step: the store stays whole and the retry succeeds."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from attack import cases, script

from compatkit.errors import EnvironmentFailure
from compatkit.registry import disk as durable
from compatkit.registry.disk import replace_file
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.store import Store

SCENARIOS = (
    "init",
    "first_publish",
    "next_publish",
    "publish_large",
    "move",
    "remove",
    "withdraw",
    "copy",
    "drop",
    "collect",
    "import",
    "heal",
    "record",
    "record_row",
    "promise",
    "keep_promise",
    "promote",
    "govern",
    "settings",
    "publish_signed",
    "move_signed",
    "restore",
    "push",
    "pull",
)
Publish = Callable[..., Any]
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts fork")


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


def interrupted(folder: Path, *words: str) -> None:
    """Interrupt ``SCENARIO:WAY:EVERY`` at every step, or at some; the slow test leaves out none."""
    lines = script("crash.py", folder, *words).splitlines()
    assert [line.split()[0] for line in lines] == [word.split(":")[0] for word in words]
    # Steps: a policy is one file, and takes the fewest.
    assert all(int(line.split()[1]) > 5 for line in lines)
    print(
        "interrupted at",
        sum(
            -(-int(line.split()[1]) // int(word.split(":")[2]))
            for line, word in zip(lines, words, strict=True)
        ),
    )


@forks
@pytest.mark.case("D1")
def test_a_process_that_dies_at_any_step_leaves_only_unreferenced_bytes(tmp_path: Path):
    often = {"first_publish": 1, "copy": 4, "drop": 4, "collect": 4}
    interrupted(tmp_path, *(f"{name}:death:{often.get(name, 60)}" for name in SCENARIOS))


@forks
@pytest.mark.case("D1", "C3")
def test_an_error_of_the_system_at_any_step_of_anything_is_one_clear_error(tmp_path: Path):
    interrupted(tmp_path, "first_publish:each:5", "collect:each:11", "import:each:60")


@forks
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.case("D1", "C3")
@pytest.mark.parametrize(
    "way",
    [
        "death",
        "ENOSPC",
        "EDQUOT",
        "EMFILE",
        "EIO",
        "EROFS",
        "EACCES",
        "ENFILE",
        "ENOSPC+",
        "EROFS+",
        "EACCES+",
    ],
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_way_to_fail_at_every_step_of_everything(tmp_path: Path, way: str, scenario: str):
    interrupted(tmp_path, f"{scenario}:{way}:1")


@forks
@pytest.mark.case("D1")
def test_a_process_that_is_killed_at_random_leaves_a_whole_registry(tmp_path: Path):
    assert sum(json.loads(script("kill.py", tmp_path, 5, 0)).values()) >= 2


@forks
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.case("D1")
@pytest.mark.parametrize("seed", [0, 1000, 2000])
def test_hundreds_of_kills(tmp_path: Path, seed: int):
    kills = cases(333)
    done = json.loads(script("kill.py", tmp_path, kills, seed * 1000))
    print(f"{kills} kills after {done}")
    assert (
        sum(done.values()) >= kills / 4 and len(done) > 3
    )  # in full; long things are mostly killed on the way


@pytest.fixture
def disks(tmp_path: Path) -> None:
    """Skip where no file system can be mounted from a file."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    (tmp_path / "mounted").mkdir()
    with (tmp_path / "image").open("wb") as file:
        file.truncate(4 * 2**20)
    for command in (
        ["mkfs.ext4", "-q", "-F", tmp_path / "image"],
        ["mount", "-o", "loop", tmp_path / "image", tmp_path / "mounted"],
        ["umount", tmp_path / "mounted"],
    ):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system can be mounted here: {error}")


@forks
@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.usefixtures("disks")
def test_what_was_done_survives_power_cuts(tmp_path: Path):
    (tmp_path / "cuts").mkdir()
    cuts = cases(100)
    done = json.loads(script("powercut.py", tmp_path / "cuts", cuts, 0))
    print(f"{cuts} power cuts after {done}")
    assert sum(done.values()) >= cuts / 4


@forks
@pytest.mark.slow
@pytest.mark.usefixtures("disks")
def test_a_power_cut_takes_what_was_not_synced(tmp_path: Path):
    """The test above would notice."""
    (tmp_path / "cuts").mkdir()
    with pytest.raises(AssertionError, match=r"failed|Error"):
        script("powercut.py", tmp_path / "cuts", 20, 0, "unsynced")


@pytest.mark.case("D1")
def test_the_version_is_linked_last(store: Store, publish: Publish, steps: list[tuple[str, Path]]):
    publish(store, "a/b")
    links = [path.relative_to(store.root).parts for operation, path in steps if operation == "link"]
    assert [parts[0] for parts in links] == ["blobs", "blobs", "refs", "refs"]
    assert [parts[-2] for parts in links[2:]] == ["@published", "@versions"]
    version = next(
        at for at, (operation, path) in enumerate(steps) if operation == "link" and "@versions" in path.parts
    )
    assert {operation for operation, _ in steps[version + 1 :]} <= {"sync-folder", "unlink"}


def test_the_disk_is_asked_for_every_file_and_folder(
    store: Store, publish: Publish, steps: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
):
    request: list[int] = []
    monkeypatch.setattr(os, "fsync", request.append)
    publish(store, "a")
    assert len(request) == sum(operation in ("sync", "sync-folder") for operation, _ in steps) > 6


@pytest.mark.case("D1")
def test_files_are_durable_before_they_get_their_name(
    store: Store, publish: Publish, steps: list[tuple[str, Path]]
):
    publish(store, "a")
    order = [operation for operation, _ in steps if operation in ("write", "sync", "link")]
    assert order == ["write", "sync", "link"] * 4  # payload, manifest, record of the publication, version
    for at, (operation, path) in enumerate(steps):
        if operation == "link":
            synced = [folder for later, folder in steps[at:] if later == "sync-folder"]
            assert path.parent in synced and store.root in synced


@pytest.mark.case("C2", "D1")
@pytest.mark.case("C3")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
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


@pytest.mark.case("C2", "C3")
@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "the disk is full; free space"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "mounted read-only"),
        (errno.EACCES, "check owner and mode"),
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
    with pytest.raises(EnvironmentFailure, match=f"{remedy}.*No partial files were left behind"):
        publish(store, "a")
    assert store.names() == []


@pytest.mark.case("C2")
def test_a_folder_without_the_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(durable, "step", fail_at(0, errno.EACCES))
    with pytest.raises(EnvironmentFailure, match="check owner and mode"):
        Store.init(tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


@pytest.mark.case("C2")
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


@pytest.mark.case("C2")
def test_damage_in_a_read_only_registry_is_still_reported(store: Store, monkeypatch: pytest.MonkeyPatch):
    from compatkit.errors import IntegrityError

    edge = store.put_blob(b"content")
    blob = next(path for path in (store.root / "blobs").rglob("*") if path.is_file())
    blob.chmod(0o644)
    blob.write_bytes(b"damaged")
    monkeypatch.setattr(durable, "step", fail_at(0, errno.EROFS))
    with pytest.raises(IntegrityError, match="could not be moved to quarantine"):
        store.read_blob(edge.blob)


@pytest.mark.case("C3")
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
    assert not [path for path in store.root.rglob("*") if path.is_file() and path.name != "compatkit.json"]


@contextmanager
def few_files(spare: int) -> Iterator[None]:
    """Let this process open so many files more."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    content = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, content[0] + 64), hard))
    try:
        with suppress(OSError):
            while True:
                content.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(spare):
            os.close(content.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in content:
            os.close(descriptor)


@pytest.mark.case("C3")
@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit of open files")
def test_a_real_limit_of_open_files(store: Store, publish: Publish):
    publish(store, "a", 0)
    lonely = store.put_blob(b"nothing refers to this")
    failed = 0
    for spare in range(8):
        with few_files(spare):
            try:
                publish(store, "a", spare)
                plan(store, grace=timedelta(0), alone=True).apply()
            except EnvironmentFailure as error:
                assert "EMFILE" in str(error) and "ulimit -n" in str(error)
                failed += 1
        for version in store.versions("a"):
            assert store.read_blob(store.manifest(f"a@{version}").payload.file.blob, verify="always")
    assert 1 <= failed < 8
    plan(store, grace=timedelta(0), alone=True).apply()
    assert store.objects.size(lonely.blob) is None and list((store.root / "tmp").iterdir()) == []


@pytest.mark.case("C3")
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount a file system"
)
def test_a_disk_that_is_really_full(tmp_path: Path, publish: Publish):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        store = Store.init(disk / "parts")
        reference, value = publish(store, "a", 0), 1
        store.put_blob(os.urandom(40_000))  # nothing refers to this
        with pytest.raises(
            EnvironmentFailure, match=r"ENOSPC.*the disk is full.*No partial files were left behind"
        ):
            while True:
                publish(store, "a", value)
                value += 1
        assert len(store.versions("a")) == value and list((store.root / "tmp").iterdir()) == []
        with pytest.raises(EnvironmentFailure, match="ENOSPC"):
            store.set_alias("a", "prod", "1.0.0")
        assert store.aliases("a") == {}
        assert plan(store, grace=timedelta(0), alone=True).apply().freed >= 40_000  # takes no space
        assert str(publish(store, "a", value)) == f"a@{value + 1}.0.0"
        assert store.resolve("a@1.0.0") == reference
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def cross_device(*paths: object, **options: object) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@pytest.mark.case("C4")
def test_folders_on_several_devices(store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch):
    """Where neither links nor moves work between them there is one clear error, and nothing is lost."""
    publish(store, "a", 0)
    lonely = store.put_blob(b"nothing refers to this")
    result = plan(store, grace=timedelta(0), alone=True)
    with monkeypatch.context() as patched:
        patched.setattr(durable.os, "replace", cross_device)
        publish(store, "a", 1)  # links suffice
        with pytest.raises(EnvironmentFailure, match="EXDEV"):
            result.apply()
        patched.setattr(durable.os, "link", cross_device)
        with pytest.raises(EnvironmentFailure, match="EXDEV"):
            publish(store, "a", 2)
    assert [str(version) for version in store.versions("a")] == ["1.0.0", "2.0.0"]
    assert store.objects.size(lonely.blob) == 22 and list((store.root / "tmp").iterdir()) == []
    assert str(publish(store, "a", 2)) == "a@3.0.0"
    assert result.apply().moved == [lonely.blob]


@pytest.mark.case("C3")
def test_short_writes_are_continued(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(durable, "CHUNK", 7)
    data = os.urandom(1000)
    assert store.read_blob(store.put_blob(data).blob) == data


@pytest.mark.case("C4")
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


@pytest.mark.case("C4")
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
