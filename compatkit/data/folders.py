"""Folders of images: one folder a class, listed once; a file is read when its image is needed.

``ROOT/train/CLASS/...`` with ``val`` or ``test`` beside it (see ``partnames`` for other spellings), or
``ROOT/CLASS/...``. Class folders may hold folders.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compatkit.contracts.contract_rules import folded
from compatkit.data.classnames import LARGEST_LIST, NAMES, lines_of
from compatkit.data.dataset import DataSet
from compatkit.data.duplicates import check_images_once
from compatkit.data.filenames import text_of
from compatkit.data.imagefiles import (
    ENDINGS,
    HIDDEN,
    add_hidden,
    add_other,
    entries,
    image_folders,
    is_folder,
    read_file,
)
from compatkit.data.listing import listing
from compatkit.data.missinglabels import check_declared
from compatkit.data.skipped import ARCHIVES, BESIDE, LeftOut
from compatkit.data.split import Split
from compatkit.data.splitfolders import check_classes, parts_among
from compatkit.data.splitnames import part_name, tell_unused
from compatkit.data.validation import DataWarning, warn_caller
from compatkit.errors import DataError
from compatkit.foundation.bars import Progress


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
    name = name or text_of(root.name)
    folders = class_folders(root)
    parts = _parts(root, folders)
    if not parts:
        left_out = LeftOut()
        whole, numbers = _split(root, root, f"{name}/train", left_out, progress)
        check_images_once([whole], numbers)
        left_out.tell(root)
        return whole
    train, test = root / parts["train"], root / (parts.get("val") or parts["test"])
    _tell_left_out(root, [folder for folder in folders if folder not in parts.values()], (train, test))
    tell_unused({kind: f"{folder}/" for kind, folder in parts.items()}, root)
    _tell_composed({part: class_folders(part) for part in (train, test)})
    left_out = _beside(root, root)
    listed = [
        _split(part, root, f"{name}/{what}", left_out, progress)
        for part, what in ((train, "train"), (test, "test"))
    ]
    splits = [split for split, _ in listed]
    check_images_once(splits, np.concatenate([numbers for _, numbers in listed]))
    left_out.tell(root)
    for split, other, part, other_part in ((*splits, train, test), (*splits[::-1], test, train)):
        missing = [label for label in split.classes if label not in other.classes]
        if missing:
            raise DataError(
                f"{part} has the class {missing[0]!r} ({len(missing)} in all) that {other_part} lacks. Both need the "
                "same class folders.",
                subject=missing[0],
            )
    return DataSet(name, *splits)


def _parts(root: Path, folders: list[str]) -> dict[str, str]:
    """Return the folders that are parts, by kind; what ``classes.txt`` names is a class, whatever it is called."""
    undeclared = [folder for folder in folders if folder not in _declared(root, folders)]
    parts = [part for folder in undeclared if (part := part_name(folder)) is not None]
    return parts_among(folders if any(part.plain for part in parts) else undeclared, root)


def _tell_left_out(root: Path, folders: list[str], parts: tuple[Path, Path]) -> None:
    """Warn of folders with images beside the parts."""
    left_out = [
        folder
        for folder in folders
        if part_name(folder) is None and any(map(bool, image_folders(root, folder)))
    ]
    if left_out:
        shown = ", ".join(f"{folder}/" for folder in left_out[:5])
        warn_caller(
            DataWarning(
                f"{root}: images in {shown} ({len(left_out)} in all) are left out, since {parts[0].name}/ and "
                f"{parts[1].name}/ divide it. Move them into a part to use them."
            )
        )


def _tell_composed(inside: Mapping[Path, list[str]]) -> None:
    """Warn of class folders of both parts that are one but for Unicode composition, as macOS and Linux leave names."""
    train, test = ({text_of(folder, part): folder for folder in inside[part]} for part in inside)
    unlike = [text for text, folder in train.items() if test.get(text, folder) != folder]
    if unlike:
        warn_caller(
            DataWarning(
                f"{' and '.join(map(str, inside))} write {', '.join(unlike[:5])} ({len(unlike)} in all) in different "
                "Unicode composition (NFC, NFD); these are taken as one class."
            )
        )


def class_folders(root: Path) -> list[str]:
    """Return the names of the class folders, sorted; links to folders count."""
    return [folder.name for folder in entries(root) if os.path.isdir(folder.path)]


def _split(
    root: Path, above: Path, name: str, left_out: LeftOut, progress: Progress | None
) -> tuple[Split, NDArray[np.uint64]]:
    """Return the images of class folders, and the number that the file system gives each file."""
    folders = class_folders(root)
    if not folders:
        raise DataError(
            f"{root} has no class folders. Expected {root.name}/CLASS/IMAGE.jpg, or {root.name}/train/CLASS/IMAGE.jpg "
            f"with {root.name}/val/ beside it.",
            subject=root,
        )
    folders.sort(key=lambda folder: text_of(folder, root))
    _check_spelling(root, folders)
    files = listing(root, folders, progress)
    left_out.add_all(_beside(root, above))
    left_out.add_all(files.left_out, os.path.relpath(root, above) if root != above else "")
    if root == above:
        undeclared = [folder for folder in folders if folder not in _declared(root, folders)]
        check_classes(undeclared, _inside(folders, files.folders), root)
    elif all((part := part_name(folder)) is not None and part.plain for folder in folders):
        raise DataError(
            f"{root} holds {', '.join(f'{folder}/' for folder in folders[:5])}, which look like parts of a data set, "
            f"not classes. Expected {root.name}/CLASS/IMAGE.jpg.",
            subject=root,
        )
    if not files.counts.all():
        bare = folders[int(np.argmin(files.counts))]
        advice = listing(root, [bare]).left_out.advice("Remove it, or fill it.")
        raise DataError(
            f"The class folder {root / bare} holds no images ({', '.join(ENDINGS)}). {advice}",
            subject=root / bare,
        )
    labels = np.repeat(np.arange(len(folders)), files.counts)
    return Split(files.images, labels, _class_names(root, above, folders), name), files.numbers


def _beside(root: Path, above: Path) -> LeftOut:
    """Return the entries beside class folders or parts that are not read, by path below ``above``."""
    left_out = LeftOut()
    for entry in entries(root, hidden=True):
        path = os.path.relpath(entry.path, above)
        if entry.name.startswith(HIDDEN):
            add_hidden(entry, path, left_out)
        elif is_folder(entry) or entry.name.lower().endswith(ARCHIVES):
            continue
        elif entry.name.lower().endswith(ENDINGS) and os.path.isfile(entry.path):
            left_out.add(BESIDE, path)
        else:
            add_other(entry, path, left_out)
    return left_out


def _check_spelling(root: Path, folders: list[str]) -> None:
    spelled: dict[str, str] = {}
    for folder in folders:
        other = spelled.setdefault(folded(text_of(folder)), folder)
        if other != folder:
            what = "Unicode composition (NFC, NFD)" if text_of(other) == text_of(folder) else "case"
            raise DataError(
                f"{root} has the class folders {other!r} and {folder!r}, which differ in {what} only; elsewhere they "
                "would be one. Rename one, or join them.",
                subject=root / folder,
            )


def _inside(folders: list[str], entered: Sequence[str]) -> dict[str, set[str]]:
    """Return the folders that lie in each of some folders."""
    inside: dict[str, set[str]] = {folder: set() for folder in folders}
    for path in entered:
        folder, _, below = path.partition("/")
        if below and "/" not in below:
            inside[folder].add(below)
    return inside


def _class_names(root: Path, above: Path, folders: list[str]) -> tuple[str, ...]:
    """Return the names of the classes: the folders', or those that ``classes.txt`` gives them.

    Its lines are ``folder name``; it is beside the class folders, or beside the folders of both parts.

    Raises:
        DataError: A line of it names no class folder, or one that another line names; a folder is called like a missing
            label.
    """
    place = next((path for path in (root / NAMES, above / NAMES) if path.is_file()), None)
    texts = {text_of(folder): folder for folder in folders}
    renamed: dict[str, str] = {}
    for line in [] if place is None else lines_of(read_file(place, LARGEST_LIST), place):
        folder, name = _line(line, texts)
        if folder in renamed:
            raise DataError(f"{place} names {folder!r} twice. Leave one line out.", subject=place)
        renamed[folder] = name or folder
    unknown = next((folder for folder in renamed if folder not in texts), None)
    if unknown is not None:
        raise DataError(
            f"{place} names {unknown!r}, which is no class folder of {root}. Expected lines of 'folder name', of "
            f"{', '.join(list(texts)[:5])}{', ...' if len(folders) > 5 else ''}.",
            subject=place,
        )
    undeclared = [text for text in texts if text not in renamed]
    check_declared(undeclared, root, f"If it is a class, write the line with its name into {root / NAMES}.")
    return tuple(renamed.get(text, text) for text in texts)


def _declared(root: Path, folders: list[str]) -> set[str]:
    """Return the folders that ``classes.txt`` names."""
    if not (root / NAMES).is_file():
        return set()
    texts = {text_of(folder): folder for folder in folders}
    lines = lines_of(read_file(root / NAMES, LARGEST_LIST), root / NAMES)
    return {texts[folder] for line in lines if (folder := _line(line, texts)[0]) in texts}


def _line(line: str, folders: Mapping[str, str]) -> tuple[str, str]:
    """Return folder and name of a line: the folder is all before a tab, or the longest that the line begins with."""
    if "\t" in line or line in folders:
        folder, _, name = line.partition("\t")
        return folder.strip(), name.strip()
    words = line.split(" ")
    fronts = [" ".join(words[:count]) for count in range(len(words), 0, -1)]
    folder = next((front for front in fronts if front in folders), words[0])
    return folder, line.removeprefix(folder).strip()
