"""Image files below a folder, found recursively and read one by one."""

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
from compatkit.data.skipped import HIDDEN_FILES, HIDDEN_FOLDERS, JUNK, LINKS, LISTED, PIPES, SkippedFiles
from compatkit.errors import DataError, EnvironmentFailure
from compatkit.foundation.bars import Progress

EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"),
    *(".ppm", ".pgm", ".pbm", ".pnm"),
)
"""Extensions of image files, in any case."""
LARGEST_FILE = 2**27
"""Bytes of the largest image or table that is read; the largest photos have a tenth."""
HIDDEN = (".", "@", "__MACOSX")
"""Prefixes of the names of hidden files and folders."""


@attrs.frozen(eq=False)
class ImageFiles:
    """Image files of a folder; a ``Reader``. Paths are one array of bytes, which worker processes share.

    Attributes:
        root: The folder.
        names: Paths below it, or absolute paths, ``(n,)``.
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

    def extensions(self, positions: NDArray[np.int64]) -> dict[str, int]:
        """Return the count of each extension among some files, in lower case, most frequent first."""
        extensions = (os.path.splitext(name)[1].decode("ascii", "replace") for name in self.names[positions])
        return dict(Counter(extension.lower() for extension in extensions).most_common())

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> NDArray[np.void]:
        """See ``Reader``; cached by path, size and times of the files."""
        return file_digests(self.root, self.names[positions], progress)

    def states(self, positions: NDArray[np.int64]) -> NDArray[np.void]:
        """Return a digest of name, size and mtime of each file, 16 bytes; the files are not read."""
        return file_states(self.root, self.names[positions])


def image_files(root: Path, paths: Sequence[str]) -> LazyImages:
    """Return the images of some files.

    Args:
        root: Folder of the files.
        paths: Paths below it, with ``/``.
    """
    names = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
    return LazyImages(ImageFiles(root, names), np.arange(len(names)))


def read_file(path: Path, max_bytes: int = LARGEST_FILE) -> bytes:
    """Return the bytes of a file.

    Args:
        path: Path of the file.
        max_bytes: Size limit.

    Raises:
        DataError: The file is missing or too large.
        EnvironmentFailure: It cannot be read.
    """
    try:
        if not path.is_file():  # reading a pipe would block forever
            raise FileNotFoundError(path)
        if (size := path.stat().st_size) > max_bytes:
            raise DataError(f"{path} has {size:,} bytes; at most {max_bytes:,} are read.", subject=path)
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing or not a file. Load the data set again.", subject=path) from error
    except OSError as error:
        raise EnvironmentFailure(
            f"{path} cannot be read: {error.strerror}. Check its permissions.", subject=path
        ) from error


def entries(folder: Path, hidden: bool = False) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name.

    Args:
        folder: The folder.
        hidden: Whether to include hidden names.

    Raises:
        DataError: The folder does not exist.
        EnvironmentFailure: It cannot be read.
    """
    try:
        with os.scandir(folder) as scan:
            chosen = scan if hidden else (entry for entry in scan if not entry.name.startswith(HIDDEN))
            return sorted(chosen, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"There is no folder {folder}.", subject=folder) from error
    except OSError as error:
        raise EnvironmentFailure(
            f"The folder {folder} cannot be read: {error.strerror}. Check its permissions.", subject=folder
        ) from error


def image_folders(
    root: Path, folder: str = "", skipped: SkippedFiles | None = None, real: dict[str, str] | None = None
) -> Iterator[list[tuple[str, int]]]:
    """Yield the image files of a folder and of each folder inside it: paths below ``root``, and inode numbers.

    Links to folders are followed. Each folder is visited once; further links to it count as skipped.

    Args:
        root: Resolved path that the yielded paths are relative to.
        folder: Path below ``root``; empty for ``root`` itself.
        skipped: Receives what is not read.
        real: Receives the real path of each folder, with its path below ``root``.

    Raises:
        DataError: A folder is missing, an image is a broken link, or a link leads to a folder that contains ``root``.
        EnvironmentFailure: A folder cannot be read.
    """
    real, skipped = {} if real is None else real, SkippedFiles() if skipped is None else skipped
    pending = [folder]
    while pending:
        inside = pending.pop()
        target = os.path.realpath(root / inside)
        if inside and (str(root) == target or str(root).startswith(os.path.join(target, ""))):
            raise DataError(
                f"The link {root / inside} leads back to {target}, so each image would come twice. Remove it.",
                subject=root / inside,
            )
        if real.setdefault(target, inside) != inside:
            skipped.add(LISTED, inside)
            continue
        images, folders = _list_folder(root / inside, inside, skipped)
        yield images
        pending += reversed(folders)


def _list_folder(path: Path, folder: str, skipped: SkippedFiles) -> tuple[list[tuple[str, int]], list[str]]:
    """Return image files and subfolders of a folder; everything else counts as skipped."""
    images, prefix = list[tuple[str, int]](), f"{folder}/" if folder else ""
    folders, links = list[str](), list[str]()
    for entry in entries(path, hidden=True):
        name, relative = entry.name, prefix + entry.name
        is_image = name.lower().endswith(EXTENSIONS)
        if name.startswith(HIDDEN):
            add_hidden(entry, relative, skipped)
        elif is_folder(entry):
            (links if entry.is_symlink() else folders).append(relative)
        elif is_image and entry.is_symlink() and not os.path.isfile(entry.path):
            raise DataError(
                f"{entry.path} is a broken link. Fetch its target, or remove the link.",
                subject=Path(entry.path),
            )
        elif is_image and (entry.is_symlink() or entry.is_file(follow_symlinks=False)):
            images.append((relative, os.stat(entry.path).st_ino if entry.is_symlink() else entry.inode()))
        else:
            add_other(entry, relative, skipped)
    return images, [*folders, *links]


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one; makes a system call only for links."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir(follow_symlinks=False)


def add_other(entry: os.DirEntry[str], path: str, skipped: SkippedFiles) -> None:
    """Count an entry that is neither a folder nor an image: another file, a broken link, or a pipe."""
    if os.path.isfile(entry.path):
        skipped.add_file(entry.name, path)
    else:
        skipped.add(LINKS if entry.is_symlink() else PIPES, path)


def add_hidden(entry: os.DirEntry[str], path: str, skipped: SkippedFiles) -> None:
    """Count a hidden image or a hidden folder with images; files of other programs do not count."""
    if entry.name in JUNK or entry.name.startswith("._"):
        return
    if not is_folder(entry):
        if entry.name.lower().endswith(EXTENSIONS):
            skipped.add(HIDDEN_FILES, path)
        return
    with suppress(DataError, EnvironmentFailure):
        if not any(image_folders(Path(os.path.realpath(entry.path)))):
            return
    skipped.add(HIDDEN_FOLDERS, path)
