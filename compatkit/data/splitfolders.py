"""Which folders of a folder are its parts, and which are classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from compatkit.data.splitnames import EXPECTED, PartName, is_holder, misspelt, part_name
from compatkit.errors import DataError


def parts_among(names: Sequence[str], root: Path) -> dict[str, str]:
    """Return the folders that are parts, by kind; none where the folder is not divided.

    Args:
        names: Of the folders that may be parts.
        root: The folder that holds them.

    Raises:
        DataError: A part stands alone, two are of one kind, or another folder looks like a part and is none.
    """
    meant = {name: part for name in names if (part := part_name(name)) is not None}
    chosen = {name: part.kind for name, part in meant.items() if part.plain} or _of_one_rest(meant)
    if not chosen:
        return {}
    parts: dict[str, str] = {}
    for name, kind in chosen.items():
        other = parts.setdefault(kind, name)
        if other != name:
            raise DataError(
                f"{root} holds {other}/ and {name}/, which both name {_what(kind)}. Join them, or load one of several "
                f"data sets.{_way_out(name, root)}",
                subject=root / name,
            )
    if "train" not in parts or len(parts) == 1:
        raise DataError(
            f"{root} holds {' and '.join(f'{part}/' for part in parts.values())} and no "
            f"{'test' if 'train' in parts else 'training'} images beside it. Give both ({EXPECTED}), one level of "
            f"class folders, or {root / next(iter(parts.values()))} alone, of which a share is held "
            f"out.{_way_out(next(iter(parts.values())), root)}",
            subject=root,
        )
    unknown = next((name for name in meant if name not in chosen), None)
    if unknown is not None:
        raise _unknown(unknown, root)
    return parts


def _of_one_rest(meant: Mapping[str, PartName]) -> dict[str, str]:
    """Return the parts of names like ``birds_train`` and ``birds_test``: of several kinds, alike in all other words."""
    kinds = {part.kind for part in meant.values()}
    if (
        "train" not in kinds
        or len(kinds) < 2
        or "" in kinds
        or len({part.rest for part in meant.values()}) > 1
    ):
        return {}
    return {name: part.kind for name, part in meant.items()}


def check_classes(names: Sequence[str], inside: Mapping[str, set[str]], root: Path) -> None:
    """Refuse a class folder that looks like a part of a data set, or like a data set.

    Args:
        names: Of the folders that are to be classes, and of which no file says that they are.
        inside: Folders in each of them.
        root: The folder that holds them.

    Raises:
        DataError: There is one.
    """
    for name in names:
        kinds = {part.kind for below in inside[name] if (part := part_name(below)) is not None and part.plain}
        if "train" in kinds and len(kinds) > 1:
            raise DataError(
                f"{root / name} holds training and test images of its own, so that it is no class folder. Load "
                f"{root / name} if it is a data set. If it is a class, {root.name}/train/{name}/ and "
                f"{root.name}/val/{name}/ are expected.",
                subject=root / name,
            )
    meant = {name: part for name in names if (part := part_name(name)) is not None}
    kinds = {part.kind for part in meant.values()}
    of_both = "" in kinds or ("train" in kinds and len(kinds) > 1)
    for name in meant:
        if of_both or inside[name]:
            raise _unknown(name, root)
    counts = Counter(below for name in names for below in inside[name])
    for name in names:
        shared = any(counts[below] > 1 for below in inside[name])
        if shared and (word := misspelt(name)) is not None:
            raise _unknown(name, root, f" Is {word} meant?")
        if (shared or (len(names) == 1 and inside[name])) and is_holder(name):
            raise DataError(
                f"{root / name} looks like a folder of class folders and like no class. Load {root / name}, or rename "
                f"it.{_way_out(name, root)}",
                subject=root / name,
            )


def _unknown(name: str, root: Path, hint: str = "") -> DataError:
    return DataError(
        f"{root / name} looks like a part of a data set, and its name is that of none: expected are {EXPECTED}.{hint} "
        f"Rename or move it.{_way_out(name, root)}",
        subject=root / name,
    )


def _way_out(name: str, root: Path) -> str:
    return f" If {name} is a class, write the line {name!r} into {root / 'classes.txt'}."


def _what(kind: str) -> str:
    return {"train": "training images", "val": "validation images", "test": "test images"}[kind]
