"""Class names and labels of data sets that store them as text: tables, archives, and ``classes.txt``."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compatkit.data.missinglabels import check_label_texts
from compatkit.errors import DataError

MAX_BYTES = 2**24
"""Bytes of the largest file of class names."""
CLASSES_FILE = "classes.txt"
"""File of class names, one per line."""


def text_lines(data: bytes, source: os.PathLike[str] | str) -> list[str]:
    """Return the non-empty lines of a small UTF-8 text, stripped and in Unicode's form NFC.

    Args:
        data: Content of the file.
        source: The file, for messages.

    Raises:
        DataError: The text is not UTF-8.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source} is not UTF-8: {error.reason}. Save it as UTF-8.", subject=source
        ) from error
    return [line.strip() for line in unicodedata.normalize("NFC", text).splitlines() if line.strip()]


def parse_class_names(data: bytes, source: os.PathLike[str] | str) -> list[str]:
    """Return the class names of a file with one name per line.

    Args:
        data: Content of the file, UTF-8.
        source: The file, for messages.

    Raises:
        DataError: The text is not UTF-8, or an empty line between others makes the numbers ambiguous.
    """
    names = text_lines(data, source)
    lines = data.decode("utf-8-sig").rstrip().splitlines()
    empty = next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
    if empty is not None:
        raise DataError(
            f"{source}, line {empty} is empty, so the class numbers after it are ambiguous. Remove it.",
            subject=source,
        )
    return names


def encode_labels(
    texts: Sequence[str], source: os.PathLike[str] | str, names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the classes, and the label of each image.

    Args:
        texts: Label of each image as text: a class name or number.
        source: File of the labels, for messages.
        names: Class names in order; each label is one of them, or, where all labels are numbers, an index from 0.
            None takes the distinct labels as names, sorted (numbers by value).

    Returns:
        Class names, and indices into them, int64 ``(n,)``.

    Raises:
        DataError: A label marks a missing one, is still quoted, or is not among the names.
    """
    normalized = {text: unicodedata.normalize("NFC", text) for text in set(texts)}
    labels = [normalized[text] for text in texts]
    check_label_texts(labels, source, names or ())
    numeric = all(label.isascii() and label.isdigit() and len(label) < 10 for label in labels)
    if names is not None and numeric and not set(labels) <= set(names):
        known = {str(index): index for index in range(len(names))}
        labels = [str(int(label)) for label in labels]
    else:
        if names is None:
            names = sorted(set(labels), key=(lambda label: (int(label), label)) if numeric else None)
        known = {label: index for index, label in enumerate(names)}
    unknown = next((label for label in labels if label not in known), None)
    if unknown is not None:
        numbers = f" or a number from 0 to {len(names) - 1}" if numeric else ""
        raise DataError(
            f"{source} has the label {unknown!r:.60}; expected one of {len(names)} names ({CLASSES_FILE}){numbers}.",
            subject=unknown,
        )
    return tuple(names), np.array([known[label] for label in labels], dtype=np.int64)
