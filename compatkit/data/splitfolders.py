"""Distinguish folders of splits from class folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from compatkit.data.classnames import CLASSES_FILE
from compatkit.data.splitnames import (
    EXPECTED,
    SplitName,
    divided,
    is_container,
    parse_split_name,
    similar_split_word,
    split_kind,
)
from compatkit.errors import DataError

_IMAGES = {"train": "training images", "val": "validation images", "test": "test images"}


def find_splits(names: Sequence[str], root: Path) -> dict[str, str]:
    """Return the folders of splits by kind; empty if the parent folder is not divided.

    Args:
        names: Names of the folders.
        root: Their parent folder.

    Raises:
        DataError: Training or test images are missing, two folders are of one kind, or another folder looks like a
            split.
    """
    parsed = _parsed(names)
    chosen = {name: kind for name in parsed if (kind := split_kind(name))} or _with_common_rest(parsed)
    if not chosen:
        return {}
    splits: dict[str, str] = {}
    for name, kind in chosen.items():
        other = splits.setdefault(kind, name)
        if other != name:
            raise DataError(
                f"{root} holds {other}/ and {name}/, which both name {_IMAGES[kind]}. Join them, or load one of "
                f"several data sets.{_class_hint(name, root)}",
                subject=root / name,
            )
    if "train" not in splits or len(splits) == 1:
        first = next(iter(splits.values()))
        raise DataError(
            f"{root} holds {' and '.join(f'{split}/' for split in splits.values())} but no "
            f"{'test' if 'train' in splits else 'training'} images. Expected both ({EXPECTED}), or class folders; "
            f"{root / first} alone can be loaded, and is then divided.{_class_hint(first, root)}",
            subject=root,
        )
    unknown = next((name for name in parsed if name not in chosen), None)
    if unknown is not None:
        raise _unknown_split(unknown, root)
    return splits


def _parsed(names: Sequence[str]) -> dict[str, SplitName]:
    return {name: split for name in names if (split := parse_split_name(name)) is not None}


def _with_common_rest(parsed: Mapping[str, SplitName]) -> dict[str, str]:
    """Return the kinds of names like ``birds_train`` and ``birds_test``: several kinds, equal in all other words."""
    kinds = {split.kind for split in parsed.values()}
    if not divided(kinds) or "" in kinds or len({split.rest for split in parsed.values()}) > 1:
        return {}
    return {name: split.kind for name, split in parsed.items()}


def check_class_folders(names: Sequence[str], subfolders: Mapping[str, set[str]], root: Path) -> None:
    """Refuse class folders that look like a split or like a data set.

    Args:
        names: Class folders that ``classes.txt`` does not name.
        subfolders: Names of the folders in each class folder.
        root: Parent folder of the class folders.

    Raises:
        DataError: A folder looks like a split or a data set.
    """
    for name in names:
        if divided({split_kind(below) for below in subfolders[name]}):
            raise DataError(
                f"{root / name} holds training and test images of its own. Load it if it is a data set; for a class, "
                f"use {root.name}/train/{name}/ and {root.name}/val/{name}/.",
                subject=root / name,
            )
    parsed = _parsed(names)
    kinds = {split.kind for split in parsed.values()}
    for name in parsed:
        if "" in kinds or divided(kinds) or subfolders[name]:
            raise _unknown_split(name, root)
    counts = Counter(below for name in names for below in subfolders[name])
    for name in names:
        shared = any(counts[below] > 1 for below in subfolders[name])
        if shared and (word := similar_split_word(name)) is not None:
            raise _unknown_split(name, root, f" Did you mean {word}?")
        if (shared or (len(names) == 1 and subfolders[name])) and is_container(name):
            raise DataError(
                f"{root / name} looks like a folder of class folders, not like a class. Load {root / name}, or rename "
                f"it.{_class_hint(name, root)}",
                subject=root / name,
            )


def _unknown_split(name: str, root: Path, hint: str = "") -> DataError:
    return DataError(
        f"{root / name} looks like a split, but its name is none of {EXPECTED}.{hint} Rename or move "
        f"it.{_class_hint(name, root)}",
        subject=root / name,
    )


def _class_hint(name: str, root: Path) -> str:
    return f" If {name} is a class, write the line {name!r} into {root / CLASSES_FILE}."
