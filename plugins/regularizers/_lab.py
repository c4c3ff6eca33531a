"""CIE Lab of sRGB images, and the bins of chroma that there are."""

from __future__ import annotations

import functools

import attrs
import torch
from torch import Tensor

TO_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
"""CIE XYZ of linear sRGB; each row adds up to the white of D65."""
LEVELS = 52
"""Levels of each of red, green and blue among which the colors that there are were looked for."""


def lightness_and_chroma(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the luminance Y, and a and b of CIE Lab (white D65), of sRGB images.

    Args:
        images: From 0 to 1, ``(..., 3)``.

    Returns:
        Three tensors ``(...)``: Y from 0 to 1, a from -86 to 98, b from -108 to 95.
    """
    linear = torch.where(images <= 0.04045, images / 12.92, ((images + 0.055) / 1.055) ** 2.4)
    red, green, blue = linear.unbind(-1)
    x, y, z = (
        (weights[0] * red + weights[1] * green + weights[2] * blue) / sum(weights) for weights in TO_XYZ
    )
    edge = 6 / 29
    fx, fy, fz = (
        torch.where(value > edge**3, value.clamp(min=edge**3) ** (1 / 3), value / (3 * edge**2) + 4 / 29)
        for value in (x, y, z)
    )
    return y, 500 * (fx - fy), 200 * (fy - fz)


def without_colors(luminance: Tensor) -> Tensor:
    """Return the gray sRGB value from 0 to 1 that has this luminance, and so the same L of CIE Lab."""
    bright = 1.055 * luminance.clamp(min=0.0031308) ** (1 / 2.4) - 0.055
    return torch.where(luminance <= 0.0031308, 12.92 * luminance, bright)


@functools.cache
def bins(side: int) -> tuple[tuple[int, int], ...]:
    """Return the middles (a, b), multiples of ``side``, of bins that colors of sRGB fall into, in order.

    Looked at are ``LEVELS`` levels of each color. Of all 256 levels, a few reach further bins (3 of 77 of side 20), and
    count to the nearest of these.
    """
    level = torch.linspace(0, 1, LEVELS, dtype=torch.float64)
    colors = torch.cartesian_prod(level, level, level)
    _, a, b = lightness_and_chroma(colors)
    centers = torch.unique(torch.stack([a, b], 1).div(side).round().long(), dim=0) * side
    return tuple((int(first), int(other)) for first, other in centers)


@attrs.frozen(eq=False)
class Lookup:
    """Table of the bins of chromas, for lookup by one gather.

    Attributes:
        side: Side of a bin.
        lowest: Smallest a and b of the table, in bins.
        table: Number of the nearest bin, int64 ``(bins of a, bins of b)``.
    """

    side: int
    lowest: tuple[int, int]
    table: Tensor

    @classmethod
    def of(cls, side: int, device: str) -> Lookup:
        """Return the table of ``bins(side)``; cells outside all bins have the nearest bin."""
        middles = torch.tensor(bins(side)) // side
        low, high = middles.amin(0), middles.amax(0)
        cells = torch.cartesian_prod(
            *(torch.arange(int(a), int(b) + 1) for a, b in zip(low, high, strict=True))
        )
        nearest = (cells[:, None] - middles).square().sum(2).argmin(1)
        shape = [int(length) for length in high - low + 1]
        return cls(side, (int(low[0]), int(low[1])), nearest.view(shape).to(device))

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the number of the bin of each pixel, int64 of the shape of ``a``."""
        coordinates = [
            ((chroma / self.side).round().long() - low).clamp(0, size - 1)
            for chroma, low, size in zip((a, b), self.lowest, self.table.shape, strict=True)
        ]
        return self.table[coordinates[0], coordinates[1]]
