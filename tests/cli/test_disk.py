"""Full disks and folders that is not writable: exit code 4, one clear error, and nothing half written.

Twice each: simulated at every step that changes the disk, which works everywhere, and on a real small or
read-only file system where this process may mount one.
"""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compatkit.registry import disk as durable
from compatkit.registry.store import Store

Step = Callable[[str, Path], None]


def failing(code: int, root: Path, after: int = 0) -> Step:
    """Fail every change below ``root`` once ``after`` changes were made; removals work, as on a full disk."""
    left = after

    def step(operation: str, path: Path) -> None:
        nonlocal left
        if operation != "unlink" and path.is_relative_to(root):
            left -= 1
            if left < 0:
                raise OSError(code, os.strerror(code), str(path))

    return step


def whole(root: Path) -> list[str]:
    """Read everything that a registry can name; return it. Nothing temporary may be left."""
    store = Store.open(root)
    assert list((root / "tmp").iterdir()) == []
    for name in store.names():
        store.load_state(store.manifest(name), verify="always")
    return store.names()


@pytest.mark.case("C2")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES], ids=errno.errorcode.get)
def test_a_registry_that_cannot_be_written_is_known_before_the_training(
    run: Any, recipe: Any, parts: Path, untouched: Any, monkeypatch: Any, code: int
) -> None:

    monkeypatch.setattr("compatkit.training.run.run", lambda prepared: pytest.fail("trained in vain"))
    monkeypatch.setattr(durable, "step", failing(code, parts))
    file = recipe()
    with untouched(parts.parent):
        result = run("train", file, "--json")
        cut = run("split", "resnet20_cifar", "--cut", "layer2", "--publish", "a/b")
    for text in (result.json["error"]["message"], cut.err):
        assert errno.errorcode[code] in text and str(parts) in text
    assert result.code == cut.code == 4 and result.json["error"]["code"] == "environment"


@pytest.mark.case("C3")
@pytest.mark.parametrize("after", [2, 20, 60])
def test_a_disk_that_fills_up_while_publishing(
    run: Any, recipe: Any, parts: Path, monkeypatch: Any, tmp_path: Path, after: int
) -> None:
    """What was published before is whole, and the same command completes the rest."""
    step = durable.step
    before = whole(parts)
    monkeypatch.setattr(durable, "step", failing(errno.ENOSPC, parts, after + 4))  # 4: the trial write
    words = "train", recipe(), "--prefix", "more", "--checkpoint", tmp_path / "state"
    result = run(*words)
    assert result.code == 4 and result.out == ""
    assert (
        "the disk is full; free space" in result.err
        and f"is saved in {tmp_path / 'state'}: the same command publishes it" in result.err
    )
    monkeypatch.setattr(durable, "step", step)
    assert set(whole(parts)) >= set(before) and len(whole(parts)) < len(before) + 5
    assert run(*words).code == 0 and len(whole(parts)) == len(before) + 5


@pytest.mark.case("C3")
def test_a_new_registry_on_a_full_disk_leaves_no_folder(
    run: Any, tmp_path: Path, untouched: Any, monkeypatch: Any
) -> None:
    for after in range(14):
        monkeypatch.setattr(durable, "step", failing(errno.ENOSPC, tmp_path, after))
        with untouched(tmp_path):
            result = run("init", tmp_path / "on the way" / "parts")
            assert result.code == 4 and "the disk is full" in result.err


def test_training_goes_on_after_a_failure_in_a_folder_that_was_begun(
    run: Any, tmp_path: Path, recipe: Any
) -> None:
    """Folders of a registry without its marker, as a kill leaves them, are taken as a new registry."""
    (tmp_path / "parts" / "blobs" / "sha256").mkdir(parents=True)
    (tmp_path / "parts" / "tmp").mkdir()
    assert run("train", recipe(), "--registry", tmp_path / "parts").code == 0


