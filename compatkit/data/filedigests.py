"""Digests of image files, each read once: size, times and digest are remembered in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compatkit.data.bars import Progress, bar
from compatkit.data.memory import recalled, remember
from compatkit.data.threads import each
from compatkit.errors import DataError, EnvironmentFailure

KNOWN = np.dtype(
    [("path", "<u8"), ("size", "<i8"), ("written", "<i8"), ("changed", "<i8"), ("digest", "V16")]
)
"""Of a file: 64 bits of a digest of its path; size and times (ns) of the last write and of the last change, which no
archive sets, when it was read; digest of its bytes."""
STATE = ("size", "written", "changed")
OFTEN = 1000
"""Files between two news of how far the look at sizes and times is."""
PIECE = 2**17
"""Bytes that are read at a time."""
AT_ONCE = 64
"""Files that a thread reads at a time."""
Encoded = Sequence[bytes] | Sequence[Path]
"""Paths of files."""


def file_digests(root: Path, paths: Encoded, progress: Progress | None = None) -> NDArray[np.void]:
    """Return a digest of the bytes of each file; files that changed since are read again.

    Args:
        root: Folder of the files; names the file in which digests are remembered.
        paths: The files.
        progress: Called with files done, all files, and a description; None shows a bar.

    Returns:
        16 bytes of each file, ``(n,)``.

    Raises:
        DataError: A file is gone.
        EnvironmentFailure: A file cannot be read.
    """
    place = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    known = recalled(place)
    if known is None or known.dtype != KNOWN or known.ndim != 1:
        known = np.zeros(0, dtype=KNOWN)
    with bar(progress) as tell:
        keys, states = _states(paths, tell)
        digests, stale = _remembered(known, keys, states)
        numbers = np.flatnonzero(stale)
        fresh = each(lambda number: _digest(paths[number]), map(int, numbers), AT_ONCE)
        for done, (number, digest) in enumerate(zip(numbers, fresh, strict=True), 1):
            digests[number] = np.void(digest)
            tell(done, len(numbers), "reading images")
    if len(numbers):
        remember(place, _joined(known, keys, states, digests))
    return digests


def file_states(paths: Encoded, names: Encoded) -> NDArray[np.void]:
    """Return a digest of name, size and time of the last write of each file, which is not read.

    Args:
        paths: The files.
        names: Name of each in its digest.

    Returns:
        16 bytes of each file, ``(n,)``.

    Raises:
        DataError: A file is gone.
        EnvironmentFailure: Its status cannot be read.
    """
    digests = bytearray()
    with bar() as tell:
        for name, (_, of) in zip(names, _looked_at(paths, tell), strict=True):
            state = b"%d %d %s" % (of.st_size, of.st_mtime_ns, os.fsencode(name))
            digests += hashlib.blake2b(state, digest_size=16).digest()
    return np.frombuffer(digests, dtype="V16")


def _states(paths: Encoded, tell: Progress) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return of each file 64 bits of a digest of its path ``(n,)``, and its size and times ``(n, 3)``."""
    keys, states = bytearray(), array("q")
    for path, of in _looked_at(paths, tell):
        keys += hashlib.blake2b(os.fsencode(path), digest_size=8).digest()
        states.extend((of.st_size, of.st_mtime_ns, of.st_ctime_ns))
    return np.frombuffer(keys, "<u8"), np.frombuffer(states, np.int64).reshape(-1, 3)


def _looked_at(paths: Encoded, tell: Progress) -> Iterator[tuple[bytes | Path, os.stat_result]]:
    """Yield each file with its status; does nothing else per file, since there may be millions."""
    for start in range(0, len(paths), OFTEN):
        tell(start, len(paths), "looking at files")
        for path in paths[start : start + OFTEN]:
            try:
                status = os.stat(path)
            except OSError as error:
                raise _unread(path, error) from error
            if not stat.S_ISREG(status.st_mode):  # to read a pipe would wait for ever
                raise _unread(path, FileNotFoundError())
            yield path, status


def _remembered(
    known: NDArray[np.void], keys: NDArray[np.uint64], states: NDArray[np.int64]
) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
    """Return the digests that are remembered, and which files have none of their state."""
    digests, stale = np.zeros(len(keys), dtype="V16"), np.ones(len(keys), dtype=np.bool_)
    if len(known):
        at = np.minimum(np.searchsorted(known["path"], keys), len(known) - 1)
        stale = known["path"][at] != keys
        for column, name in enumerate(STATE):
            stale |= known[name][at] != states[:, column]
        digests[~stale] = known["digest"][at[~stale]]
    return digests, stale


def _joined(
    known: NDArray[np.void], keys: NDArray[np.uint64], states: NDArray[np.int64], digests: NDArray[np.void]
) -> NDArray[np.void]:
    """Return what is to be remembered, by path: what was known of other files, and these, each once."""
    keys, first = np.unique(keys, return_index=True)
    others = known[~np.isin(known["path"], keys)]
    place = np.argsort(np.concatenate([others["path"], keys]))
    rows = np.empty(len(place), dtype=KNOWN)
    rows["path"] = np.concatenate([others["path"], keys])[place]
    for column, name in enumerate(STATE):
        rows[name] = np.concatenate([others[name], states[first, column]])[place]
    rows["digest"] = np.concatenate([others["digest"], digests[first]])[place]
    return rows


def _digest(path: bytes | Path) -> bytes:
    hashed = hashlib.blake2b(digest_size=16)
    try:
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(PIECE):
                hashed.update(piece)
    except OSError as error:
        raise _unread(path, error) from error
    return hashed.digest()


def _unread(path: bytes | Path, error: OSError) -> DataError | EnvironmentFailure:
    file = Path(os.fsdecode(path))
    if isinstance(error, FileNotFoundError):
        return DataError(f"{file} is gone, or no file; list the folder again.", subject=file)
    return EnvironmentFailure(f"{file} cannot be read: {error.strerror}. Check its rights.", subject=file)
