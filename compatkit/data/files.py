"""Image files below a folder, read one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import overload

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.bars import Progress
from compatkit.data.filedigests import file_digests, file_states
from compatkit.data.lazy import LazyImages
from compatkit.errors import DataError, EnvironmentFailure

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
LARGEST_FILE = 2**27
"""Bytes of an image or a table; the largest photos have a tenth."""
PIECE = 4096
"""Paths whose places are looked up at a time."""
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

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> NDArray[np.void]:
        """See ``Reader``; remembered with size and times of change in the user's cache folder."""
        return file_digests(self.root, _Paths(self, positions, _front(self.root)), progress)

    def states(self, positions: NDArray[np.int64]) -> NDArray[np.void]:
        """Return a digest of path below the folder, size and time of each file, 16 bytes long, which is not read."""
        return file_states(_Paths(self, positions, _front(self.root)), _Paths(self, positions, b""))


@attrs.frozen(eq=False)
class _Paths(Sequence[bytes]):
    """Paths of some files, each made when it is asked for."""

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
        return self.front + self.files.below(int(self.positions[number]))

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), PIECE):
            some = self.positions[start : start + PIECE]
            ends = self.files.ends[some]
            starts = np.where(some > 0, self.files.ends[some - 1], 0)
            for first, end in zip(starts.tolist(), ends.tolist(), strict=True):
                yield self.front + self.files.names[first:end].tobytes()


def _front(root: Path) -> bytes:
    return os.path.join(os.fsencode(root), b"")


def listed(root: Path, paths: list[str]) -> LazyImages:
    """Return images by the paths of their files below ``root``.

    Args:
        root: Folder, or the root of a data set.
        paths: Relative, with ``/``.
    """
    encoded = [os.fsencode(one) for one in paths]
    ends = np.cumsum([len(one) for one in encoded], dtype=np.int64)
    return LazyImages(
        ImageFiles(root, np.frombuffer(b"".join(encoded), np.uint8), ends), np.arange(len(ends))
    )


def read_file(path: Path, most: int = LARGEST_FILE) -> bytes:
    """Return the bytes of a file.

    Args:
        path: Of the file.
        most: Bytes that it may have.

    Raises:
        DataError: It is gone, or larger.
        EnvironmentFailure: The system does not let it be read.
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


def image_folders(
    root: Path, folder: str = "", entered: Callable[[str], object] | None = None
) -> Iterator[list[str]]:
    """Yield the image files of a folder, then of each folder in it, by their paths below ``root``.

    Links to folders are not followed.

    Args:
        root: Where paths start.
        folder: Below it.
        entered: Called with each folder, before it is listed.

    Args:
        root: Where the paths begin.
        folder: Relative to ``root``; empty for ``root`` itself.

    Raises:
        DataError: A folder is gone, or a link leads nowhere.
        EnvironmentFailure: A folder cannot be read.
    """
    if entered is not None:
        entered(folder)
    inside, front = entries(root / folder), f"{folder}/" if folder else ""
    images = [
        one for one in inside if one.name.lower().endswith(ENDINGS) and not one.is_dir(follow_symlinks=False)
    ]
    lost = next((one for one in images if one.is_symlink() and not os.path.isfile(one.path)), None)
    if lost is not None:
        raise DataError(
            f"{lost.path} is a link to a file that is not there. Fetch it, or remove the link.",
            subject=Path(lost.path),
        )
    # What an entry says of itself costs no call of the system.
    yield [front + one.name for one in images if one.is_symlink() or one.is_file(follow_symlinks=False)]
    for one in inside:
        if one.is_dir(follow_symlinks=False):
            yield from image_folders(root, front + one.name, entered)
