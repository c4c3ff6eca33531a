"""Cosines of images as vectors: of vectors of norm 1, and of normalized images from inner products of their bytes.

A normalization x = (p / 255 - mean) / std is a p + b in each channel, so that

    x.x' = sum over channels of a^2 p.p' + a b (sum of p + sum of p') + b^2 pixels.

The inner products of the bytes, which take nearly all the time, serve every normalization.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from compatkit.errors import DataError

from ._scores import Floats

Bytes = NDArray[np.uint8]
T = TypeVar("T")
EXACT = 1024
"""Products of two numbers from -128 to 127 that float32 adds up exactly: 1,024 of them stay within 2^24."""
MIDDLE = 128
REMEMBERED = 8
"""Pairs of sets whose inner products are kept, of 24 MB for 1,000 images with three channels each."""
_PRODUCTS: dict[Hashable, Any] = {}
_SUMS: dict[Hashable, Any] = {}
ZERO = "an image is zero everywhere, so that it has no direction"


def remembered(known: dict[Hashable, T], key: Hashable, compute: Callable[[], T], most: int) -> T:
    """Return a value that is computed once, and dropped when it is not among the last used.

    Args:
        known: Values by key, the last used at the end.
        key: Determines the value.
        compute: Returns it.
        most: Largest number of values to keep.
    """
    value = known.pop(key) if key in known else compute()
    known[key] = value
    while len(known) > most:
        known.pop(next(iter(known)))
    return value


@attrs.frozen(eq=False, slots=False)
class UnitRows:
    """Vectors of norm 1.

    Attributes:
        rows: float64 ``(n, d)``.

    Raises:
        DataError: A norm is not 1.
    """

    rows: Floats

    def __attrs_post_init__(self) -> None:
        deviation = np.abs(np.linalg.norm(self.rows, axis=1) - 1).max()
        if not deviation < 1e-6:
            raise DataError(f"the theory needs inputs of norm 1; some are {deviation:.2g} off")

    @property
    def width(self) -> int:
        """Number of values of a vector."""
        return self.rows.shape[1]

    @cached_property
    def key(self) -> Hashable:
        """Value that is equal only for equal vectors."""
        return hashlib.sha256(np.ascontiguousarray(self.rows).data).hexdigest(), self.rows.shape


@attrs.frozen(eq=False, slots=False)
class NormalizedImages:
    """Images of bytes with a normalization, as vectors of norm 1.

    Attributes:
        planes: ``(n, channels, pixels)``.
        mean: Mean of each channel, on the scale 0 to 1.
        std: Standard deviation of each channel, on the same scale.

    Raises:
        DataError: There is not one mean and one standard deviation for each channel.
    """

    planes: Bytes
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __attrs_post_init__(self) -> None:
        channels = self.planes.shape[1]
        if not channels == len(self.mean) == len(self.std):
            raise DataError(
                f"images of {channels} channels need as many means and standard deviations, got {len(self.mean)} and "
                f"{len(self.std)}"
            )

    @classmethod
    def of(cls, images: Tensor, mean: Sequence[float], std: Sequence[float]) -> NormalizedImages:
        """Return images ``(n, channels, height, width)`` of bytes with a normalization."""
        planes = images.detach().cpu().flatten(2).contiguous().numpy()
        if planes.dtype != np.uint8:
            raise DataError(f"mean and std normalize images of bytes (uint8), got {planes.dtype}")
        return cls(planes, tuple(mean), tuple(std))

    @property
    def width(self) -> int:
        """Number of values of a vector."""
        return self.planes.shape[1] * self.planes.shape[2]

    @cached_property
    def digest(self) -> Hashable:
        """Value that is equal only for equal bytes."""
        return hashlib.sha256(self.planes.data).hexdigest(), self.planes.shape

    @property
    def key(self) -> Hashable:
        """Value that is equal only for equal vectors."""
        return self.digest, self.mean, self.std

    def cosines(self, other: NormalizedImages) -> Floats:
        """Return the cosines with other images under the normalization of these, ``(n, m)``.

        Raises:
            DataError: A normalized image is zero.
        """
        products = remembered(
            _PRODUCTS, (self.digest, other.digest), lambda: _products(self, other), REMEMBERED
        )
        scale = 1 / (255 * np.array(self.std))
        cosines: Floats = np.tensordot(scale**2, products, axes=1).astype(np.float64, copy=False)
        (left, left_norms), (right, right_norms) = (self._moments(side) for side in (self, other))
        cosines += left[:, None] + right
        cosines /= left_norms[:, None]
        cosines /= right_norms
        return cosines

    def _moments(self, side: NormalizedImages) -> tuple[Floats, Floats]:
        """Return what each image of a side adds to its inner products, half of the constant term included; norms."""
        sums, squares = remembered(_SUMS, side.digest, lambda: _sums(side), 2 * REMEMBERED)
        scale, shift = 1 / (255 * np.array(self.std)), -np.array(self.mean) / np.array(self.std)
        constant = (shift**2).sum() * self.planes.shape[2]
        linear = (scale * shift) @ sums
        norms = np.sqrt((scale**2 @ squares + 2 * linear + constant).clip(min=0))
        if not norms.all():
            raise DataError(ZERO)
        return linear + constant / 2, norms


Vectors = UnitRows | NormalizedImages


def cosines(left: Vectors, right: Vectors) -> Floats:
    """Return the cosines of two sets of one kind, ``(n, m)``.

    Raises:
        DataError: They are of two kinds, or of two widths.
    """
    if left.width == right.width:
        if isinstance(left, UnitRows) and isinstance(right, UnitRows):
            return left.rows @ right.rows.T
        if isinstance(left, NormalizedImages) and isinstance(right, NormalizedImages):
            return left.cosines(right)
    raise DataError(
        f"source and target need inputs of one kind and size, got {left.width} and {right.width} values"
    )


def _sums(images: NormalizedImages) -> tuple[Floats, Floats]:
    """Return the sum of the bytes of each image and channel, and of their squares, exact, ``(channels, n)``."""
    planes = images.planes
    sums, squares = (
        planes.sum(axis=2, dtype=np.int64),
        np.einsum("ncp,ncp->nc", planes, planes, dtype=np.int64),
    )
    return sums.T.astype(np.float64), squares.T.astype(np.float64)


def _products(left: NormalizedImages, right: NormalizedImages) -> Floats:
    """Return the inner products of the bytes of each channel, exact, ``(channels, n, m)``."""
    same, (count, channels, pixels) = left.digest == right.digest, left.planes.shape
    products = np.zeros((channels, count, len(right.planes)))
    for channel in range(channels):
        for start in range(0, pixels, EXACT):
            part = slice(start, start + EXACT)
            first = left.planes[:, channel, part].astype(np.float32) - MIDDLE
            second = first if same else right.planes[:, channel, part].astype(np.float32) - MIDDLE
            products[channel] += first @ second.T
    # p.p' = (p - m).(p' - m) + m (sum of p + sum of p') - m^2 pixels
    sums = [side.planes.sum(axis=2, dtype=np.int64).T for side in (left, right)]
    products += MIDDLE * (sums[0][:, :, None] + sums[1][:, None, :]) - MIDDLE**2 * pixels
    return products
