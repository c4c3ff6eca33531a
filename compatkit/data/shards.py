"""WebDataset shards: ``.tar`` files here or at a URL, whose members are read by their places, in any order.

A sample is the members of one name: an image (``0001.jpg``) and its class (``0001.cls``: a number or a name). Class
names are the lines of ``classes.txt`` or ``classnames.txt`` beside the shards, or what stands in the ``.cls`` members.
"""

from __future__ import annotations

import os
import posixpath
from fnmatch import fnmatch
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.classnames import NAMES, names_of, numbered
from compatkit.data.dataset import DataSet
from compatkit.data.duplicates import file_states_of, repeated
from compatkit.data.filenames import text_of
from compatkit.data.filesystem import Address, located
from compatkit.data.lazy import LazyImages
from compatkit.data.shardindex import index
from compatkit.data.shardsets import check_complete, check_skipped_files, warn_single_shard
from compatkit.data.split import Split
from compatkit.data.splitnames import check_folders, held_out, parts_of_files
from compatkit.data.traintest import parted
from compatkit.errors import DataError
from compatkit.foundation.bars import Progress, bar

ENDING = ".tar"


@attrs.frozen(eq=False)
class Shards:
    """Images in shards.

    Attributes:
        place: Where the shards are.
        paths: Of the shards.
        shards: Of each image: number of its shard, ``(n,)``.
        members: Rows of their indexes, ``(n,)``.
    """

    place: Address
    paths: tuple[str, ...]
    shards: NDArray[np.int64]
    members: NDArray[np.void]

    def __len__(self) -> int:
        return len(self.members)

    def name(self, position: int) -> str:
        """See ``Reader``."""
        name = self.members["name"][position].decode("utf-8", "replace")
        return f"{self.paths[self.shards[position]]}:{name}"

    def read(self, position: int) -> bytes:
        """See ``Reader``."""
        member = self.members[position]
        return self.place.read(self.paths[self.shards[position]], int(member["offset"]), int(member["size"]))

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> NDArray[np.void]:
        """See ``Reader``; made with the index."""
        return self.members["digest"][positions]


def is_shards(address: str) -> bool:
    """Return whether an address is one of shards: a ``.tar`` file, a pattern, or a URL."""
    return address.endswith(ENDING) or "://" in address or any(character in address for character in "*?[")


def read_shards(
    address: str, *, name: str | None = None, progress: Progress | None = None
) -> DataSet | Split:
    """Index shards, each read once: their members' places and digests are remembered in the user's cache folder.

    Args:
        address: A folder, a ``.tar`` file or a pattern of such files, here or as a URL that fsspec reaches. Shards with
            ``train``, and ``val`` or ``test``, as a word of their names, or of their folders' below the address, make
            the two parts; see ``partnames`` for other words.
        name: Of the data set; that of the folder by default.
        progress: Called with bytes read, all bytes, and the shard that is read.

    Raises:
        DataError: There is no shard; one is missing, damaged, compressed or comes twice; an image has no class, or
            several; some shards name a part, and others none.
        EnvironmentFailure: A shard cannot be read.
        MissingDependency: The library for this kind of URL is not installed.
    """
    place, root, paths = located(address, ENDING)
    _check_set(place, address, root, paths)
    sizes = [place.size(path) for path in paths]
    tables: list[NDArray[np.void]] = []
    with bar(progress) as tell:
        for number, path in enumerate(paths):

            def arrived(count: int, before: int = sum(sizes[:number]), path: str = path) -> None:
                tell(before + count, sum(sizes), path)

            tables.append(index(place, path, arrived))
    members = np.concatenate(tables)
    shard = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    called = text_of(
        name
        or posixpath.basename(paths[0].removesuffix(ENDING) if address.endswith(paths[0]) else root)
        or "shards"
    )
    listed = next((file for file in (NAMES, "classnames.txt") if place.exists(f"{root}/{file}")), None)
    names = None if listed is None else names_of(place.whole(f"{root}/{listed}"), f"{root}/{listed}")
    classes, labels = numbered([label.decode() for label in members["label"].tolist()], address, names)
    whole = Split(
        LazyImages(Shards(place, tuple(paths), shard, members), np.arange(len(members))),
        labels,
        classes,
        f"{called}/train",
    )
    parts = parts_of_files([path.removeprefix(root).strip("/").removesuffix(ENDING) for path in paths], root)
    if parts is None or "train" not in parts or held_out(parts) is None:
        folders = {name.rpartition(b"/")[0] for name in members["name"].tolist()}
        way_out = "Write each part into shards of its own, with its name in theirs."
        check_folders([folder.decode("utf-8", "replace") for folder in folders], address, way_out)
        return whole
    return parted(whole, [parts[number] for number in shard.tolist()], called, address)


def _check_set(place: Address, address: str, root: str, paths: list[str]) -> None:
    """Refuse a set of shards of which some are missing, not to be read, or there twice; warn of one of a set.

    Raises:
        DataError: It is one.
    """
    pattern = posixpath.basename(address) if any(mark in address for mark in "*?[") else "*"
    if len(paths) == 1 and address.endswith(paths[0]):
        warn_single_shard(paths[0])
        return
    beside = [
        path for folder in {posixpath.dirname(path) for path in paths} for path in place.names_in(folder)
    ]
    check_skipped_files(
        [path for path in beside if fnmatch(posixpath.basename(path), f"{pattern}*")], ENDING, root
    )
    check_complete(paths, root, excluded=[path for path in beside if path.endswith(ENDING)])
    local = [] if "://" in place.address else paths
    for before, row in repeated(Path(os.sep), local, file_states_of(Path(os.sep), local)):
        raise DataError(
            f"{local[before]} and {local[row]} are one file by a link: its images would come twice. Remove one.",
            subject=local[row],
        )
