"""Image files below a folder, read one by one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.filedigests import file_digests
from compatkit.data.lazy import LazyImages, Progress
from compatkit.errors import DataError, EnvironmentFailure

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
HIDDEN = (".", "@", "__MACOSX")


@attrs.frozen(eq=False)
class ImageFiles:
    """The image files of a folder; names are kept as one piece of bytes, which worker processes share.

    Attributes:
        root: The folder.
        names: Paths below it, one after the other.
        ends: Where each ends, int64 ``(n,)``.
    """

    root: Path
    names: bytes
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def path(self, position: int) -> Path:
        """Return the path of a file."""
        start = int(self.ends[position - 1]) if position else 0
        return self.root / os.fsdecode(self.names[start : int(self.ends[position])])

    def name(self, position: int) -> str:
        """See ``Reader``."""
        return str(self.path(position))

    def read(self, position: int) -> bytes:
        """See ``Reader``."""
        return read_file(self.path(position))

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> list[bytes]:
        """See ``Reader``; remembered with size and times of change in the user's cache folder."""
        return file_digests(self.root, [self.path(int(one)) for one in positions], progress)


def listed(root: Path, paths: list[str]) -> LazyImages:
    """Return images by the paths of their files below ``root``.

    Args:
        root: Folder, or the root of a data set.
        paths: Relative, with ``/``.
    """
    encoded = [os.fsencode(one) for one in paths]
    ends = np.cumsum([len(one) for one in encoded], dtype=np.int64)
    return LazyImages(ImageFiles(root, b"".join(encoded), ends), np.arange(len(ends)))


def read_file(path: Path) -> bytes:
    """Return the bytes of a file.

    Raises:
        DataError: It is gone.
        EnvironmentFailure: The system does not let it be read.
    """
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DataError(f"{path} is gone, or no file; list the folder again.", subject=path) from error
    except OSError as error:
        raise EnvironmentFailure(
            f"{path} cannot be read: {error.strerror}. Check its rights.", subject=path
        ) from error


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what lies in a folder, hidden names left out.

    Raises:
        DataError: There is no such folder.
        EnvironmentFailure: It cannot be read.
    """
    try:
        with os.scandir(folder) as found:
            return sorted((one for one in found if not one.name.startswith(HIDDEN)), key=lambda one: one.name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"There is no folder {folder}.", subject=folder) from error
    except OSError as error:
        raise EnvironmentFailure(
            f"The folder {folder} cannot be read: {error.strerror}. Check its rights.", subject=folder
        ) from error


def image_files(root: Path, folder: str = "") -> Iterator[str]:
    """Yield the paths below ``root`` of all image files in a folder; links to folders are not followed.

    Args:
        root: Where the paths begin.
        folder: Relative to ``root``; empty for ``root`` itself.

    Raises:
        DataError: A folder is gone, or a link leads nowhere.
        EnvironmentFailure: A folder cannot be read.
    """
    for one in entries(root / folder):
        place = f"{folder}/{one.name}" if folder else one.name
        if one.is_dir(follow_symlinks=False):
            yield from image_files(root, place)
        elif one.name.lower().endswith(ENDINGS):
            if os.path.isfile(one.path):
                yield place
            elif one.is_symlink():
                raise DataError(
                    f"{one.path} is a link to a file that is not there. Fetch it, or remove the link.",
                    subject=Path(one.path),
                )
