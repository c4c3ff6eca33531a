"""Which paths lead to one file: compared by the file itself, not by how its path is spelled."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compatkit.data.split import Split
from compatkit.errors import DataError

STATE = np.dtype([("device", "<u8"), ("number", "<u8"), ("links", "<u4")])
"""Device and number (inode) of a file, and how many names it has; no names of what is no file."""


def file_states_of(folder: Path, paths: Sequence[str]) -> NDArray[np.void]:
    """Return the file that each path resolves to.

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


def check_images_once(splits: Sequence[Split], numbers: NDArray[np.uint64]) -> None:
    """Refuse an image file that is in two classes or parts by a link, or twice where a share is held out.

    Args:
        splits: Of images in files; of one, a share is held out.
        numbers: That the file system gives the files (inodes), of all splits: files of one number are looked at again.

    Raises:
        DataError: There is one.
    """
    ordered = np.sort(numbers)
    again = ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] > 0)]
    if not len(again):
        return
    starts = np.cumsum([0, *map(len, splits)])
    rows = np.flatnonzero(np.isin(numbers, again))
    which = np.searchsorted(starts, rows, side="right") - 1
    places = [
        (splits[number], row)
        for number, row in zip(which.tolist(), (rows - starts[which]).tolist(), strict=True)
    ]
    paths = [split.name_of(place) for split, place in places]
    for before, row in repeated(Path(os.sep), paths, file_states_of(Path(os.sep), paths)):
        (split, place), (other, other_place) = places[row], places[before]
        same_class = split.classes[split.labels[place]] == other.classes[other.labels[other_place]]
        if split is other and same_class and len(splits) > 1:
            continue
        where = (
            "in two parts" if split is not other else "trained on and tested on, since a share is held out"
        )
        raise DataError(
            f"{paths[before]} and {paths[row]} are one file by a link, which would be "
            f"{where if same_class else 'in two classes'}. Remove one.",
            subject=Path(paths[row]),
        )
