"""Digests of image files, each read once: digests are remembered in the user's cache folder by size and times."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compatkit.data.arraycache import recalled, remember
from compatkit.errors import DataError, EnvironmentFailure
from compatkit.foundation.bars import Progress, bar
from compatkit.foundation.threads import each

KNOWN = np.dtype([("state", "<u8"), ("digest", "V16")])
"""Of a file: 64 bits of a digest of its path, size and times of the last write and of the last change, which no archive
sets, when it was read; digest of its bytes."""
OFTEN = 1000
"""Files between two news of how far the look at sizes and times is."""
AT_ONCE = 64
"""Files that a thread reads at a time."""


Names = Sequence[bytes] | NDArray[np.bytes_]
"""Paths of files, below a folder or absolute."""


def file_digests(root: Path, names: Names, progress: Progress | None = None) -> NDArray[np.void]:
    """Return a digest of the bytes of each file; files that changed since are read again.

    Args:
        root: Folder of the files; names the file in which digests are remembered.
        names: Paths of the files.
        progress: Called with files done, all files, and a description; None shows a bar.

    Returns:
        16 bytes of each file, ``(n,)``.

    Raises:
        DataError: A file is gone.
        EnvironmentFailure: A file cannot be read.
    """
    folder = os.fsencode(root)
    place = hashlib.sha256(b"2\0" + folder).hexdigest()[:32]
    known = recalled(place).get("rows")
    if known is None or known.dtype != KNOWN or known.ndim != 1 or not len(known):
        known = np.zeros(1, dtype=KNOWN)
    with bar(progress) as tell:
        states = np.fromiter(map(_state, _looked_at(folder, names, tell)), "<u8", len(names))
        at = np.minimum(np.searchsorted(known["state"], states), len(known) - 1)
        digests, stale = known["digest"][at], np.flatnonzero(known["state"][at] != states)
        fresh = each(lambda number: _digest(os.path.join(folder, names[number])), map(int, stale), AT_ONCE)
        for done, (number, digest) in enumerate(zip(stale, fresh, strict=True), 1):
            digests[number] = np.void(digest)
            tell(done, len(stale), "reading images")
    if len(stale):
        rows = np.zeros(len(states), dtype=KNOWN)
        rows["state"], rows["digest"] = states, digests
        rows = np.concatenate([known, rows])
        remember(place, rows=rows[np.unique(rows["state"], return_index=True)[1]])
    return digests


def file_states(root: Path, names: Names) -> NDArray[np.void]:
    """Return a digest of name, size and time of the last write of each file, which is not read.

    Args:
        root: Folder of the files.
        names: As for ``file_digests``.

    Returns:
        16 bytes of each file, ``(n,)``.

    Raises:
        DataError: A file is gone.
        EnvironmentFailure: Its status cannot be read.
    """
    digests = bytearray()
    with bar() as tell:
        for name, of in _looked_at(os.fsencode(root), names, tell):
            state = b"%d %d %s" % (of.st_size, of.st_mtime_ns, name)
            digests += hashlib.blake2b(state, digest_size=16).digest()
    return np.frombuffer(digests, dtype="V16")


def _state(file: tuple[bytes, os.stat_result]) -> int:
    name, of = file
    state = b"%d %d %d %s" % (of.st_size, of.st_mtime_ns, of.st_ctime_ns, name)
    return int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "little")


def _looked_at(folder: bytes, names: Names, tell: Progress) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield each name with the status of its file; does nothing else per file, since there may be millions."""
    for number, name in enumerate(names):
        if number % OFTEN == 0:
            tell(number, len(names), "looking at files")
        path = os.path.join(folder, name)
        try:
            status = os.stat(path)
        except OSError as error:
            raise _unread(path, error) from error
        if not stat.S_ISREG(status.st_mode):  # to read a pipe would wait for ever
            raise _unread(path, FileNotFoundError())
        yield name, status


def _digest(path: bytes) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
    except OSError as error:
        raise _unread(path, error) from error


def _unread(path: bytes, error: OSError) -> DataError | EnvironmentFailure:
    file = Path(os.fsdecode(path))
    if isinstance(error, FileNotFoundError):
        return DataError(f"{file} is gone, or no file; list the folder again.", subject=file)
    return EnvironmentFailure(f"{file} cannot be read: {error.strerror}. Check its rights.", subject=file)
