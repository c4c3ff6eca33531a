"""Folders of images, one folder per class; a file is read when its image is needed.

``ROOT/train/CLASS/...`` with ``val`` or ``test`` next to it (see ``splitnames`` for other spellings), or
``ROOT/CLASS/...``. Class folders may contain folders.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compatkit.data.classnames import CLASSES_FILE, MAX_BYTES, text_lines
from compatkit.data.dataset import DataSet
from compatkit.data.duplicates import check_no_duplicates
from compatkit.data.filenames import decode_name
from compatkit.data.imagefiles import (
    EXTENSIONS,
    HIDDEN,
    add_hidden,
    add_other,
    entries,
    image_folders,
    is_folder,
    read_file,
)
from compatkit.data.listing import list_images
from compatkit.data.missinglabels import check_class_names
from compatkit.data.skipped import ARCHIVES, OUTSIDE, SkippedFiles
from compatkit.data.split import Split
from compatkit.data.splitfolders import check_class_folders, find_splits
from compatkit.data.splitnames import parse_split_name, split_kind, warn_unused
from compatkit.data.validation import DataWarning, warn_caller
from compatkit.errors import DataError
from compatkit.foundation.bars import Progress
from compatkit.foundation.spelling import casefolded


def read_folder(
    path: str | os.PathLike[str], *, name: str | None = None, progress: Progress | None = None
) -> DataSet | Split:
    """List the images of a folder of class folders.

    Args:
        path: The folder.
        name: Name of the data set; default: name of the folder.
        progress: Called with class folders listed, all of them, and the folder; None shows a bar.

    Returns:
        Training and test images; or all images in one split if the folder does not divide them.

    Raises:
        DataError: There are no class folders, a class has no image or splits of its own, or the two splits differ in
            classes.
        EnvironmentFailure: A folder cannot be read.
    """
    root = Path(path).expanduser().resolve()
    name = name or decode_name(root.name)
    folders = class_folders(root)
    split_folders = _split_folders(root, folders)
    if not split_folders:
        skipped = SkippedFiles()
        images, inodes = _split(root, root, f"{name}/train", skipped, progress)
        check_no_duplicates([images], inodes)
        skipped.warn(root)
        return images
    train, test = root / split_folders["train"], root / (split_folders.get("val") or split_folders["test"])
    _warn_outside(root, [folder for folder in folders if folder not in split_folders.values()], (train, test))
    warn_unused({kind: f"{folder}/" for kind, folder in split_folders.items()}, root)
    _warn_unicode(train, test)
    skipped = _skipped_entries(root, root)
    train_images, train_inodes = _split(train, root, f"{name}/train", skipped, progress)
    test_images, test_inodes = _split(test, root, f"{name}/test", skipped, progress)
    check_no_duplicates([train_images, test_images], np.concatenate([train_inodes, test_inodes]))
    skipped.warn(root)
    for classes, others, folder, other in (
        (train_images.classes, test_images.classes, train, test),
        (test_images.classes, train_images.classes, test, train),
    ):
        missing = [label for label in classes if label not in others]
        if missing:
            raise DataError(
                f"{folder} has the class {missing[0]!r} that {other} lacks ({len(missing)} in all). Both need the same "
                "class folders.",
                subject=missing[0],
            )
    return DataSet(name, train_images, test_images)


def _split_folders(root: Path, folders: list[str]) -> dict[str, str]:
    """Return the folders of splits by kind; folders that ``classes.txt`` names are classes."""
    declared = _declared(root, folders)
    undeclared = [folder for folder in folders if folder not in declared]
    return find_splits(folders if any(map(split_kind, undeclared)) else undeclared, root)


def _warn_outside(root: Path, folders: list[str], splits: tuple[Path, Path]) -> None:
    """Warn of folders with images next to the splits."""
    unused = [
        folder
        for folder in folders
        if parse_split_name(folder) is None and any(map(bool, image_folders(root, folder)))
    ]
    if unused:
        shown = ", ".join(f"{folder}/" for folder in unused[:5])
        warn_caller(
            DataWarning(
                f"{root}: images in {shown} ({len(unused)} in all) are not used. Move them into {splits[0].name}/ or "
                f"{splits[1].name}/ to use them."
            )
        )


def _warn_unicode(train: Path, test: Path) -> None:
    """Warn of class folders of the two splits that differ only in Unicode normalization, as macOS and Linux do."""
    train_names, test_names = (
        {decode_name(folder, split): folder for folder in class_folders(split)} for split in (train, test)
    )
    differing = [text for text, folder in train_names.items() if test_names.get(text, folder) != folder]
    if differing:
        warn_caller(
            DataWarning(
                f"{train} and {test} write {', '.join(differing[:5])} ({len(differing)} in all) in different Unicode "
                "normalization (NFC, NFD); they are treated as one class."
            )
        )


def class_folders(root: Path) -> list[str]:
    """Return the names of the class folders, sorted; links to folders count."""
    return [folder.name for folder in entries(root) if os.path.isdir(folder.path)]


def _split(
    root: Path, parent: Path, name: str, skipped: SkippedFiles, progress: Progress | None
) -> tuple[Split, NDArray[np.uint64]]:
    """Return the images of class folders, and the inode number of each file."""
    folders = class_folders(root)
    if not folders:
        raise DataError(
            f"{root} has no class folders. Expected {root.name}/CLASS/IMAGE.jpg, or {root.name}/train/CLASS/IMAGE.jpg "
            f"and {root.name}/val/.",
            subject=root,
        )
    folders.sort(key=lambda folder: decode_name(folder, root))
    _check_spelling(root, folders)
    files = list_images(root, folders, progress)
    skipped.add_all(_skipped_entries(root, parent))
    skipped.add_all(files.skipped, os.path.relpath(root, parent) if root != parent else "")
    if root == parent:
        declared = _declared(root, folders)
        undeclared = [folder for folder in folders if folder not in declared]
        check_class_folders(undeclared, _subfolders(folders, files.folders), root)
    elif all(map(split_kind, folders)):
        raise DataError(
            f"{root} holds {', '.join(f'{folder}/' for folder in folders[:5])}, which look like splits, not classes. "
            f"Expected {root.name}/CLASS/IMAGE.jpg.",
            subject=root,
        )
    if not files.counts.all():
        empty = folders[int(np.argmin(files.counts))]
        advice = list_images(root, [empty]).skipped.advice("Remove it, or fill it.")
        raise DataError(
            f"The class folder {root / empty} holds no images ({', '.join(EXTENSIONS)}). {advice}",
            subject=root / empty,
        )
    labels = np.repeat(np.arange(len(folders)), files.counts)
    return Split(files.images, labels, _class_names(root, parent, folders), name), files.inodes


def _skipped_entries(root: Path, parent: Path) -> SkippedFiles:
    """Return the entries next to class folders or splits that are not read, by path below ``parent``."""
    skipped = SkippedFiles()
    for entry in entries(root, hidden=True):
        path = os.path.relpath(entry.path, parent)
        if entry.name.startswith(HIDDEN):
            add_hidden(entry, path, skipped)
        elif is_folder(entry) or entry.name.lower().endswith(ARCHIVES):
            continue
        elif entry.name.lower().endswith(EXTENSIONS) and os.path.isfile(entry.path):
            skipped.add(OUTSIDE, path)
        else:
            add_other(entry, path, skipped)
    return skipped


def _check_spelling(root: Path, folders: list[str]) -> None:
    """Refuse class folders that are the same folder on a file system that ignores case or normalization."""
    spelled: dict[str, str] = {}
    for folder in folders:
        other = spelled.setdefault(casefolded(decode_name(folder)), folder)
        if other != folder:
            same = decode_name(other) == decode_name(folder)
            raise DataError(
                f"{root} has the class folders {other!r} and {folder!r}, which differ only in "
                f"{'Unicode normalization (NFC, NFD)' if same else 'case'}. Rename one, or join them.",
                subject=root / folder,
            )


def _subfolders(folders: list[str], listed: Sequence[str]) -> dict[str, set[str]]:
    """Return the names of the folders directly inside each of some folders."""
    subfolders: dict[str, set[str]] = {folder: set() for folder in folders}
    for path in listed:
        folder, _, below = path.partition("/")
        if below and "/" not in below:
            subfolders[folder].add(below)
    return subfolders


def _class_names(root: Path, parent: Path, folders: list[str]) -> tuple[str, ...]:
    """Return the names of the classes: those of the folders, or those that ``classes.txt`` gives them.

    Its lines are ``folder name``; it is in the folder of the class folders, or of the splits.

    Raises:
        DataError: A line names no class folder or one twice; or a folder is named like a missing label.
    """
    file = next((path for path in (root / CLASSES_FILE, parent / CLASSES_FILE) if path.is_file()), None)
    texts = {decode_name(folder): folder for folder in folders}
    renamed: dict[str, str] = {}
    for line in [] if file is None else text_lines(read_file(file, MAX_BYTES), file):
        folder, name = _parse_line(line, texts)
        if folder in renamed:
            raise DataError(f"{file} names {folder!r} twice. Remove one line.", subject=file)
        if folder not in texts:
            raise DataError(
                f"{file} names {folder!r}, which is no class folder of {root}. Expected lines of 'folder name', for "
                f"{', '.join(list(texts)[:5])}{', ...' if len(folders) > 5 else ''}.",
                subject=file,
            )
        renamed[folder] = name or folder
    undeclared = [text for text in texts if text not in renamed]
    check_class_names(
        undeclared, root, f"If it is a class, write the line with its name into {root / CLASSES_FILE}."
    )
    return tuple(renamed.get(text, text) for text in texts)


def _declared(root: Path, folders: list[str]) -> set[str]:
    """Return the folders that ``classes.txt`` names."""
    if not (root / CLASSES_FILE).is_file():
        return set()
    texts = {decode_name(folder): folder for folder in folders}
    lines = text_lines(read_file(root / CLASSES_FILE, MAX_BYTES), root / CLASSES_FILE)
    return {texts[folder] for line in lines if (folder := _parse_line(line, texts)[0]) in texts}


def _parse_line(line: str, folders: Mapping[str, str]) -> tuple[str, str]:
    """Return folder and name of a line: the folder is all before a tab, or the longest folder it begins with."""
    if "\t" in line or line in folders:
        folder, _, name = line.partition("\t")
        return folder.strip(), name.strip()
    words = line.split(" ")
    prefixes = [" ".join(words[:count]) for count in range(len(words), 0, -1)]
    folder = next((prefix for prefix in prefixes if prefix in folders), words[0])
    return folder, line.removeprefix(folder).strip()
