"""Class names of labels that a table or an archive writes down: names, or places in a list of names."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compatkit.data.missinglabels import check_written
from compatkit.errors import DataError

LARGEST_LIST = 2**24
"""Bytes of a file of class names."""
NAMES = "classes.txt"
"""Class names, one a line."""


def lines_of(data: bytes, where: os.PathLike[str] | str) -> list[str]:
    """Return the lines of a small text, stripped, in Unicode's form NFC, empty ones left out.

    Args:
        data: UTF-8.
        where: For messages.

    Raises:
        DataError: It is no UTF-8.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is no UTF-8 text: {error.reason}. Save it as UTF-8.", subject=where
        ) from error
    return [line.strip() for line in unicodedata.normalize("NFC", text).splitlines() if line.strip()]


def names_of(data: bytes, where: os.PathLike[str] | str) -> list[str]:
    """Return the names of classes in the order of their numbers, one a line.

    Args:
        data: UTF-8.
        where: For messages.

    Raises:
        DataError: It is no UTF-8, or a line between others is empty, so that numbers are ambiguous.
    """
    names = lines_of(data, where)
    lines = data.decode("utf-8-sig").rstrip().splitlines()
    empty = next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
    if empty is not None:
        raise DataError(
            f"{where}, line {empty} is empty, so that it is not sure which numbers the lines after it name. Remove "
            "it, or write a name.",
            subject=where,
        )
    return names


def numbered(
    written: Sequence[str], where: os.PathLike[str] | str, names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the classes, and the label of each image.

    Args:
        written: Label of each image as written: a name, or a number.
        where: Of the labels, for messages.
        names: Of the classes, in order; a label is one of them, or where all are numbers a place among them from 0.
            None takes the labels themselves in their order, numbers by size.

    Returns:
        Names of the classes, and int64 ``(n,)``, positions among them.

    Raises:
        DataError: A label marks a missing one, kept its quotes, or is none of the names.
    """
    texts = {label: unicodedata.normalize("NFC", label) for label in set(written)}
    written = [texts[label] for label in written]
    check_written(written, where, names or ())
    numbers = all(_is_number(label) for label in written)
    if names is not None and numbers and not set(written) <= set(names):
        known = {str(place): place for place in range(len(names))}
        written = [str(int(label)) for label in written]
    else:
        if names is None:
            names = sorted(set(written), key=(lambda label: (int(label), label)) if numbers else None)
        known = {label: place for place, label in enumerate(names)}
    unknown = next((label for label in written if label not in known), None)
    if unknown is not None:
        raise DataError(
            f"{where} has the label {unknown!r:.60}; expected one of the {len(names)} classes: its name"
            f"{f', or a number from 0 to {len(names) - 1}' if numbers else ''}. {NAMES} names the classes, one a line.",
            subject=unknown,
        )
    return tuple(names), np.array([known[label] for label in written], dtype=np.int64)


def _is_number(label: str) -> bool:
    return label.isascii() and label.isdigit() and len(label) < 10
