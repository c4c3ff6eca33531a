"""Validate the arrays and names of a data set; also the warning class of this package."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compatkit.contracts.contract_rules import violated_name_rule
from compatkit.contracts.labels import spelling
from compatkit.errors import DataError

_INTEGER = re.compile(r"\+?0*([0-9]+)(?:\.0*)?")
"""An integer in any spelling, such as ``07`` or ``7.0``."""


class DataWarning(UserWarning):
    """Images of a source are left out, or some of it may be missing."""


def warn_caller(warning: DataWarning) -> None:
    """Warn at the line of the nearest caller outside compatkit.

    Args:
        warning: The warning.
    """
    package, level = __name__.partition(".")[0], 1
    frame = inspect.currentframe()
    while frame and frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)


def check_images(images: Any, split: str) -> None:
    """Check uint8 images ``(n, h, w, c)`` with c 1 or 3.

    Args:
        images: Argument of the user.
        split: Name of the split, for messages.

    Raises:
        DataError: The argument is something else.
    """
    if not isinstance(images, np.ndarray):
        raise DataError(f"{split}: images must be a numpy array, got {type(images).__name__}.")
    if images.dtype != np.uint8:
        raise DataError(
            f"{split}: images must be uint8 (0 to 255), got {images.dtype}. Scale to 0..255, round and convert with "
            "astype(numpy.uint8)."
        )
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise DataError(
            f"{split}: images must have the shape (n, height, width, 1 or 3), got {tuple(images.shape)}. Channels come "
            "last: images.transpose(0, 2, 3, 1)."
        )
    if 0 in images.shape:
        raise DataError(f"{split}: expected at least one image of at least one pixel, got {images.shape}.")


def check_labels(labels: Any, count: int, classes: tuple[str, ...], split: str) -> NDArray[np.int64]:
    """Return the labels as int64 ``(count,)``.

    Args:
        labels: Argument of the user.
        count: Number of images.
        classes: Names of the classes.
        split: Name of the split, for messages.

    Returns:
        Indices into ``classes``.

    Raises:
        DataError: The labels are not integers, not one per image, or out of range.
    """
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu":
        actual = labels.dtype if isinstance(labels, np.ndarray) else type(labels).__name__
        raise DataError(f"{split}: labels must be an array of integers, got {actual}.")
    if labels.shape != (count,):
        raise DataError(
            f"{split}: {count} images need labels of shape ({count},), got {tuple(labels.shape)}."
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise DataError(
            f"{split}: labels must be 0 to {len(classes) - 1} ({len(classes)} classes); {len(wrong)} are not, the "
            f"first is {int(labels[wrong[0]])} at image {int(wrong[0])}."
        )
    return labels.astype(np.int64, copy=False)


def check_names(classes: Iterable[Any], split: str) -> tuple[str, ...]:
    """Return the class names as a tuple of plain strings that a contract can hold.

    Args:
        classes: Argument of the user.
        split: Name of the split, for messages.

    Raises:
        DataError: There is no name; a name is not a string, empty, too long or has control characters; or two names
            differ only in case, spaces, underscores, leading zeros or Unicode normalization.
    """
    if isinstance(classes, str):
        raise DataError(f"{split}: classes must be several names, got the string {classes!r}.")
    names = tuple(classes)
    if not names:
        raise DataError(f"{split}: there must be at least one class name.")
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise DataError(f"{split}: class names must be non-empty strings, got {name!r}.")
        expected = violated_name_rule(name)
        if expected is not None:
            raise DataError(
                f"{split}: the class name {str(name)!r:.100} must be {expected}. Rename the class.",
                subject=name,
            )
        number = _INTEGER.fullmatch(name.strip())
        key = number[1] if number else spelling(name)
        if key in seen:
            same = (
                "comes twice"
                if seen[key] == name
                else f"differs from {seen[key]!r} only in case, spaces, leading zeros or Unicode normalization"
            )
            raise DataError(f"{split}: class names must differ; {str(name)!r} {same}.", subject=name)
        seen[key] = str(name)
    return tuple(map(str, names))
