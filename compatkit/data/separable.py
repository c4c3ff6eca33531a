"""Linear maps along rows and columns of images: resizing and Gaussian blur as two small matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Floats = NDArray[np.float32]

CHUNK = 4 << 20
"""Values worked on at a time: the float copies of a chunk stay around 16 MB each."""


def bilinear(source: int, target: int) -> Floats:
    """Return the weights of a bilinear resize with antialiasing, float32 ``(target, source)``; rows sum to 1.

    Pixel centres lie at ``i + 0.5``. When shrinking, the triangle is widened by the factor, so that every
    source pixel counts (as in Pillow's ``BILINEAR`` and torch's ``interpolate(..., antialias=True)``).
    """
    factor = source / target
    centres = (np.arange(target) + 0.5) * factor
    distance = np.arange(source)[None, :] + 0.5 - centres[:, None]
    weights = np.clip(1.0 - np.abs(distance) / max(factor, 1.0), 0.0, None)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def gaussian(size: int, sigma: float) -> Floats:
    """Return the weights of a Gaussian blur, float32 ``(size, size)``; rows sum to 1.

    Args:
        size: Pixels along the axis.
        sigma: Standard deviation in pixels; the kernel ends at three of them.

    The border pixel is repeated outwards.
    """
    radius = math.ceil(3 * sigma)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    weights = np.zeros((size, size))
    rows = np.arange(size)
    for offset, weight in zip(offsets, kernel / kernel.sum(), strict=True):
        np.add.at(weights, (rows, np.clip(rows + offset, 0, size - 1)), weight)
    return weights.astype(np.float32)


def apply(images: Floats, rows: Floats, columns: Floats) -> Floats:
    """Return ``rows @ image @ columns.T`` for every image and channel.

    Args:
        images: ``(n, h, w, c)``.
        rows: ``(H, h)``.
        columns: ``(W, w)``.
    """
    count, height, width, channels = images.shape
    along_rows = np.matmul(rows, images.reshape(count, height, width * channels))
    return np.matmul(columns, along_rows.reshape(count, rows.shape[0], width, channels))


def quantised(values: Floats) -> Images:
    """Return ``values`` rounded half up and clipped to 0..255; the argument is overwritten."""
    np.clip(values, 0.0, 255.0, out=values)
    values += 0.5
    return values.astype(np.uint8)


def chunks(images: Images) -> Iterator[slice]:
    """Yield slices along the first axis that hold about ``CHUNK`` values each."""
    step = max(1, CHUNK // max(1, int(np.prod(images.shape[1:]))))
    for start in range(0, len(images), step):
        yield slice(start, start + step)


def mapped(images: Images, shape: tuple[int, int, int], function: Callable[[Floats], Floats]) -> Images:
    """Apply ``function`` chunk by chunk to float images and round the results once.

    Args:
        images: uint8 ``(n, h, w, c)``.
        shape: Height, width and channels of the results.
        function: From float32 ``(m, h, w, c)`` on the scale 0 to 255 to float32 ``(m, *shape)``.
    """
    result = np.empty((len(images), *shape), dtype=np.uint8)
    for part in chunks(images):
        result[part] = quantised(function(images[part].astype(np.float32)))
    return result


def resized(images: Images, size: tuple[int, int]) -> Images:
    """Return uint8 images ``(n, h, w, c)`` at ``size`` (height, width): bilinear with antialiasing."""
    rows, columns = bilinear(images.shape[1], size[0]), bilinear(images.shape[2], size[1])
    return mapped(images, (*size, images.shape[3]), lambda values: apply(values, rows, columns))
