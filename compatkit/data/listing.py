"""Which image files the class folders of a folder hold, listed once and remembered with the times of the folders.

A folder's time changes with what is in it, so that one look at each folder tells whether a list still holds. Lists are
remembered where the file system keeps such times, and only of folders that have been left alone for a while: one more
change in the same tick of a coarse clock could not be told.
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

from compatkit.data.bars import Progress, bar
from compatkit.data.files import ENDINGS, HIDDEN, image_folders
from compatkit.data.leftout import LeftOut
from compatkit.data.memory import recalled_table, remember_table
from compatkit.foundation.mounts import times_folders

SETTLED_NS = 2 * 10**9
"""Time in ns that a folder must have been left alone."""
RULE = repr((4, ENDINGS, HIDDEN))
"""What counts as an image file; lists made by another rule are not used."""


@attrs.frozen(eq=False)
class FolderListing:
    """Paths of image files as one piece of bytes.

    Attributes:
        names: Paths below the folder, one after the other, by folder asked for and then by path, uint8.
        ends: Where each ends, int64 ``(n,)``.
        counts: Files of each folder asked for, int64 ``(folders,)``.
        numbers: That the file system gives the files (inodes), uint64 ``(n,)``: equal where two paths lead to one.
        folders: All folders that were listed, those asked for and those in them.
        left_out: What is not read.
    """

    names: NDArray[np.uint8]
    ends: NDArray[np.int64]
    counts: NDArray[np.int64]
    numbers: NDArray[np.uint64]
    folders: tuple[str, ...]
    left_out: LeftOut


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
    key = hashlib.sha256(b"%s\0%d" % (os.fsencode(root), folders == [""])).hexdigest()[:32]
    request = _packed([RULE, *folders])
    known = _recalled(root, key, request)
    if known is not None:
        return known
    began, entered = time.time_ns(), dict[str, tuple[int, int] | None]()

    def enter(folder: str) -> None:
        entered[folder] = _times(root / folder)

    left_out, real = LeftOut(), dict[str, str]()
    names, lengths, counts = bytearray(), list[NDArray[np.int64]](), list[int]()
    numbers = list[NDArray[np.uint64]]()
    with bar(progress) as tell:
        for number, folder in enumerate(folders, 1):
            files = [file for some in image_folders(root, folder, enter, left_out, real) for file in some]
            files.sort()
            paths = [path for path, _ in files]
            numbers.append(np.fromiter((inode % 2**64 for _, inode in files), np.uint64, len(files)))
            encoded = os.fsencode("".join(paths))
            plain = len(encoded) == sum(map(len, paths))
            lengths.append(
                np.fromiter(
                    (len(path if plain else os.fsencode(path)) for path in paths), np.int64, len(paths)
                )
            )
            names += encoded
            counts.append(len(paths))
            tell(number, len(folders), folder)
    ends = np.cumsum(np.concatenate([np.zeros(0, np.int64), *lengths]))
    result = FolderListing(
        np.frombuffer(names, np.uint8),
        ends,
        np.array(counts, np.int64),
        np.concatenate([np.zeros(0, np.uint64), *numbers]),
        tuple(entered),
        left_out,
    )
    times = list(entered.values())
    if all(modified is not None and max(modified) < began - SETTLED_NS for modified in times):
        columns = {"names": result.names, "ends": result.ends, "counts": result.counts, "asked": request}
        columns["numbers"] = result.numbers
        columns |= {"entered": _packed(list(entered)), "times": np.array(times, np.int64)}
        columns["left_out"] = _packed([json.dumps(left_out.kinds)])
        remember_table(key, columns)
    return result


def _recalled(root: Path, key: str, request: NDArray[np.uint8]) -> FolderListing | None:
    """Return the cached listing; None if there is none, or a folder has changed since."""
    table = recalled_table(key)
    if table is None or not np.array_equal(table.get("asked", ()), request):
        return None
    entered = os.fsdecode(table["entered"].tobytes()).split("\0")
    if [_times(root / folder) for folder in entered] != list(map(tuple, table["times"].tolist())):
        return None
    kinds = json.loads(table["left_out"].tobytes())
    left_out = LeftOut({kind: (count, first) for kind, (count, first) in kinds.items()})
    return FolderListing(
        table["names"], table["ends"], table["counts"], table["numbers"], tuple(entered), left_out
    )


def _packed(texts: Sequence[str]) -> NDArray[np.uint8]:
    return np.frombuffer(os.fsencode("\0".join(texts)), np.uint8)


def _times(folder: Path) -> tuple[int, int] | None:
    """Return when a folder was written, and when it last changed, which nothing sets; None where that says nothing."""
    try:
        of = os.stat(folder)
    except OSError:
        return None
    return (of.st_mtime_ns, of.st_ctime_ns) if times_folders(of.st_dev) else None
