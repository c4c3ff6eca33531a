"""Deterministic image transforms: resizing like Pillow and timm, Gaussian blur, and a shift in color.

Resizing and blur are linear maps along rows and columns, given by two small matrices; kernels are antialiased.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.errors import DataError
from compatkit.foundation.limits import Number

Images = NDArray[np.uint8]
Floats = NDArray[np.float32]

CHUNK = 4 << 20
"""Values processed at a time: float copies of a chunk take about 16 MB each."""


def gaussian(size: int, sigma: float) -> Floats:
    """Return the weights of a Gaussian blur, float32 ``(size, size)``; rows sum to 1, border pixels are repeated.

    Args:
        size: Pixels along the axis.
        sigma: Standard deviation in pixels; the kernel ends at three standard deviations.
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
    """Return ``weights @ image`` for every image and channel: ``(n, h, w, c)`` by ``(H, h)`` to ``(n, H, w, c)``.

    Args:
        images: float32 ``(n, h, w, c)``.
        weights: ``(H, h)``, from ``weights``.
    """
    count, height, width, channels = images.shape
    product = np.matmul(weights, images.reshape(count, height, width * channels))
    return product.reshape(count, weights.shape[0], width, channels)


def along_columns(images: Floats, weights: Floats) -> Floats:
    """Return ``image @ weights.T`` for every image and channel: ``(n, h, w, c)`` by ``(W, w)`` to ``(n, h, W, c)``.

    Args:
        images: float32 ``(n, h, w, c)``.
        weights: ``(W, w)``, from ``weights``.
    """
    return np.matmul(weights, images)


def apply(images: Floats, rows: Floats, columns: Floats) -> Floats:
    """Return ``rows @ image @ columns.T`` for every image and channel.

    Args:
        images: ``(n, h, w, c)``.
        rows: ``(H, h)``.
        columns: ``(W, w)``.
    """
    return along_columns(along_rows(images, rows), columns)


def quantized(values: Floats) -> Images:
    """Return ``values`` rounded half up and clipped to 0..255; the argument is overwritten."""
    np.clip(values, 0.0, 255.0, out=values)
    values += 0.5
    return values.astype(np.uint8)


