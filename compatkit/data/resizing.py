"""Resizing as Pillow and timm do it: antialiased kernels, and a crop out of the middle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from compatkit.data.separable import Floats, Images, along_columns, along_rows, apply, mapped

CropMode = Literal["center", "squash"]
Size = tuple[int, int]
Kernel = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def _triangle(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(1.0 - np.abs(x), 0.0, None)


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys' cubic convolution with a = -0.5."""
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1.0, ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _lanczos(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(x) < 3.0, np.sinc(x) * np.sinc(x / 3.0), 0.0)


KERNELS: Mapping[str, Kernel | None] = {
    "bilinear": _triangle,
    "bicubic": _cubic,
    "lanczos": _lanczos,
    "nearest": None,
}
"""By the name that timm's configurations use."""

OVERSHOOTS = ("bicubic", "lanczos")
"""Kernels with negative lobes: what lies outside 0..255 after the first direction is clipped, as in Pillow."""


def weights(source: int, target: int, interpolation: str) -> Floats:
    """Return the weights of a resize along one axis, float32 ``(target, source)``; rows sum to 1.

    Pixel centres lie at ``i + 0.5``. When shrinking, the kernel is widened by the factor, so that every source pixel
    counts (as in Pillow, and in torch's ``interpolate(..., antialias=True)``); ``"nearest"`` takes the pixel that
    holds the centre.
    """
    factor = source / target
    centres = (np.arange(target) + 0.5) * factor
    kernel = KERNELS[interpolation]
    if kernel is None:
        return (np.arange(source)[None, :] == np.floor(centres)[:, None]).astype(np.float32)
    found = kernel((np.arange(source)[None, :] + 0.5 - centres[:, None]) / max(factor, 1.0))
    return (found / found.sum(axis=1, keepdims=True)).astype(np.float32)


def scaled_size(source: Size, size: Size, crop_pct: float, crop_mode: CropMode) -> Size:
    """Return the height and width that an image is resized to before ``size`` is cut out of its middle.

    As in timm's transform for evaluation: ``floor(size / crop_pct)``, which ``"squash"`` takes as it is and
    ``"center"`` covers with the aspect ratio kept.
    """
    wanted = (math.floor(size[0] / crop_pct), math.floor(size[1] / crop_pct))
    if crop_mode == "squash":
        return wanted
    if wanted[0] == wanted[1]:
        short = min(source)
        return (int(wanted[0] * source[0] / short), int(wanted[0] * source[1] / short))
    ratio = min(source[0] / wanted[0], source[1] / wanted[1])
    return (round(source[0] / ratio), round(source[1] / ratio))


def resized(
    images: Images,
    size: Size,
    interpolation: str = "bilinear",
    crop_pct: float = 1.0,
    crop_mode: CropMode = "squash",
) -> Images:
    """Return uint8 images ``(n, h, w, c)`` at ``size`` (height, width), antialiased.

    Values are rounded once, where Pillow rounds after each direction: results differ from Pillow's by 1 at most. Only
    where height and width change by different factors, Pillow may take the rows first, and overshoots are clipped in
    another order. Where less than ``size`` is left (``crop_pct`` above 1) the border is black.

    Args:
        images: uint8 ``(n, h, w, c)``.
        size: Of the results.
        interpolation: A key of ``KERNELS``.
        crop_pct: See ``scaled_size``.
        crop_mode: See ``scaled_size``.
    """
    source = (images.shape[1], images.shape[2])
    scaled = scaled_size(source, size, crop_pct, crop_mode)
    rows, columns = (
        _middle(weights(have, want, interpolation), kept)
        for have, want, kept in zip(source, scaled, size, strict=True)
    )

    def both(values: Floats) -> Floats:
        if interpolation in OVERSHOOTS:
            return along_rows(np.clip(along_columns(values, columns), 0.0, 255.0), rows)
        return apply(values, rows, columns)

    return mapped(images, (*size, images.shape[3]), both)


def _middle(rows: Floats, count: int) -> Floats:
    """Return ``count`` rows out of the middle, with rows of zeros around them where there are fewer."""
    spare = len(rows) - count
    if spare >= 0:
        start = round(spare / 2)
        return rows[start : start + count]
    before = -spare // 2
    return np.pad(rows, ((before, -spare - before), (0, 0)))
