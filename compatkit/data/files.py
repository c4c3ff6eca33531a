"""Image files below a folder, read one by one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import overload

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.bars import Progress
from compatkit.data.filedigests import file_digests, file_states
from compatkit.data.lazy import LazyImages
from compatkit.data.leftout import HIDDEN_FILES, HIDDEN_FOLDERS, JUNK, LINKS, LISTED, PIPES, LeftOut
from compatkit.errors import DataError, EnvironmentFailure

ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"),
    *(".ppm", ".pgm", ".pbm", ".pnm"),
)
"""Of files that are read, in any case."""
LONGEST_ENDING = max(map(len, ENDINGS))
LARGEST_FILE = 2**27
"""Bytes of an image or a table; the largest photos have a tenth."""
PIECE = 4096
"""Paths whose places are looked up at a time."""
ROOT = os.fsencode(os.sep)
HIDDEN = (".", "@", "__MACOSX")


@attrs.frozen(eq=False)
class ImageFiles:
    """The image files of a folder; names are kept as one piece of bytes, which worker processes share.

    Attributes:
        root: The folder.
        names: Paths below it, one after the other, uint8.
        ends: Where each ends, int64 ``(n,)``.
    """

    root: Path
    names: NDArray[np.uint8]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def below(self, position: int) -> bytes:
        """Return the path of a file below the folder."""
        start = self.ends[position - 1] if position else 0
        return self.names[start : self.ends[position]].tobytes()

    def path(self, position: int) -> Path:
        """Return the path of a file."""
        return self.root / os.fsdecode(self.below(position))

    def name(self, position: int) -> str:
        """See ``Reader``."""
        return str(self.path(position))

    def read(self, position: int) -> bytes:
        """See ``Reader``."""
        return read_file(self.path(position))

    def endings(self, positions: NDArray[np.int64]) -> dict[str, int]:
        """Return how many of some files have each ending, in lower case, the most frequent first."""
        if not len(positions):
            return {}
        places = self.ends[positions][:, None] - np.arange(LONGEST_ENDING, 0, -1)
        tails = self.names[np.maximum(places, 0)].view(f"S{LONGEST_ENDING}").ravel()
        counts: Counter[str] = Counter()
        for tail, count in zip(*np.unique(tails, return_counts=True), strict=True):
            counts[os.path.splitext(b"_" + tail)[1].decode("ascii", "replace").lower()] += int(count)
        return dict(counts.most_common())

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> NDArray[np.void]:
        """See ``Reader``; remembered with size and times of change in the user's cache folder."""
        return file_digests(self.root, _Paths(self, positions, _front(self.root)), progress)

    def states(self, positions: NDArray[np.int64]) -> NDArray[np.void]:
        """Return a digest of path below the folder, size and time of each file, 16 bytes long, which is not read."""
        return file_states(_Paths(self, positions, _front(self.root)), _Paths(self, positions, b""))


@attrs.frozen(eq=False)
class _Paths(Sequence[bytes]):
    """Paths of some files, each made on demand."""

    files: ImageFiles
    positions: NDArray[np.int64]
    front: bytes

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, number: int) -> bytes: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[bytes]: ...
    def __getitem__(self, number: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(number, slice):
            return attrs.evolve(self, positions=self.positions[number])
        return self._whole(self.files.below(int(self.positions[number])))

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), PIECE):
            some = self.positions[start : start + PIECE]
            ends = self.files.ends[some]
            starts = np.where(some > 0, self.files.ends[some - 1], 0)
            for first, end in zip(starts.tolist(), ends.tolist(), strict=True):
                yield self._whole(self.files.names[first:end].tobytes())

    def _whole(self, path: bytes) -> bytes:
        """Return a path as the system finds it; a table may hold absolute ones."""
        return path if path.startswith(ROOT) else self.front + path


def _front(root: Path) -> bytes:
    return os.path.join(os.fsencode(root), b"")


def listed(root: Path, paths: list[str]) -> LazyImages:
    """Return images by the paths of their files below ``root``.

    Args:
        root: Folder, or the root of a data set.
        paths: Relative, with ``/``.
    """
    encoded = [os.fsencode(path) for path in paths]
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    return LazyImages(
        ImageFiles(root, np.frombuffer(b"".join(encoded), np.uint8), ends), np.arange(len(ends))
    )


def read_file(path: Path, most: int = LARGEST_FILE) -> bytes:
    """Return the bytes of a file.

    Args:
        path: Of the file.
        most: Bytes that it may have.

    Raises:
        DataError: The folder is gone, or larger.
        EnvironmentFailure: It cannot be read.
    """
    try:
        if not path.is_file():  # a pipe would be waited for without end
            raise FileNotFoundError(path)
        if (size := path.stat().st_size) > most:
            raise DataError(f"{path} has {size:,} bytes; at most {most:,} are read.", subject=path)
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DataError(f"{path} is gone, or no file; list the folder again.", subject=path) from error
    except OSError as error:
        raise EnvironmentFailure(
            f"{path} cannot be read: {error.strerror}. Check its rights.", subject=path
        ) from error


