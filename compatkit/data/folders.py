"""Folders of images: one folder a class, listed once; the files are read when an image is asked for.

``ROOT/train/CLASS/...`` with ``val``, ``valid``, ``validation`` or ``test`` beside it, or ``ROOT/CLASS/...``. Class
folders may hold folders.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from compatkit.data.bars import Progress
from compatkit.data.classlists import LARGEST_LIST, NAMES, lines_of
from compatkit.data.dataset import DataSet
from compatkit.data.files import ENDINGS, ImageFiles, entries, read_file
from compatkit.data.holding import TEST, TRAIN
from compatkit.data.lazy import LazyImages
from compatkit.data.listing import listing
from compatkit.data.split import Split
from compatkit.errors import DataError


def read_folder(
    path: str | os.PathLike[str], *, name: str | None = None, progress: Progress | None = None
) -> DataSet | Split:
    """List the images of a folder of class folders.

    Args:
        path: The folder.
        name: Of the data set; the folder's by default.
        progress: Called with class folders listed, all of them, and the folder; None shows a bar.

    Returns:
        Both parts; or all images, where the folder does not divide them.

    Raises:
        DataError: There are no class folders, a class has no image or parts of its own, or the two parts differ in
            classes.
        EnvironmentFailure: A folder cannot be read.
    """
    root = Path(path).expanduser().resolve()
    called = name or root.name
    train, held = _part(root, TRAIN), _part(root, TEST)
    if train is None and held is None:
        divided = next(
            (one for one in class_folders(root) if _part(root / one, TRAIN) and _part(root / one, TEST)), None
        )
        if divided is not None:
            raise DataError(
                f"{root / divided} holds training and test images of its own, so that it is no class folder. Load "
                f"{root / divided} if it is a data set. If it is a class, {root.name}/train/{divided}/ and "
                f"{root.name}/val/{divided}/ are expected.",
                subject=root / divided,
            )
        return _split(root, root, f"{called}/train", progress)
    if train is None or held is None:
        lacks, there = (TRAIN, held) if train is None else (TEST, train)
        raise DataError(
            f"{root} holds {there and there.name}/ and no {' or '.join(f'{one}/' for one in lacks)}. Give both, "
            f"one level of class folders, or {there} alone, of which a share is held out.",
            subject=root,
        )
    splits = [
        _split(part, root, f"{called}/{what}", progress) for part, what in ((train, "train"), (held, "test"))
    ]
    for one, other, where, there in ((*splits, train, held), (*splits[::-1], held, train)):
        missing = [name for name in one.classes if name not in other.classes]
        if missing:
            raise DataError(
                f"{where} has the class {missing[0]!r} ({len(missing)} in all) that {there} lacks. Both need the same "
                "class folders.",
                subject=missing[0],
            )
    return DataSet(called, *splits)


def class_folders(root: Path) -> list[str]:
    """Return the names of the class folders, sorted; links to folders count.

    Raises:
        DataError: There is no such folder, or a link leads back to it.
        EnvironmentFailure: It cannot be read.
    """
    folders = [one for one in entries(root) if os.path.isdir(one.path)]
    for one in folders:
        if one.is_symlink() and root.resolve().is_relative_to(Path(one.path).resolve()):
            raise DataError(
                f"The link {one.path} leads back to {Path(one.path).resolve()}, so that each image would be one of two "
                "classes. Remove it.",
                subject=Path(one.path),
            )
    return [one.name for one in folders]


def _part(root: Path, names: tuple[str, ...]) -> Path | None:
    return next((root / one for one in names if (root / one).is_dir()), None)


def _split(root: Path, above: Path, name: str, progress: Progress | None) -> Split:
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
    found = listing(root, folders, progress)
    if not found.counts.all():
        bare = folders[int(np.argmin(found.counts))]
        raise DataError(
            f"The class folder {root / bare} holds no images ({', '.join(ENDINGS)}). Remove it, or fill it.",
            subject=root / bare,
        )
    images = LazyImages(ImageFiles(root, found.names, found.ends), np.arange(len(found.ends)))
    labels = np.repeat(np.arange(len(folders)), found.counts)
    return Split(images, labels, _class_names(root, above, folders), name)


def _class_names(root: Path, above: Path, folders: list[str]) -> tuple[str, ...]:
    """Return the names of the classes: the folders', or those that ``classes.txt`` gives them.

    Its lines are ``folder name``; it lies beside the class folders, or beside the folders of both parts.

    Raises:
        DataError: A line of it names no class folder, or one that another line names.
    """
    given = next((one for one in (root / NAMES, above / NAMES) if one.is_file()), None)
    if given is None:
        return tuple(folders)
    called: dict[str, str] = {}
    for line in lines_of(read_file(given, LARGEST_LIST), given):
        folder, _, name = line.replace("\t", " ").partition(" ")
        if folder in called:
            raise DataError(f"{given} names {folder!r} twice. Leave one line out.", subject=given)
        called[folder] = name.strip() or folder
    unknown = [one for one in called if one not in folders]
    if unknown:
        raise DataError(
            f"{given} names {unknown[0]!r}, which is no class folder of {root}. Expected lines of 'folder name', of "
            f"{', '.join(folders[:5])}{', ...' if len(folders) > 5 else ''}.",
            subject=given,
        )
    return tuple(called.get(one, one) for one in folders)
