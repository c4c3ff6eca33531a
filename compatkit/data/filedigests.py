"""Digests of image files, each read once: size, times and digest are remembered in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from compatkit.data.lazy import THREADS, Progress
from compatkit.data.memory import recalled, remember
from compatkit.errors import DataError, EnvironmentFailure

KNOWN = np.dtype(
    [("path", "<u8"), ("size", "<i8"), ("written", "<i8"), ("changed", "<i8"), ("digest", "V16")]
)
"""Of a file: 64 bits of a digest of its path; size and times (ns) of the last write and of the last change, which no
archive sets, when it was read; digest of its bytes."""


def file_digests(root: Path, paths: list[Path], progress: Progress | None = None) -> list[bytes]:
    """Return a digest of the bytes of each file, 16 bytes long; files that changed since are read again.

    Args:
        root: Folder of the files; names the file in which digests are remembered.
        paths: The files.
        progress: Called with files done, all files, and what is done.

    Raises:
        DataError: A file is gone.
        EnvironmentFailure: A file cannot be read.
    """
    place = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    known = recalled(place)
    if known is None or known.dtype != KNOWN or known.ndim != 1:
        known = np.zeros(0, dtype=KNOWN)
    rows = np.zeros(len(paths), dtype=KNOWN)
    for number, path in enumerate(paths):
        state = _state(path)
        rows[number] = (_key(path), state.st_size, state.st_mtime_ns, state.st_ctime_ns, bytes(16))
    at = np.searchsorted(known["path"], rows["path"])
    before = known[np.minimum(at, len(known) - 1)] if len(known) else np.zeros(len(rows), dtype=KNOWN)
    same = np.logical_and.reduce([before[one] == rows[one] for one in ("path", "size", "written", "changed")])
    rows["digest"][same] = before["digest"][same]
    stale = np.flatnonzero(~same).tolist()
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as threads:
        found = threads.map(lambda number: _digest(paths[number]), stale)
        for done, (number, digest) in enumerate(zip(stale, found, strict=True)):
            rows["digest"][number] = np.void(digest)
            if progress is not None:
                progress(done + 1, len(stale), "reading images")
    if stale:
        kept = known[~np.isin(known["path"], rows["path"])]
        remember(place, np.sort(np.concatenate([kept, rows]), order="path"))
    return [one.tobytes() for one in rows["digest"]]


def _key(path: Path) -> int:
    return int.from_bytes(hashlib.blake2b(os.fsencode(path), digest_size=8).digest(), "little")


def _state(path: Path) -> os.stat_result:
    with _reading(path):
        return os.stat(path)


def _digest(path: Path) -> bytes:
    with _reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} is gone; list the folder again.", subject=path) from error
    except OSError as error:
        raise EnvironmentFailure(
            f"{path} cannot be read: {error.strerror}. Check its rights.", subject=path
        ) from error
