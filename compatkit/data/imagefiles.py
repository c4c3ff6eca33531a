"""Image files below a folder, read one by one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.filedigests import file_digests, file_states
from compatkit.data.lazy import LazyImages
from compatkit.data.skipped import HIDDEN_FILES, HIDDEN_FOLDERS, JUNK, LINKS, LISTED, PIPES, LeftOut
from compatkit.errors import DataError, EnvironmentFailure
from compatkit.foundation.bars import Progress

ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"),
    *(".ppm", ".pgm", ".pbm", ".pnm"),
)
"""Of files that are read, in any case."""
LARGEST_FILE = 2**27
"""Bytes of an image or a table; the largest photos have a tenth."""
HIDDEN = (".", "@", "__MACOSX")


@attrs.frozen(eq=False)
class ImageFiles:
    """The image files of a folder; names are one array of bytes, which worker processes share.

    Attributes:
        root: The folder.
        names: Paths below it, or absolute ones, ``(n,)``.
    """

    root: Path
    names: NDArray[np.bytes_]

    def __len__(self) -> int:
        return len(self.names)

    def path(self, position: int) -> Path:
        """Return the path of a file."""
        return self.root / os.fsdecode(self.names[position])

    def name(self, position: int) -> str:
        """See ``Reader``."""
        return str(self.path(position))

    def read(self, position: int) -> bytes:
        """See ``Reader``."""
        return read_file(self.path(position))

    def endings(self, positions: NDArray[np.int64]) -> dict[str, int]:
        """Return how many of some files have each ending, in lower case, the most frequent first."""
        ends = (os.path.splitext(name)[1].decode("ascii", "replace") for name in self.names[positions])
        return dict(Counter(end.lower() for end in ends).most_common())

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> NDArray[np.void]:
        """See ``Reader``; remembered with size and times of change in the user's cache folder."""
        return file_digests(self.root, self.names[positions], progress)

    def states(self, positions: NDArray[np.int64]) -> NDArray[np.void]:
        """Return a digest of name, size and time of each file, 16 bytes long, which is not read."""
        return file_states(self.root, self.names[positions])


def listed(root: Path, paths: Sequence[str]) -> LazyImages:
    """Return images by the paths of their files below ``root``.

    Args:
        root: Folder, or the root of a data set.
        paths: Relative, with ``/``.
    """
    names = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
    return LazyImages(ImageFiles(root, names), np.arange(len(names)))


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
    root: Path, folder: str = "", left_out: LeftOut | None = None, real: dict[str, str] | None = None
) -> Iterator[list[tuple[str, int]]]:
    """Yield the image files of a folder, then of each folder in it: paths below ``root``, and numbers (inodes).

    Links to folders are followed. Each folder is entered once; a second way to it is counted as left out.

    Args:
        root: Where the paths begin, resolved.
        folder: Relative to ``root``; empty for ``root`` itself.
        left_out: Gets what is not read.
        real: Gets the real path of each folder, and its path below ``root``.

    Raises:
        DataError: A folder is gone, a link of an image leads nowhere, or one of a folder to what holds ``root``.
        EnvironmentFailure: A folder cannot be read.
    """
    real, left_out = {} if real is None else real, LeftOut() if left_out is None else left_out
    waiting = [folder]
    while waiting:
        inside = waiting.pop()
        place = os.path.realpath(root / inside)
        if inside:
            _check_link(root, place, inside)
        if real.setdefault(place, inside) != inside:
            left_out.add(LISTED, inside)
            continue
        images, folders = _sorted_out(root / inside, inside, left_out)
        yield images
        waiting += reversed(folders)


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
