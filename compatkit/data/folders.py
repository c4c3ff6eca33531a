"""Folders of images: one folder a class, listed once; the files are read when an image is asked for.

``ROOT/train/CLASS/...`` with ``val``, ``valid``, ``validation`` or ``test`` beside it, or ``ROOT/CLASS/...``, of which
a share of each class becomes the test images. Class folders may hold folders.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.dataset import DataSet
from compatkit.data.filedigests import file_digests
from compatkit.data.lazy import LazyImages, Progress
from compatkit.data.split import Split
from compatkit.errors import DataError, EnvironmentFailure

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
TRAIN = ("train", "training")
TEST = ("val", "valid", "validation", "test")
"""Names of the folders of test images, in the order in which they are looked for."""
SHARE = 0.1
"""Of each class, what becomes test images where a folder does not divide them."""
NAMES = "classes.txt"
"""Class names in place of the folders' own: ``folder<tab or space>name`` a line."""
HIDDEN = (".", "@", "__MACOSX")


@attrs.frozen(eq=False)
class Files:
    """The image files of a folder; names are kept as one piece of bytes, which worker processes share.

    Attributes:
        root: The folder.
        names: Paths below it, one after the other.
        ends: Where each ends, int64 ``(n,)``.
    """

    root: Path
    names: bytes
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, root: Path, paths: list[str]) -> Files:
        """Return files by their paths below ``root``."""
        encoded = [os.fsencode(one) for one in paths]
        return cls(root, b"".join(encoded), np.cumsum([len(one) for one in encoded], dtype=np.int64))

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
        """See ``Reader``; remembered with size and time of change in the user's cache folder."""
        return file_digests(self.root, [self.path(int(one)) for one in positions], progress)


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


def read_folder(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    test: float = SHARE,
    seed: int = 0,
    progress: Progress | None = None,
) -> DataSet:
    """List the images of a folder of class folders.

    Args:
        path: The folder.
        name: Of the data set; the folder's by default.
        test: Share of each class that becomes test images where the folder does not divide them.
        seed: Draws that share.
        progress: Called with files found, 0 and the folder that is listed.

    Raises:
        DataError: There are no class folders, a class has no image, or the two parts differ in classes.
        EnvironmentFailure: A folder cannot be read.
    """
    root = Path(path).expanduser().resolve()
    called = name or root.name
    train, held = _part(root, TRAIN), _part(root, TEST)
    if train is None and held is None:
        whole = _split(root, f"{called}/train", progress)
        return _divided(whole, called, test, seed)
    if train is None or held is None:
        lacks, there = (TRAIN, held) if train is None else (TEST, train)
        raise DataError(
            f"{root} holds {there and there.name}/ and no {' or '.join(f'{one}/' for one in lacks)}. Give both, or one "
            f"level of class folders.",
            subject=root,
        )
    splits = [_split(part, f"{called}/{what}", progress) for part, what in ((train, "train"), (held, "test"))]
    _check_same(splits[0], splits[1], train, held)
    return DataSet(called, *splits)


def _part(root: Path, names: tuple[str, ...]) -> Path | None:
    return next((root / one for one in names if (root / one).is_dir()), None)


def _split(root: Path, name: str, progress: Progress | None) -> Split:
    folders = class_folders(root)
    if not folders:
        raise DataError(
            f"{root} has no class folders. Expected {root.name}/CLASS/IMAGE.jpg, or {root.name}/train/CLASS/IMAGE.jpg "
            f"with {root.name}/val/ beside it.",
            subject=root,
        )
    spelled: dict[str, str] = {}
    for one in folders:
        other = spelled.setdefault(one.casefold(), one)
        if other != one:
            raise DataError(
                f"{root} has the class folders {other!r} and {one!r}, which differ in case only; elsewhere they would "
                "be one. Rename one, or join them.",
                subject=root / one,
            )
    paths: list[str] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        found = sorted(image_files(root, folder))
        if not found:
            raise DataError(
                f"The class folder {root / folder} holds no images ({', '.join(ENDINGS)}). Remove it, or fill it.",
                subject=root / folder,
            )
        paths += found
        labels += [label] * len(found)
        if progress is not None:
            progress(len(paths), 0, folder)
    files = Files.of(root, paths)
    images = LazyImages(files, np.arange(len(files)))
    return Split(images, np.array(labels, dtype=np.int64), class_names(root, folders), name)