def entries(folder: Path, hidden: bool = False) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name.

    Args:
        folder: Of images.
        hidden: Whether hidden names are returned too.

    Raises:
        DataError: There is no such folder.
        EnvironmentFailure: It cannot be read.
    """
    try:
        with os.scandir(folder) as scan:
            inside = scan if hidden else (entry for entry in scan if not entry.name.startswith(HIDDEN))
            return sorted(inside, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"There is no folder {folder}.", subject=folder) from error
    except OSError as error:
        raise EnvironmentFailure(
            f"The folder {folder} cannot be read: {error.strerror}. Check its rights.", subject=folder
        ) from error


def image_folders(
    root: Path,
    folder: str = "",
    entered: Callable[[str], object] | None = None,
    left_out: LeftOut | None = None,
    real: dict[str, str] | None = None,
) -> Iterator[list[tuple[str, int]]]:
    """Yield the image files of a folder, then of each folder in it: paths below ``root``, and numbers (inodes).

    Links to folders are followed. Each folder is entered once; a second way to it is counted as left out.

    Args:
        root: Where the paths begin, resolved.
        folder: Relative to ``root``; empty for ``root`` itself.
        entered: Called with each folder, before it is listed.
        left_out: Gets what is not read.
        real: Real paths of the folders entered before, for other folders too, and their paths below ``root``.

    Raises:
        DataError: A folder is gone, a link of an image leads nowhere, or one of a folder to what holds ``root`` or lies
            in another folder entered before.
        EnvironmentFailure: A folder cannot be read.
    """
    real, left_out = {} if real is None else real, LeftOut() if left_out is None else left_out
    waiting = [folder]
    while waiting:
        inside = waiting.pop()
        place = os.path.realpath(root / inside)
        if inside:
            _check_link(root, place, inside)
        other = real.setdefault(place, inside)
        if other == inside:
            if entered is not None:
                entered(inside)
            images, folders = _sorted_out(root / inside, inside, left_out)
            yield images
            waiting += reversed(folders)
        elif folder in ("", other) or other.startswith(f"{folder}/"):
            left_out.add(LISTED, inside)
        else:
            raise DataError(
                f"{root / inside} and {root / other} are one folder by a link: each image would be in two classes. "
                "Remove the link.",
                subject=root / inside,
            )


def _check_link(root: Path, place: str, path: str) -> None:
    """Refuse a link to a folder that holds all of the images.

    Raises:
        DataError: It is one.
    """
    if str(root).startswith(os.path.join(place, "")) or str(root) == place:
        raise DataError(
            f"The link {root / path} leads back to {place}, which holds it: each image would come twice. Remove it.",
            subject=root / path,
        )


def _sorted_out(place: Path, folder: str, left_out: LeftOut) -> tuple[list[tuple[str, int]], list[str]]:
    """Return image files and folders of a folder; what is neither is counted as left out.

    Raises:
        DataError: An image is a broken link.
    """
    images, front = list[tuple[str, int]](), f"{folder}/" if folder else ""
    folders, links = list[str](), list[str]()
    for entry in entries(place, hidden=True):
        name, path = entry.name, front + entry.name
        image = name.lower().endswith(ENDINGS)
        if name.startswith(HIDDEN):
            add_hidden(entry, path, left_out)
        elif is_folder(entry):
            (links if entry.is_symlink() else folders).append(path)
        elif image and entry.is_symlink() and not os.path.isfile(entry.path):
            raise DataError(
                f"{entry.path} is a link to a file that is not there. Fetch it, or remove the link.",
                subject=Path(entry.path),
            )
        elif image and (entry.is_symlink() or entry.is_file(follow_symlinks=False)):
            images.append((path, os.stat(entry.path).st_ino if entry.is_symlink() else entry.inode()))
        else:
            add_other(entry, path, left_out)
    return images, [*folders, *links]


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a folder, or a link to one; of what is no link this costs no call of the system."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir(follow_symlinks=False)


def add_other(entry: os.DirEntry[str], path: str, left_out: LeftOut) -> None:
    """Count what is neither a folder nor an image: a file of another ending, a broken link, a pipe."""
    if os.path.isfile(entry.path):
        left_out.add_file(entry.name, path)
    else:
        left_out.add(LINKS if entry.is_symlink() else PIPES, path)


def add_hidden(entry: os.DirEntry[str], path: str, left_out: LeftOut) -> None:
    """Count a hidden image, or a hidden folder that holds images; what belongs to other programs does not count."""
    if entry.name in JUNK or entry.name.startswith("._"):
        return
    if not is_folder(entry):
        if entry.name.lower().endswith(ENDINGS):
            left_out.add(HIDDEN_FILES, path)
        return
    with suppress(DataError, EnvironmentFailure):
        if not any(image_folders(Path(os.path.realpath(entry.path)))):
            return
    left_out.add(HIDDEN_FOLDERS, path)
