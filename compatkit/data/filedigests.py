"""Digests of image files; each file is read once, and its digest is cached by path, size and times."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compatkit.data.arraycache import load, save
from compatkit.errors import DataError, EnvironmentFailure
from compatkit.foundation.bars import Progress, bar
from compatkit.foundation.threads import each

CACHED = np.dtype([("state", "<u8"), ("digest", "V16")])
"""64 bits of a digest of path, size, mtime and ctime of a file, and a digest of its bytes. ctime cannot be set."""
REPORT_EVERY = 1000
"""Files between two reports of progress while their status is read."""
CHUNK = 64
"""Files that a thread reads at a time."""

Names = Sequence[bytes] | NDArray[np.bytes_]
"""Paths of files, below a folder or absolute."""


def file_digests(root: Path, names: Names, progress: Progress | None = None) -> NDArray[np.void]:
    """Return a digest of the bytes of each file; files that changed since are read again.

    Args:
        root: Folder of the files; a part of the cache key.
        names: Paths of the files.
        progress: Called with files done, all files, and a description; None shows a bar.

    Returns:
        16 bytes per file, ``(n,)``.

    Raises:
        DataError: A file is missing.
        EnvironmentFailure: A file cannot be read.
    """
    folder = os.fsencode(root)
    key = hashlib.sha256(b"2\0" + folder).hexdigest()[:32]
    cached = load(key).get("rows")
    if cached is None or cached.dtype != CACHED or cached.ndim != 1 or not len(cached):
        cached = np.zeros(1, dtype=CACHED)
    with bar(progress) as report:
        states = np.fromiter(map(_state, _statuses(folder, names, report)), "<u8", len(names))
        index = np.minimum(np.searchsorted(cached["state"], states), len(cached) - 1)
        digests, stale = cached["digest"][index], np.flatnonzero(cached["state"][index] != states)
        fresh = each(lambda number: _digest(os.path.join(folder, names[number])), map(int, stale), CHUNK)
        for done, (number, digest) in enumerate(zip(stale, fresh, strict=True), 1):
            digests[number] = np.void(digest)
            report(done, len(stale), "reading images")
    if len(stale):
        rows = np.zeros(len(states), dtype=CACHED)
        rows["state"], rows["digest"] = states, digests
        rows = np.concatenate([cached, rows])
        save(key, rows=rows[np.unique(rows["state"], return_index=True)[1]])
    return digests


def file_states(root: Path, names: Names) -> NDArray[np.void]:
    """Return a digest of name, size and mtime of each file; the files are not read.

    Args:
        root: Folder of the files.
        names: Paths of the files.

    Returns:
        16 bytes per file, ``(n,)``.

    Raises:
        DataError: A file is missing.
        EnvironmentFailure: Its status cannot be read.
    """
    digests = bytearray()
    with bar() as report:
        for name, status in _statuses(os.fsencode(root), names, report):
            state = b"%d %d %s" % (status.st_size, status.st_mtime_ns, name)
            digests += hashlib.blake2b(state, digest_size=16).digest()
    return np.frombuffer(digests, dtype="V16")


def _state(file: tuple[bytes, os.stat_result]) -> int:
    name, status = file
    state = b"%d %d %d %s" % (status.st_size, status.st_mtime_ns, status.st_ctime_ns, name)
    return int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "little")


def _statuses(folder: bytes, names: Names, report: Progress) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield each name with the status of its file; one system call per file, since there may be millions."""
    for number, name in enumerate(names):
        if number % REPORT_EVERY == 0:
            report(number, len(names), "looking at files")
        path = os.path.join(folder, name)
        try:
            status = os.stat(path)
        except OSError as error:
            raise _read_error(path, error) from error
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would block forever
            raise _read_error(path, FileNotFoundError())
        yield name, status


def _digest(path: bytes) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
    except OSError as error:
        raise _read_error(path, error) from error


def _read_error(path: bytes, error: OSError) -> DataError | EnvironmentFailure:
    file = Path(os.fsdecode(path))
    if isinstance(error, FileNotFoundError):
        return DataError(f"{file} is missing or not a file. Load the data set again.", subject=file)
    return EnvironmentFailure(
        f"{file} cannot be read: {error.strerror}. Check its permissions.", subject=file
    )
