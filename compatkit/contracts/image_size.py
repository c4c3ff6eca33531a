"""Sizes of images as arguments: (height, width), or one number for both."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from compatkit.contracts.contract import MAX_SIDE
from compatkit.errors import UsageError


def image_size(value: Any, argument: str, error: type[UsageError] = UsageError) -> tuple[int, int]:
    """Return height and width of an argument.

    Args:
        value: (height, width) in pixels, or one number for both.
        argument: Name of the argument, for messages.
        error: Type of the error.

    Raises:
        UsageError: The value is neither one number nor two, or a side is not from 1 to ``MAX_SIDE``.
    """
    sides = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(sides) != 2 or not all(
        isinstance(side, Integral) and not isinstance(side, bool) and 1 <= int(side) <= MAX_SIDE
        for side in sides
    ):
        raise error(
            f"{argument} expects (height, width), at most {MAX_SIDE} pixels each, or one number; got {value!r:.100}.",
            subject=value,
        )
    return int(sides[0]), int(sides[1])