def chunks(images: Images) -> Iterator[slice]:
    """Yield slices along the first axis that hold about ``CHUNK`` values each."""
    step = max(1, CHUNK // max(1, int(np.prod(images.shape[1:]))))
    for start in range(0, len(images), step):
        yield slice(start, start + step)


def histogram(images: Images) -> NDArray[np.int64]:
    """Return the count of each value in each channel of ``(..., c)``, int64 ``(c, 256)``."""
    channels = (images[..., channel].ravel() for channel in range(images.shape[-1]))
    return np.stack([np.bincount(channel, minlength=256) for channel in channels]).astype(np.int64)


def mapped(images: Images, shape: tuple[int, int, int], function: Callable[[Floats], Floats]) -> Images:
    """Apply ``function`` chunk by chunk to float images and round the results once.

    Args:
        images: uint8 ``(n, h, w, c)``.
        shape: Height, width and channels of the results.
        function: Maps float32 ``(m, h, w, c)`` on the scale 0 to 255 to float32 ``(m, *shape)``.
    """
    result = np.empty((len(images), *shape), dtype=np.uint8)
    for chunk in chunks(images):
        result[chunk] = quantized(function(images[chunk].astype(np.float32)))
    return result


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
"""Kernels by the names in timm's configurations."""

OVERSHOOTS = ("bicubic", "lanczos")
"""Kernels with negative lobes; as in Pillow, values are clipped to 0..255 after the first direction."""


def weights(source: int, target: int, interpolation: str, rows: slice = slice(None)) -> Floats:
    """Return the weights of a resize along one axis, float32 ``(target, source)``; rows sum to 1.

    Pixel centers lie at ``i + 0.5``. When shrinking, the kernel is widened by the factor, so that every source pixel
    counts (as in Pillow, and in torch's ``interpolate(..., antialias=True)``); ``"nearest"`` takes the pixel at the
    center.

    Args:
        source: Pixels of the side before.
        target: Pixels of the side after.
        interpolation: A key of ``KERNELS``.
        rows: Rows of the matrix to return.
    """
    factor = source / target
    centers = (np.arange(*rows.indices(target)) + 0.5) * factor
    kernel = KERNELS[interpolation]
    if kernel is None:
        return (np.arange(source)[None, :] == np.floor(centers)[:, None]).astype(np.float32)
    values = kernel((np.arange(source)[None, :] + 0.5 - centers[:, None]) / max(factor, 1.0))
    return (values / values.sum(axis=1, keepdims=True)).astype(np.float32)


def scaled_size(source: Size, size: Size, crop_pct: float, crop_mode: CropMode) -> Size:
    """Return the height and width that an image is resized to before ``size`` is cropped from its center.

    As in timm's transform for evaluation the target is ``floor(size / crop_pct)``: ``"squash"`` resizes to it,
    ``"center"`` covers it with the aspect ratio kept.

    Args:
        source: Height and width of the image.
        size: Height and width of the crop.
        crop_pct: Share of a side that is cropped.
        crop_mode: ``"center"`` or ``"squash"``.
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

    Values are rounded once, whereas Pillow rounds after each direction: results differ from Pillow's by at most 1. If
    height and width change by different factors, Pillow may resize rows first, and so clip overshoots in another
    order. Where the resized image is smaller than ``size`` (``crop_pct`` above 1) the border is black.

    Args:
        images: uint8 ``(n, h, w, c)``.
        size: Height and width of the results.
        interpolation: A key of ``KERNELS``.
        crop_pct: See ``scaled_size``.
        crop_mode: See ``scaled_size``.
    """
    source = (images.shape[1], images.shape[2])
    scaled = scaled_size(source, size, crop_pct, crop_mode)
    rows, columns = (
        _center_weights(have, want, visible, interpolation)
        for have, want, visible in zip(source, scaled, size, strict=True)
    )

    def both(values: Floats) -> Floats:
        if interpolation in OVERSHOOTS:
            return along_rows(np.clip(along_columns(values, columns), 0.0, 255.0), rows)
        return apply(values, rows, columns)

    return mapped(images, (*size, images.shape[3]), both)


def _center_weights(source: int, target: int, count: int, interpolation: str) -> Floats:
    """Return the weights of the ``count`` center pixels, padded with rows of zeros if there are fewer."""
    spare = target - count
    if spare >= 0:
        start = round(spare / 2)
        return weights(source, target, interpolation, slice(start, start + count))
    before = -spare // 2
    return np.pad(weights(source, target, interpolation), ((before, -spare - before), (0, 0)))


@attrs.frozen
class Shift:
    """A shift in color, brightness and blur, applied in the order of the attributes; the defaults change nothing.

    Attributes:
        hue: Rotation of the colors about the gray axis, in turns: 1/3 moves red to green, green to blue.
        brightness: Factor of all values, in (0, 1]; 0.6 dims to 60 %.
        blur: Standard deviation of a Gaussian blur in pixels.
    """

    hue: float = 0.0
    brightness: float = 1.0
    blur: float = 0.0

    def __attrs_post_init__(self) -> None:
        """Check the values.

        Raises:
            DataError: A value is not finite, or outside its range.
        """
        Number().check("Shift", DataError, hue=self.hue)
        Number(above=0, most=1).check("Shift", DataError, brightness=self.brightness)
        Number(least=0, most=100).check("Shift", DataError, blur=self.blur)


def check_hue(shift: Shift, channels: str) -> None:
    """Refuse to rotate the hue of gray images.

    Args:
        shift: Shift in color, brightness and blur.
        channels: ``"RGB"`` or ``"L"``.

    Raises:
        DataError: The hue of gray images would be rotated.
    """
    if shift.hue and channels != "RGB":
        raise DataError(
            "Shift: gray images have no hue. Leave hue out, or convert the data set to RGB first."
        )


def rotation(turns: float) -> Floats:
    """Return the color map of a rotation about (1, 1, 1), float32 ``(3, 3)``, for row vectors of RGB.

    Rodrigues' formula ``cos a I + sin a K + (1 - cos a) k k'`` with ``k = (1, 1, 1) / sqrt 3``; the sum of
    the three channels is kept.
    """
    angle = 2 * math.pi * turns
    cosine, sine = math.cos(angle), math.sin(angle)
    cross = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)
    return (cosine * np.eye(3) + sine * cross + (1 - cosine) / 3).T.astype(np.float32)


def shifted(images: Images, shift: Shift) -> Images:
    """Return uint8 images ``(n, h, w, c)`` with ``shift`` applied, rounded once at the end.

    Args:
        images: ``c`` is 1 or 3.
        shift: Shift in color, brightness and blur.

    Raises:
        DataError: The hue of gray images would be rotated.
    """
    if shift == Shift():
        return images
    _, height, width, channels = images.shape
    check_hue(shift, "RGB" if channels == 3 else "L")
    colors = rotation(shift.hue) if shift.hue else None
    blurs = (gaussian(height, shift.blur), gaussian(width, shift.blur)) if shift.blur else None

    def change(values: Floats) -> Floats:
        if colors is not None:
            values = np.clip(values @ colors, 0, 255)
        if shift.brightness != 1:
            values = values * np.float32(shift.brightness)
        return values if blurs is None else apply(values, *blurs)

    return mapped(images, (height, width, channels), change)
