"""Which image files the class folders of a folder hold, listed once and remembered with the times of the folders.

A folder's time changes with what is in it, so that one look at each folder tells whether a list still holds. Lists are
remembered where the file system keeps such times, and only of folders that have been left alone for a while: a change
in the same tick of a coarse clock, or while they are listed, could not be told.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.arraycache import recalled, remember
from compatkit.data.imagefiles import ENDINGS, HIDDEN, ImageFiles, image_folders
from compatkit.data.lazy import LazyImages
from compatkit.data.skipped import LeftOut
from compatkit.foundation.bars import Progress, bar
from compatkit.foundation.mounts import times_folders

SETTLED_NS = 2 * 10**9
"""Time in ns that a folder must have been left alone."""
RULE = repr((5, ENDINGS, HIDDEN))
"""What counts as an image file; lists made by another rule are not used."""


@attrs.frozen(eq=False)
class FolderListing:
    """The image files of some folders.

    Attributes:
        root: The folder that holds all.
        names: Paths below it, by folder and then by path, ``(n,)``.
        counts: Files of each folder asked for, int64 ``(folders,)``.
        numbers: That the file system gives the files (inodes), uint64 ``(n,)``: equal where two paths lead to one.
        folders: All folders that were listed, those asked for and those in them.
        left_out: What is not read.
    """

    root: Path
    names: NDArray[np.bytes_]
    counts: NDArray[np.int64]
    numbers: NDArray[np.uint64]
    folders: list[str]
    left_out: LeftOut

    @property
    def images(self) -> LazyImages:
        """The files, read on demand."""
        return LazyImages(ImageFiles(self.root, self.names), np.arange(len(self.names)))


def listing(root: Path, folders: Sequence[str], progress: Progress | None = None) -> FolderListing:
    """Return the image files of some folders and of the folders in them.

    Args:
        root: Resolved.
        folders: Below it; ``[""]`` is all of it.
        progress: Called with folders listed, all folders, and the folder; None shows a bar.

    Raises:
        DataError: A folder is gone, or a link is broken.
        EnvironmentFailure: A folder cannot be read.
    """
    key = hashlib.sha256(os.fsencode("\0".join([RULE, str(root), *folders]))).hexdigest()[:32]
    known = recalled(key)
    if "times" in known:
        entered = [os.fsdecode(name) for name in known["folders"]]
        if np.array_equal(_times(root, entered), known["times"]):
            left_out = LeftOut(
                {kind: (count, first) for kind, count, first in json.loads(known["left_out"].item())}
            )
            return FolderListing(root, known["names"], known["counts"], known["numbers"], entered, left_out)
    began, left_out, entered = time.time_ns(), LeftOut(), list[str]()
    names, numbers, counts = [np.zeros(0, np.bytes_)], [np.zeros(0, np.uint64)], list[int]()
    with bar(progress) as tell:
        for number, folder in enumerate(folders, 1):
            real = dict[str, str]()
            files = sorted(file for some in image_folders(root, folder, left_out, real) for file in some)
            names.append(np.array([os.fsencode(path) for path, _ in files], dtype=np.bytes_))
            numbers.append(np.array([inode % 2**64 for _, inode in files], dtype=np.uint64))
            counts.append(len(files))
            entered += real.values()
            tell(number, len(folders), folder)
    result = FolderListing(
        root, np.concatenate(names), np.array(counts), np.concatenate(numbers), entered, left_out
    )
    times = _times(root, entered)
    if times.all() and times.max() < began - SETTLED_NS:
        kinds = json.dumps([(kind, *of) for kind, of in left_out.kinds.items()])
        columns = {"names": result.names, "counts": result.counts, "numbers": result.numbers, "times": times}
        folder_names = np.array([os.fsencode(folder) for folder in entered])
        remember(key, **columns, folders=folder_names, left_out=np.array(kinds))
    return result


def _times(root: Path, folders: Sequence[str]) -> NDArray[np.int64]:
    """Return when each folder was written, and when it last changed, which nothing sets; 0 where that says nothing."""
    times = np.zeros((len(folders), 2), np.int64)
    for row, folder in enumerate(folders):
        if os.path.isdir(place := root / folder):
            of = os.stat(place)
            times[row] = (of.st_mtime_ns, of.st_ctime_ns) if times_folders(of.st_dev) else 0
    return times
