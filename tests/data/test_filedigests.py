"""Digests of files: those of the bytes, whatever is remembered; read again when size or times changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from compatkit.data import filedigests
from compatkit.errors import DataError, EnvironmentFailure
from compatkit.foundation.bars import Progress


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "d").mkdir()
    made = [tmp_path / "d" / f"{number}.bin" for number in range(5)]
    for number, path in enumerate(made):
        path.write_bytes(bytes([number]) * (number + 1) * 1000)
    return made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the files that are read from now on."""
    seen: list[Path] = []
    plain = filedigests._digest

    def spy(path: bytes) -> bytes:
        seen.append(Path(os.fsdecode(path)))
        return plain(path)

    monkeypatch.setattr(filedigests, "_digest", spy)
    return seen


def file_digests(root: Path, paths: list[Path], progress: Progress | None = None) -> list[bytes]:
    names = [os.fsencode(path) for path in paths]
    return [digest.tobytes() for digest in filedigests.file_digests(root, names, progress)]


def plain(paths: list[Path]) -> list[bytes]:
    return [hashlib.blake2b(path.read_bytes(), digest_size=16).digest() for path in paths]


def test_they_are_of_the_bytes_and_in_the_order_asked_for(files: list[Path], read: list[Path]) -> None:
    root = files[0].parent
    assert file_digests(root, files) == plain(files)
    assert sorted(read) == files
    read.clear()
    some = [files[3], files[0], files[3]]
    assert file_digests(root, some) == plain(some) and not read
    assert file_digests(root, []) == []


def test_a_file_that_was_written_is_read_again(files: list[Path], read: list[Path]) -> None:
    root = files[0].parent
    file_digests(root, files)
    read.clear()
    files[1].write_bytes(b"longer than before" * 1000)
    before = os.stat(files[2])
    files[2].write_bytes(bytes(reversed(b"\0" + bytes([2]) * 2999)))
    os.utime(files[2], ns=(before.st_atime_ns, before.st_mtime_ns))  # as unpacking an archive does
    assert os.stat(files[2]).st_size == before.st_size and os.stat(files[2]).st_mtime_ns == before.st_mtime_ns
    assert file_digests(root, files) == plain(files)
    assert sorted(read) == files[1:3]
    read.clear()
    os.utime(files[4], (5, 5))
    assert file_digests(root, files) == plain(files) and read == [files[4]]


def test_what_is_remembered_grows_by_other_files(files: list[Path], read: list[Path]) -> None:
    root = files[0].parent
    file_digests(root, files[:2])
    file_digests(root, files[2:])
    read.clear()
    assert file_digests(root, files) == plain(files) and not read


@pytest.mark.parametrize("damage", ["cut", "other", "object", "folder"])
def test_a_damaged_memory_is_made_anew(
    files: list[Path], read: list[Path], tmp_path: Path, damage: str
) -> None:
    root = files[0].parent
    file_digests(root, files)
    (saved,) = (tmp_path / "remembered" / "images").iterdir()
    if damage == "cut":
        saved.write_bytes(saved.read_bytes()[:200])
    elif damage == "other":
        np.savez(saved, rows=np.arange(3))
    elif damage == "object":
        np.savez(saved, rows=np.array([{"a": 1}], dtype=object))
    else:
        saved.unlink()
        saved.mkdir()
    read.clear()
    assert file_digests(root, files) == plain(files) and sorted(read) == files


def test_a_cache_that_cannot_be_written_is_no_error(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocked").write_text("a file")
    monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / "blocked"))
    assert file_digests(files[0].parent, files) == plain(files)


def test_progress_counts_the_files_that_are_read(files: list[Path]) -> None:
    message: list[tuple[int, int, str]] = []
    file_digests(files[0].parent, files[:3])
    file_digests(files[0].parent, files, lambda *news: message.append(news))
    assert message == [(0, 5, "looking at files"), (1, 2, "reading images"), (2, 2, "reading images")]


def test_files_that_are_gone_or_forbidden(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    files[1].unlink()
    with pytest.raises(DataError) as caught:
        file_digests(files[0].parent, files)
    assert caught.value.subject == files[1]

    def refuse(path: bytes, *_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13), os.fsdecode(path))

    monkeypatch.setattr(filedigests, "open", refuse, raising=False)
    with pytest.raises(EnvironmentFailure) as failed:
        file_digests(files[0].parent, files[:1])
    assert failed.value.subject == files[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_file_that_became_a_pipe_or_a_folder_is_not_waited_for(files: list[Path]) -> None:
    for number, make in enumerate((os.mkfifo, os.mkdir)):
        files[number].unlink()
        make(files[number])
        with pytest.raises(DataError) as caught:
            file_digests(files[0].parent, files[number:])
        assert caught.value.subject == files[number]
