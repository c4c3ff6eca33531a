"""Digests of image files, each read once: size, times and digest are remembered in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
AT_ONCE = 64
"""Files that a thread reads at a time."""
Encoded = Sequence[bytes] | Sequence[Path]
"""Paths of files."""


def file_digests(root: Path, paths: Encoded, progress: Progress | None = None) -> NDArray[np.void]:
    """Return a digest of the bytes of each file; files that changed since are read again.

    Args:
        root: Folder of the files; names the file in which digests are remembered.
        paths: The files.
        progress: Called with files done, all files, and what is done; None shows a bar.

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
        found = each(lambda number: _digest(paths[number]), map(int, numbers), AT_ONCE)
        for done, (number, digest) in enumerate(zip(numbers, found, strict=True), 1):
            digests[number] = np.void(digest)
            tell(done, len(numbers), "reading images")
    if len(numbers):
        remember(place, _joined(known, keys, states, digests))
    return digests


def file_states(paths: Encoded, names: Encoded) -> NDArray[np.void]:
    """Return a digest of name, size and time of the last write of each file, which is not read.

    Args:
        paths: The files.
        names: What each is called in its digest.

    Returns:
        16 bytes of each file, ``(n,)``.

    Raises:
        DataError: A file is gone.
        EnvironmentFailure: The system does not let it be looked at.
    """
    found = np.zeros(len(paths), dtype="V16")
    with bar() as tell:
        for number in range(len(paths)):
            of = _state(paths[number])
            said = b"%d %d %s" % (of.st_size, of.st_mtime_ns, os.fsencode(names[number]))
            found[number] = np.void(hashlib.blake2b(said, digest_size=16).digest())
            if number % OFTEN == 0:
                tell(number, len(paths), "looking at files")
    return found


def _states(paths: Encoded, tell: Progress) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return of each file 64 bits of a digest of its path ``(n,)``, and its size and times ``(n, 3)``."""
    keys, states = np.empty(len(paths), dtype=np.uint64), np.empty((len(paths), 3), dtype=np.int64)
    for number in range(len(paths)):
        path = paths[number]
        of = _state(path)
        keys[number] = int.from_bytes(hashlib.blake2b(os.fsencode(path), digest_size=8).digest(), "little")
        states[number] = of.st_size, of.st_mtime_ns, of.st_ctime_ns
        if number % OFTEN == 0:
            tell(number, len(paths), "looking at files")
    return keys, states


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


def _state(path: bytes | Path) -> os.stat_result:
    with _reading(path):
        return os.stat(path)


def _digest(path: bytes | Path) -> bytes:
    with _reading(path), open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()


@contextmanager
def _reading(path: bytes | Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        there = Path(os.fsdecode(path))
        raise DataError(f"{there} is gone; list the folder again.", subject=there) from error
    except OSError as error:
        there = Path(os.fsdecode(path))
        raise EnvironmentFailure(
            f"{there} cannot be read: {error.strerror}. Check its rights.", subject=there
        ) from error
