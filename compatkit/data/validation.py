"""Checks of arrays and names that are to become a data set; an error says what was expected and what came."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compatkit.contracts.contract import LARGEST_SIDE
from compatkit.contracts.contract_rules import name_expected
from compatkit.contracts.labels import spelling
from compatkit.errors import DataError

_WHOLE = re.compile(r"\+?0*([0-9]+)(?:\.0*)?")
"""A whole number, however it is spelled."""


class DataWarning(UserWarning):
    """Images of a source are left out, or some of it may be missing."""


def warn_caller(warning: DataWarning) -> None:
    """Warn at the line of the nearest caller outside compatkit.

    Args:
        warning: To give.
    """
    own, level = __name__.partition(".")[0], 1
    frame = inspect.currentframe()
    while frame and frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == own:
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)


def check_images(images: Any, owner: str) -> None:
    """Check uint8 images ``(n, h, w, c)`` with c 1 or 3.

    Args:
        images: As given by the user.
        owner: Name of the split, for messages.

    Raises:
        DataError: They are something else.
    """
    if not isinstance(images, np.ndarray):
        raise DataError(f"{owner}: images must be a numpy array, got {type(images).__name__}.")
    if images.dtype != np.uint8:
        raise DataError(
            f"{owner}: images must be uint8 (0 to 255), got {images.dtype}. Scale to 0..255, round and convert with "
            "astype(numpy.uint8)."
        )
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise DataError(
            f"{owner}: images must have the shape (n, height, width, 1 or 3), got {tuple(images.shape)}. Channels come "
            "last: images.transpose(0, 2, 3, 1)."
        )
    if 0 in images.shape:
        raise DataError(
            f"{owner}: there must be at least one image of at least one pixel, got {images.shape}."
        )


def check_labels(labels: Any, count: int, classes: tuple[str, ...], owner: str) -> NDArray[np.int64]:
    """Return the labels as int64 ``(count,)``.

    Args:
        labels: As given by the user.
        count: Number of images.
        classes: Names of the classes.
        owner: Name of the split, for messages.

    Returns:
        Positions in ``classes``.

    Raises:
        DataError: They are no integers, not one for each image, or no positions in ``classes``.
    """
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu":
        actual = labels.dtype if isinstance(labels, np.ndarray) else type(labels).__name__
        raise DataError(f"{owner}: labels must be an array of integers, got {actual}.")
    if labels.shape != (count,):
        raise DataError(
            f"{owner}: {count} images need labels of shape ({count},), got {tuple(labels.shape)}."
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise DataError(
            f"{owner}: labels must lie in 0 to {len(classes) - 1} ({len(classes)} classes); {len(wrong)} do "
            f"not, the first is {int(labels[wrong[0]])} at image {int(wrong[0])}."
        )
    return labels.astype(np.int64, copy=False)


def check_names(classes: Iterable[Any], owner: str) -> tuple[str, ...]:
    """Return the class names as a tuple of plain strings: those that a contract can hold.

    Args:
        classes: As given by the user.
        owner: Name of the split, for messages.

    Raises:
        DataError: There is none, one is no text, empty, too long or has control characters, or two are one but for
            case, spaces, underscores, leading zeros and Unicode composition.
    """
    if isinstance(classes, str):
        raise DataError(f"{owner}: classes must be several names, got the one text {classes!r}.")
    names = tuple(classes)
    if not names:
        raise DataError(f"{owner}: there must be at least one class name.")
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise DataError(f"{owner}: class names must be texts that are not empty, got {name!r}.")
        expected = name_expected(name)
        if expected is not None:
            raise DataError(
                f"{owner}: a class is called {str(name)!r:.100}; expected is {expected}. Rename the class.",
                subject=name,
            )
        number = _WHOLE.fullmatch(name.strip())
        key = number[1] if number else spelling(name)
        if key in seen:
            same = (
                "comes twice"
                if seen[key] == name
                else f"is {seen[key]!r} but for case, spaces, leading zeros or Unicode composition"
            )
            raise DataError(f"{owner}: class names must differ, {str(name)!r} {same}.", subject=name)
        seen[key] = str(name)
    return tuple(str(name) for name in names)


def check_size(size: Any, owner: str) -> tuple[int, int]:
    """Return a size as two integers.

    Args:
        size: As given by the user, (height, width).
        owner: What asks for it, for messages.

    Raises:
        DataError: It is no pair of whole numbers from 1 to ``LARGEST_SIDE``.
    """
    sides = tuple(size) if isinstance(size, tuple | list) else (size,)
    whole = all(isinstance(side, int | np.integer) and not isinstance(side, bool) for side in sides)
    if len(sides) != 2 or not whole or not all(1 <= side <= LARGEST_SIDE for side in sides):
        raise DataError(
            f"{owner}: a size is (height, width) in pixels, 1 to {LARGEST_SIDE} each, got {size!r}."
        )
    return int(sides[0]), int(sides[1])
