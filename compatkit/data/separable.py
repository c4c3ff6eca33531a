"""Linear maps along rows and columns of images, as two small matrices: what resizing and Gaussian blur are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Floats = NDArray[np.float32]

CHUNK = 4 << 20
"""Values worked on at a time: the float copies of a chunk stay around 16 MB each."""


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


def along_rows(images: Floats, weights: Floats) -> Floats:
    """Return ``weights @ image`` for every image and channel: ``(n, h, w, c)`` by ``(H, h)`` to ``(n, H, w, c)``."""
    count, height, width, channels = images.shape
    product = np.matmul(weights, images.reshape(count, height, width * channels))
    return product.reshape(count, weights.shape[0], width, channels)


def along_columns(images: Floats, weights: Floats) -> Floats:
    """Return ``image @ weights.T`` for every image and channel: ``(n, h, w, c)`` by ``(W, w)`` to ``(n, h, W, c)``."""
    return np.matmul(weights, images)


def apply(images: Floats, rows: Floats, columns: Floats) -> Floats:
    """Return ``rows @ image @ columns.T`` for every image and channel.

    Args:
        images: ``(n, h, w, c)``.
        rows: ``(H, h)``.
        columns: ``(W, w)``.
    """
    return along_columns(along_rows(images, rows), columns)


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
