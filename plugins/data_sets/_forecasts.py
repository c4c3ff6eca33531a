"""Forecasts as images: the fields of a sample one below the other, the ones to forecast last.

A sample of f fields of h x w is one gray image of f h x w pixels. Values are standard deviations from the mean, from
-4 to 4, in 255 steps: values outside are clipped, and rounding adds an error of .009 standard deviations, which
``stack`` and ``unstack`` let measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compatkit.errors import DataError

SPAN = 8.0
"""Standard deviations from black to white."""
CLASSES = ("earlier", "later")
LARGEST_SIDE = 4096
"""Rows that an image can have, as contracts limit it."""


def stack(fields: NDArray[Any]) -> NDArray[np.uint8]:
    """Return standardized fields as images.

    Args:
        fields: ``(n, fields, height, width)``.

    Returns:
        uint8 ``(n, fields * height, width, 1)``.

    Raises:
        DataError: Values are not finite, or the array has another shape or too many rows for an image.
    """
    if fields.ndim != 4 or not np.isfinite(fields).all():
        raise DataError(
            f"Fields are finite numbers (n, fields, height, width); got the shape {fields.shape}, "
            f"{np.size(fields) - np.isfinite(fields).sum():,} values not finite."
        )
    rows = fields.shape[1] * fields.shape[2]
    if rows > LARGEST_SIDE:
        raise DataError(
            f"{fields.shape[1]} fields of {fields.shape[2]} rows are {rows} rows; an image has {LARGEST_SIDE} at most."
        )
    pixels = np.rint(255 * (fields / SPAN + 0.5).clip(0, 1)).astype(np.uint8)
    return pixels.reshape(len(fields), rows, -1, 1)


def unstack(images: NDArray[Any], fields: int) -> NDArray[Any]:
    """Return the fields of images, ``(n, fields, height, width)``, in standard deviations."""
    shape = len(images), fields, images.shape[1] // fields, images.shape[2]
    return (images.reshape(shape).astype(np.float32) / 255 - 0.5) * np.float32(SPAN)


def samples(
    series: NDArray[np.float32], at: Sequence[int], back: Sequence[int], lead: int, targets: Sequence[int]
) -> NDArray[np.float32]:
    """Return the known fields at some times, and the fields to forecast from them.

    Args:
        series: ``(times, fields, height, width)``.
        at: Times t.
        back: Steps before t of the known fields, such as ``(0, 1, 2)``.
        lead: Steps after t of the forecast.
        targets: Indices of the fields to forecast.

    Returns:
        ``(len(at), len(back) * fields + len(targets), height, width)``.
    """
    times = np.asarray(at)
    known = [series[times - steps] for steps in back]
    return np.concatenate([*known, series[times + lead][:, list(targets)]], axis=1)
