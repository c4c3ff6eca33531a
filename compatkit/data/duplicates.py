"""Find paths that lead to the same file, whatever their spelling."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compatkit.data.split import Split
from compatkit.errors import DataError

FILE_ID = np.dtype([("device", "<u8"), ("inode", "<u8"), ("links", "<u4")])
"""Device, inode and number of hard links of a file; no links if the path is not a file."""


def file_ids(folder: Path, paths: Sequence[str]) -> NDArray[np.void]:
    """Return the identity of the file that each path resolves to.

    Args:
        folder: Folder that relative paths start from.
        paths: Paths of files; links are followed.

    Returns:
        ``FILE_ID`` records, ``(n,)``.
    """
    prefix = os.path.join(folder, "")
    return np.fromiter((_file_id(os.path.join(prefix, path)) for path in paths), FILE_ID, len(paths))


def _file_id(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null byte
        return 0, 0, 0
    if not stat.S_ISREG(status.st_mode):
        return 0, 0, 0
    return status.st_dev % 2**64, status.st_ino % 2**64, max(status.st_nlink, 1)


def repeated_files(folder: Path, paths: Sequence[str], ids: NDArray[np.void]) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions of paths that lead to one file: the first, and a later one.

    Hard links count as one file. Where a file has a single name, real paths decide, since some file systems give two
    files the same inode number.

    Args:
        folder: Folder that relative paths start from.
        paths: Paths of files.
        ids: Result of ``file_ids`` for these paths.
    """
    keys = np.stack([ids["device"], ids["inode"]], axis=1)
    unique, inverse, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    if len(unique) == len(keys):
        return
    first: dict[int | str, int] = {}
    for row in np.flatnonzero(counts[inverse.ravel()] > 1).tolist():
        hard_links = int(ids["links"][row]) > 1
        key = int(inverse.ravel()[row]) if hard_links else os.path.realpath(folder / paths[row])
        before = first.setdefault(key, row)
        if before != row:
            yield before, row


def check_no_duplicates(splits: Sequence[Split], inodes: NDArray[np.uint64]) -> None:
    """Refuse an image file that is in two classes or splits; or twice in a split that will be divided.

    Args:
        splits: Images in files; a single split will be divided into training and test images.
        inodes: Inode numbers of all files; files with the same number are compared.

    Raises:
        DataError: A file is repeated.
    """
    ordered = np.sort(inodes)
    shared = ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] > 0)]
    if not len(shared):
        return
    starts = np.cumsum([0, *map(len, splits)])
    rows = np.flatnonzero(np.isin(inodes, shared))
    numbers = np.searchsorted(starts, rows, side="right") - 1
    positions = rows - starts[numbers]
    images = [(splits[n], i) for n, i in zip(numbers.tolist(), positions.tolist(), strict=True)]
    paths = [split.name_of(position) for split, position in images]
    for before, row in repeated_files(Path(os.sep), paths, file_ids(Path(os.sep), paths)):
        (split, position), (other, other_position) = images[row], images[before]
        same_class = split.classes[split.labels[position]] == other.classes[other.labels[other_position]]
        if split is other and same_class and len(splits) > 1:
            continue
        where = "two splits" if split is not other else "the training and the test images"
        raise DataError(
            f"{paths[before]} and {paths[row]} are the same file, which would be in "
            f"{where if same_class else 'two classes'}. Remove one.",
            subject=Path(paths[row]),
        )