def class_folders(root: Path) -> list[str]:
    """Return the names of the class folders, sorted.

    Raises:
        DataError: There is no such folder.
        EnvironmentFailure: It cannot be read.
    """
    return sorted(one.name for one in _entries(root) if one.is_dir() and not one.name.startswith(HIDDEN))


def image_files(root: Path, folder: str) -> Iterator[str]:
    """Yield the paths below ``root`` of all image files in a folder; links to folders are not followed."""
    for one in _entries(root / folder):
        if one.name.startswith(HIDDEN):
            continue
        place = f"{folder}/{one.name}"
        if one.is_dir(follow_symlinks=False):
            yield from image_files(root, place)
        elif one.name.lower().endswith(ENDINGS) and one.is_file():
            yield place


def class_names(root: Path, folders: list[str]) -> tuple[str, ...]:
    """Return the names of the classes: the folders', or those that ``classes.txt`` gives them.

    Raises:
        DataError: A line of it names no class folder.
    """
    listed = next((one for one in (root / NAMES, root.parent / NAMES) if one.is_file()), None)
    if listed is None:
        return tuple(folders)
    called: dict[str, str] = {}
    for line in listed.read_text(encoding="utf-8").splitlines():
        folder, _, name = line.strip().replace("\t", " ").partition(" ")
        if folder:
            called[folder] = name.strip() or folder
    unknown = [one for one in called if one not in folders]
    if unknown:
        raise DataError(
            f"{listed} names {unknown[0]!r}, which is no class folder of {root}. Expected lines of 'folder name', of "
            f"{', '.join(folders[:5])}{', ...' if len(folders) > 5 else ''}.",
            subject=listed,
        )
    return tuple(called.get(one, one) for one in folders)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"There is no folder {folder}.", subject=folder) from error
    except OSError as error:
        raise EnvironmentFailure(
            f"The folder {folder} cannot be read: {error.strerror}. Check its rights.", subject=folder
        ) from error


def _divided(whole: Split, name: str, share: float, seed: int) -> DataSet:
    """Return training and test images: of each class the same share, drawn by the names of the files."""
    if not 0 < share < 1:
        raise DataError(f"The share of test images lies between 0 and 1, got {share!r}.")
    test: list[NDArray[np.int64]] = []
    for label, count in enumerate(whole.counts):
        if count < 2:
            raise DataError(
                f"{name}: class {whole.classes[label]!r} has {count} image, of which none can be held out to test. Add "
                "images, or remove the class.",
                subject=whole.classes[label],
            )
        places = np.flatnonzero(whole.labels == label)
        word = f"{seed} {whole.classes[label]}".encode()
        draw = np.random.default_rng(int.from_bytes(hashlib.sha256(word).digest()[:8], "big"))
        test.append(draw.permutation(places)[: min(max(1, round(share * count)), count - 1)])
    held = np.sort(np.concatenate(test))
    rest = np.setdiff1d(np.arange(len(whole)), held)
    parts = (attrs.evolve(whole.take(one), sample=False) for one in (rest, held))
    train, kept = parts
    return DataSet(name, train, kept.renamed(f"{name}/test"))


def _check_same(train: Split, test: Split, *folders: Path) -> None:
    for here, there, where, other in ((train, test, *folders), (test, train, *reversed(folders))):
        missing = [one for one in here.classes if one not in there.classes]
        if missing:
            raise DataError(
                f"{where} has the class {missing[0]!r} ({len(missing)} in all) that {other} lacks. Both need the same "
                "class folders.",
                subject=missing[0],
            )