@pytest.mark.case("C3")
def test_a_checkpoint_on_a_full_disk(
    run: Any, recipe: Any, tmp_path: Path, monkeypatch: Any, untouched: Any
) -> None:
    (tmp_path / "kept").mkdir()
    file = recipe()
    monkeypatch.setattr(durable, "step", failing(errno.ENOSPC, tmp_path / "kept"))
    with untouched(tmp_path):
        result = run(
            "train", file, "--registry", tmp_path / "parts", "--checkpoint", tmp_path / "kept" / "state"
        )
    assert result.code == 4 and "the disk is full" in result.err and "kept/state" in result.err


@pytest.mark.case("C2")
@pytest.mark.filterwarnings("default:The figures are not kept")
def test_measuring_in_a_read_only_registry_gives_the_figures_and_a_warning(
    run: Any, parts: Path, monkeypatch: Any, untouched: Any
) -> None:
    monkeypatch.setattr(durable, "step", failing(errno.EROFS, parts))
    with untouched(parts):
        result = run("recombine", "digits/left.extractor", "digits/right.head", "--json")
    assert result.code in (0, 1) and result.json["cell"]["restricted"]
    assert "not kept as evidence" in result.err and "read-only" in result.err


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a small file system; skips where this process may not."""
    mounted: list[Path] = []

    def call(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        try:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, capture_output=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"this process may not mount a file system: {error}")
        mounted.append(folder)
        return folder

    yield call
    gc.collect()  # weights that are mapped keep a disk busy
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.case("C3")
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_a_really_full_disk(run: Any, recipe: Any, mount: Any, tmp_path: Path) -> None:
    disk = mount("size=300k")
    assert run("init", disk / "parts").code == 0
    words = "--registry", disk / "parts", "train", recipe(), "--checkpoint", tmp_path / "state"
    result = run(*words)
    assert result.code == 4 and "the disk is full" in result.err and "ENOSPC" in result.err
    names = whole(disk / "parts")
    assert "digits/left.head" not in names  # heads need more than is left
    subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
    assert run(*words).code == 0 and len(whole(disk / "parts")) == 5


@pytest.mark.case("C3")
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_a_disk_without_a_byte_left(run: Any, recipe: Any, mount: Any, untouched: Any) -> None:
    disk = mount("size=64k")
    assert run("init", disk / "parts").code == 0
    (disk / "junk").write_bytes(b"")
    with pytest.raises(OSError), (disk / "junk").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    file = recipe()
    with untouched(disk):
        result = run("--registry", disk / "parts", "train", file)
        assert result.code == 4 and "the disk is full" in result.err
        result = run("init", disk / "other")
        assert result.code == 4 and "the disk is full" in result.err


@pytest.mark.case("C2")
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
@pytest.mark.filterwarnings("default:The figures are not kept")
def test_a_really_read_only_folder(run: Any, recipe: Any, mount: Any, parts: Path, untouched: Any) -> None:
    import shutil

    disk = mount("size=16m")
    shutil.copytree(parts, disk / "parts")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    file = recipe()
    with untouched(disk):
        assert run("--registry", disk / "parts", "ls").code == 0
        result = run("--registry", disk / "parts", "train", file)
        assert result.code == 4 and "mounted read-only" in result.err and "EROFS" in result.err
        result = run("--registry", disk / "new", "train", file)
        assert result.code == 4 and "is not writable" in result.err
        result = run("init", disk / "new")
        assert result.code == 4 and "read-only" in result.err
        result = run("--registry", disk / "parts", "recombine", "digits/left.extractor", "digits/right.head")
        assert result.code in (0, 1) and "Accuracy" in result.out and "not kept as evidence" in result.err
        result = run(
            "--registry",
            disk / "parts",
            "matrix",
            "digits/*.extractor",
            "digits/*.head",
            "--html",
            disk / "m",
        )
        assert result.code == 4 and "is not writable" in result.err


@pytest.mark.case("C2")
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else(run: Any, recipe: Any, parts: Path, untouched: Any) -> None:
    file = recipe()
    folders = [path for path in (parts, *parts.rglob("*")) if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        with untouched(parts):
            result = run("train", file)
            assert result.code == 4 and "check owner and mode" in result.err
    finally:
        for folder in folders:
            folder.chmod(0o755)
