"""Lists of the image files in class folders, cached by the times of the folders.

The times of a folder change with its content, so one status call per folder shows whether a cached list is still
valid. A list is cached only if the file system maintains such times, and if no folder was changed shortly before: a
change within the same tick of a coarse clock, or while the folders are listed, would not be noticed.
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

from compatkit.data.arraycache import load, save
from compatkit.data.imagefiles import EXTENSIONS, HIDDEN, ImageFiles, image_folders
from compatkit.data.lazy import LazyImages
from compatkit.data.skipped import SkippedFiles
from compatkit.foundation.bars import Progress, bar
from compatkit.foundation.mounts import times_folders

SETTLED_NS = 2 * 10**9
"""Age in ns that the last change of a folder must have for its list to be cached."""
RULE = repr((5, EXTENSIONS, HIDDEN))
"""Rule of what counts as an image file; a part of the cache key."""


@attrs.frozen(eq=False)
class FolderListing:
    """Image files of some folders.

    Attributes:
        root: Common parent folder.
        names: Paths below it, sorted by folder and then by path, ``(n,)``.
        counts: Number of files of each requested folder, int64 ``(folders,)``.
        inodes: Inode numbers of the files, uint64 ``(n,)``: equal if two paths lead to one file.
        folders: All folders that were listed: those requested, and those inside them.
        skipped: Files that are not read.
    """

    root: Path
    names: NDArray[np.bytes_]
    counts: NDArray[np.int64]
    inodes: NDArray[np.uint64]
    folders: list[str]
    skipped: SkippedFiles

    @property
    def images(self) -> LazyImages:
        """The files, read on demand."""
        return LazyImages(ImageFiles(self.root, self.names), np.arange(len(self.names)))


def list_images(root: Path, folders: Sequence[str], progress: Progress | None = None) -> FolderListing:
    """Return the image files of some folders and of the folders inside them.

    Args:
        root: Resolved parent folder.
        folders: Folders below it; ``[""]`` is all of it.
        progress: Called with folders listed, all folders, and the folder; None shows a bar.

    Raises:
        DataError: A folder is missing, or a link is broken.
        EnvironmentFailure: A folder cannot be read.
    """
    key = hashlib.sha256(os.fsencode("\0".join([RULE, str(root), *folders]))).hexdigest()[:32]
    cached = load(key)
    if "times" in cached:
        listed = [os.fsdecode(name) for name in cached["folders"]]
        if np.array_equal(_times(root, listed), cached["times"]):
            kinds = {kind: (count, first) for kind, count, first in json.loads(cached["left_out"].item())}
            return FolderListing(
                root, cached["names"], cached["counts"], cached["numbers"], listed, SkippedFiles(kinds)
            )
    start, skipped, listed = time.time_ns(), SkippedFiles(), list[str]()
    names, inodes, counts = [np.zeros(0, np.bytes_)], [np.zeros(0, np.uint64)], list[int]()
    with bar(progress) as report:
        for number, folder in enumerate(folders, 1):
            real = dict[str, str]()
            files = sorted(file for some in image_folders(root, folder, skipped, real) for file in some)
            names.append(np.array([os.fsencode(path) for path, _ in files], dtype=np.bytes_))
            inodes.append(np.array([inode % 2**64 for _, inode in files], dtype=np.uint64))
            counts.append(len(files))
            listed += real.values()
            report(number, len(folders), folder)
    result = FolderListing(
        root, np.concatenate(names), np.array(counts), np.concatenate(inodes), listed, skipped
    )
    times = _times(root, listed)
    if times.all() and times.max() < start - SETTLED_NS:
        kinds = json.dumps([(kind, *counted) for kind, counted in skipped.kinds.items()])
        columns = {"names": result.names, "counts": result.counts, "numbers": result.inodes, "times": times}
        folder_names = np.array([os.fsencode(folder) for folder in listed])
        save(key, **columns, folders=folder_names, left_out=np.array(kinds))
    return result


def _times(root: Path, folders: Sequence[str]) -> NDArray[np.int64]:
    """Return mtime and ctime of each folder, 0 where the file system does not maintain them."""
    times = np.zeros((len(folders), 2), np.int64)
    for row, folder in enumerate(folders):
        if os.path.isdir(path := root / folder):
            status = os.stat(path)
            times[row] = (status.st_mtime_ns, status.st_ctime_ns) if times_folders(status.st_dev) else 0
    return times
