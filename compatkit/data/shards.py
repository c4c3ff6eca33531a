"""WebDataset shards: ``.tar`` files on disk or at a URL, whose members are read in any order by their offsets.

A sample is the members of one name: an image (``0001.jpg``) and its class (``0001.cls``: a number or a name). Class
names are the lines of ``classes.txt`` or ``classnames.txt`` in the shards' folder, or the contents of the ``.cls``
members.
"""

from __future__ import annotations

import os
import posixpath
from fnmatch import fnmatch
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.classnames import CLASSES_FILE, encode_labels, parse_class_names
from compatkit.data.dataset import DataSet
from compatkit.data.duplicates import file_ids, repeated_files
from compatkit.data.filenames import decode_name
from compatkit.data.filesystem import FileSystem, find_files, is_pattern
from compatkit.data.lazy import LazyImages
from compatkit.data.shardindex import shard_index
from compatkit.data.shardsets import check_complete, check_skipped_files, warn_single_shard
from compatkit.data.split import Split
from compatkit.data.splitnames import check_undivided, heldout_kind, split_kinds_of_files
from compatkit.data.traintest import divide_by_name
from compatkit.errors import DataError
from compatkit.foundation.bars import Progress, bar

EXTENSION = ".tar"


@attrs.frozen(eq=False)
class Shards:
    """Images in shards; a ``Reader``.

    Attributes:
        files: File system of the shards.
        paths: Paths of the shards.
        shards: Index of each image's shard, ``(n,)``.
        members: Records of the shards' indexes, ``(n,)``.
    """

    files: FileSystem
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
        return self.files.read(self.paths[self.shards[position]], int(member["offset"]), int(member["size"]))

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> NDArray[np.void]:
        """See ``Reader``; computed with the index."""
        return self.members["digest"][positions]


def is_shards(address: str) -> bool:
    """Return whether an address is one of shards: a ``.tar`` file, a pattern, or a URL."""
    return address.endswith(EXTENSION) or "://" in address or is_pattern(address)


def read_shards(
    address: str, *, name: str | None = None, progress: Progress | None = None
) -> DataSet | Split:
    """Index shards; each is read once, and its index is cached.

    Args:
        address: A folder, a ``.tar`` file or a pattern of such files, as a path or a URL that fsspec supports. Shards
            with ``train``, and ``val`` or ``test``, as a word of their names or of their folders' make two splits; see
            ``splitnames`` for other words.
        name: Name of the data set; default: name of the folder.
        progress: Called with bytes read, all bytes, and the path of the shard.

    Raises:
        DataError: There is no shard; one is missing, damaged, compressed or repeated; an image has no class or
            several; some shards name a split, and others none.
        EnvironmentFailure: A shard cannot be read.
        MissingDependency: The library for this kind of URL is not installed.
    """
    files, root, paths = find_files(address, EXTENSION)
    single = len(paths) == 1 and address.endswith(paths[0])
    if single:
        warn_single_shard(paths[0])
    else:
        _check_set(files, address, root, paths)
    sizes = [files.size(path) for path in paths]
    indexes: list[NDArray[np.void]] = []
    with bar(progress) as report:
        for number, path in enumerate(paths):

            def advance(n_bytes: int, before: int = sum(sizes[:number]), path: str = path) -> None:
                report(before + n_bytes, sum(sizes), path)

            indexes.append(shard_index(files, path, advance))
    members = np.concatenate(indexes)
    shards = np.repeat(np.arange(len(indexes)), [len(index) for index in indexes])
    default = paths[0].removesuffix(EXTENSION) if address.endswith(paths[0]) else root
    name = decode_name(name or posixpath.basename(default) or "shards")
    candidates = [f"{root}/{file}" for file in (CLASSES_FILE, "classnames.txt")]
    file = next((path for path in candidates if files.exists(path)), None)
    names = None if file is None else parse_class_names(files.read_all(file), file)
    classes, labels = encode_labels([label.decode() for label in members["label"].tolist()], address, names)
    images = LazyImages(Shards(files, tuple(paths), shards, members), np.arange(len(members)))
    split = Split(images, labels, classes, f"{name}/train")
    kinds = split_kinds_of_files(
        [path.removeprefix(root).strip("/").removesuffix(EXTENSION) for path in paths], root
    )
    if kinds is None or "train" not in kinds or heldout_kind(kinds) is None:
        folders = {member.rpartition(b"/")[0] for member in members["name"].tolist()}
        advice = "Write each split into shards of its own, with the split's name in the names of the shards."
        check_undivided([folder.decode("utf-8", "replace") for folder in folders], address, advice)
        return split
    return divide_by_name(split, [kinds[shard] for shard in shards.tolist()], name, address)


def _check_set(files: FileSystem, address: str, root: str, paths: list[str]) -> None:
    """Refuse a set of shards with missing, unreadable or repeated files."""
    pattern = posixpath.basename(address) if is_pattern(address) else "*"
    folders = {posixpath.dirname(path) for path in paths}
    siblings = [path for folder in folders for path in files.list_folder(folder)]
    matching = [path for path in siblings if fnmatch(posixpath.basename(path), f"{pattern}*")]
    check_skipped_files(matching, EXTENSION, root)
    check_complete(paths, root, excluded=[path for path in siblings if path.endswith(EXTENSION)])
    local = [] if "://" in files.address else paths
    for before, row in repeated_files(Path(os.sep), local, file_ids(Path(os.sep), local)):
        raise DataError(
            f"{local[before]} and {local[row]} are the same file. Remove one.", subject=local[row]
        )
