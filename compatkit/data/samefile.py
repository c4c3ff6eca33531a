"""Which paths lead to one file: compared by the file itself, not by how its path is spelled."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

STATE = np.dtype([("device", "<u8"), ("number", "<u8"), ("links", "<u4")])
"""Device and number (inode) of a file, and how many names it has; no names of what is no file."""


def file_states_of(folder: Path, paths: Sequence[str]) -> NDArray[np.void]:
    """Return which file each path leads to.

    Args:
        folder: Where relative paths start.
        paths: Of files; links are followed.

    Returns:
        ``STATE`` of each, ``(n,)``.
    """
    front = os.path.join(folder, "")
    return np.fromiter((_state(os.path.join(front, path)) for path in paths), STATE, len(paths))


def _state(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null byte
        return 0, 0, 0
    return (
        (status.st_dev % 2**64, status.st_ino % 2**64, max(status.st_nlink, 1))
        if stat.S_ISREG(status.st_mode)
        else (0, 0, 0)
    )


def repeated(folder: Path, paths: Sequence[str], states: NDArray[np.void]) -> Iterator[tuple[int, int]]:
    """Yield pairs of paths that lead to one file: the first one, and a later one.

    Two names of one file (a hard link) are one file. Some file systems give two files one number: then real paths tell.

    Args:
        folder: Where relative paths start.
        paths: Of files.
        states: As ``file_states_of`` returns them.
    """
    keys = np.stack([states["device"], states["number"]], axis=1)
    unique, which, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    if len(unique) == len(keys):
        return
    first: dict[int | str, int] = {}
    for row in np.flatnonzero(counts[which.ravel()] > 1).tolist():
        several = int(states["links"][row]) > 1
        key = int(which.ravel()[row]) if several else os.path.realpath(folder / paths[row])
        before = first.setdefault(key, row)
        if before != row:
            yield before, row
