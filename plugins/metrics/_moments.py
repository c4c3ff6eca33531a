"""Second moments of two networks' channels on the same images, and a sample of images for shuffled pairings."""

from __future__ import annotations

import attrs
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from compatkit.errors import DataError


def real(values: Tensor) -> Tensor:
    """Return values as float64 where they are, else as float32."""
    return values if values.dtype == torch.float64 else values.float()


def within_range(name: str, values: Tensor, power: int = 2) -> None:
    """Raise for values whose powers leave the range of float64.

    Raises:
        DataError: The powers leave the range.
    """
    largest, smallest, maximum = (
        float(values.abs().amax()) if values.numel() else 0.0,
        TINY ** (2 / power),
        HUGE ** (2 / power),
    )
    if largest and not smallest < largest < maximum:
        raise DataError(
            f"{name}: values reach {largest:.3g}, and their powers leave the range of float64. Scale them.",
            subject=name,
        )


def digests_of(rows: Tensor, limit: int) -> Tensor:
    """Return digests of different rows, int64, at most ``limit``; equal rows have equal digests.

    Args:
        rows: float64, ``(n, d)``.
        limit: Largest number of digests.
    """
    odd = 2 * drawn_keys(torch.arange(rows.shape[1], device=rows.device), 1) + 1

    def of(part: Tensor) -> Tensor:
        bits = (part + 0.0).contiguous().view(torch.int64)  # -0 is 0; whole numbers add up alike in any order
        return ((bits ^ (bits >> 29)) * odd).sum(1).unique()[:limit]

    first = of(rows[: 4 * limit])
    return first if len(first) == limit else of(rows)


HUGE, TINY = 1e150, 1e-150
NEGLIGIBLE = 1e-12
"""A channel is constant if its standard deviation is below this share of its mean; float32 resolves 6e-8 of it."""
LAST_DIGITS = 4e-15
"""Below this share of its mean, the deviation of a constant channel is rounding of float64."""


@attrs.frozen(eq=False)
class Pair:
    """Running sums for the outputs of two layers; float64 except for the kept images.

    Attributes:
        images: Number of images.
        rows: Number of positions in all images.
        means: Mean of each channel, ``(a,)`` and ``(b,)``.
        squares: Sums of squared deviations, ``(a,)`` and ``(b,)``.
        products: Sums of products of deviations, ``(a, b)``.
        samples: Features of the images with the smallest keys, ``(n, positions, a)`` and ``(n, positions, b)``.
        keys: Keys of the kept images, ascending, ``(n,)``.
        digests: Digests of different rows of both, at most three.
    """

    images: int
    rows: int
    means: tuple[Tensor, Tensor]
    squares: tuple[Tensor, Tensor]
    products: Tensor
    samples: tuple[Tensor, Tensor]
    keys: Tensor
    digests: Tensor

    @classmethod
    def of(cls, left: Tensor, right: Tensor, keys: Tensor, limit: int) -> Pair:
        """Return the moments of one batch.

        Args:
            left: ``(images, positions, a)``.
            right: ``(images, positions, b)``.
            keys: One per image, ``(images,)``, int64.
            limit: Largest number of images to keep.
        """
        flat = [values.flatten(0, 1).double() for values in (left, right)]
        means = [values.mean(0) for values in flat]
        centered = [values - mean for values, mean in zip(flat, means, strict=True)]
        order = keys.argsort()[:limit]
        return cls(
            len(left),
            len(flat[0]),
            (means[0], means[1]),
            (centered[0].square().sum(0), centered[1].square().sum(0)),
            centered[0].T @ centered[1],
            (left[order], right[order]),
            keys[order],
            digests_of(torch.cat(flat, 1), 3),
        )

    def merged(self, other: Pair, limit: int) -> Pair:
        """Return the moments of both (Chan, Golub, LeVeque 1983), on the device of this one."""
        device, rows = self.products.device, self.rows + other.rows
        theirs = [mean.to(device) for mean in other.means]
        steps = [other_mean - mean for other_mean, mean in zip(theirs, self.means, strict=True)]
        share, weight = other.rows / rows, self.rows * other.rows / rows
        means = [mean + step * share for mean, step in zip(self.means, steps, strict=True)]
        squares = [
            square + more.to(device) + step.square() * weight
            for square, more, step in zip(self.squares, other.squares, steps, strict=True)
        ]
        products = self.products + other.products.to(device) + torch.outer(*steps) * weight
        keys = torch.cat([self.keys, other.keys.to(device)])
        order = keys.argsort()[:limit]
        samples = [
            torch.cat([rows, more.to(device)])[order]
            for rows, more in zip(self.samples, other.samples, strict=True)
        ]
        return Pair(
            self.images + other.images,
            rows,
            (means[0], means[1]),
            (squares[0], squares[1]),
            products,
            (samples[0], samples[1]),
            keys[order],
            torch.cat([self.digests, other.digests.to(device)]).unique()[:3],
        )

    def varies(self) -> tuple[Tensor, Tensor]:
        """Return which channels are not constant, bool ``(a,)`` and ``(b,)``."""
        left, right = (
            square > self.rows * (NEGLIGIBLE * mean).square()
            for square, mean in zip(self.squares, self.means, strict=True)
        )
        return left, right

    def lost(self) -> int:
        """Return how many channels count as constant because too few digits of their deviations are left."""
        return sum(
            int((~varying & (square > self.rows * (LAST_DIGITS * mean).square())).sum())
            for varying, square, mean in zip(self.varies(), self.squares, self.means, strict=True)
        )

    def correlations(self, products: Tensor | None = None) -> Tensor:
        """Return the correlation of each channel with each other one, ``(a, b)``; 0 for constant ones.

        Args:
            products: Used instead of this pair's own.
        """
        left, right = (squares.sqrt() for squares in self.squares)
        known, also = self.varies()
        correlations = (self.products if products is None else products) / torch.outer(left, right)
        return torch.where(torch.outer(known, also), correlations, 0.0).clamp(-1, 1)

    def shuffled(self, order: Tensor) -> Tensor:
        """Return correlations ``(a, b)`` with kept image i paired with image ``order[i]``, position by position."""
        left, right = self.samples
        return Pair.of(left, right[order.to(right.device)], self.keys, 0).correlations()


def rows_of(name: str, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of two layers as ``(images, positions, channels)``, on one device.

    Args:
        name: Name of the layers, for messages.
        left: Maps ``(images, channels, height, width)``, tokens ``(images, length, channels)`` or vectors.
        right: The same of the other network; the number of channels may differ.

    Raises:
        DataError: A tensor has another form, or the positions differ.
    """
    for output in (left, right):
        if output.ndim not in (2, 3, 4):
            raise DataError(
                f"cross_correlation: expected maps, tokens or vectors from {name!r}, got a tensor of shape "
                f"{tuple(output.shape)}. Choose another layer."
            )
    map_sizes = [output.shape[2:] if output.ndim == 4 else output.shape[1:-1] for output in (left, right)]
    if left.ndim != right.ndim or map_sizes[0] != map_sizes[1]:
        raise DataError(
            f"cross_correlation: {name!r} gave {tuple(left.shape)} in one network and {tuple(right.shape)} in the "
            "other; the positions must be equal. Choose layers of one size, or images of another size."
        )
    if left.ndim == 4:
        return left.flatten(2).transpose(1, 2), right.flatten(2).transpose(1, 2).to(left.device)
    if left.ndim == 2:
        return left[:, None], right[:, None].to(left.device)
    return left, right.to(left.device)


def best_pairs(correlations: Tensor) -> Tensor:
    """Return the entries of the one-to-one assignment with the largest sum, in order of rows, ``(min(a, b),)``.

    Args:
        correlations: ``(a, b)``, finite.

    Returns:
        On the CPU, in the type of ``correlations``.
    """
    rows, columns = linear_sum_assignment(correlations.cpu().numpy(), maximize=True)
    return correlations.cpu()[torch.from_numpy(rows), torch.from_numpy(columns)]


def drawn_keys(positions: Tensor, seed: int) -> Tensor:
    """Return a pseudo-random number for each position, a function of position and seed alone, int64."""
    keys = positions.long() + seed * 1_000_003 + 1
    for factor in (
        -7046029254386353131,
        -4658895280553007687,
        -7723592293110705685,
    ):  # odd constants of splitmix64
        keys = (keys ^ ((keys >> 31) & 0x1FFFFFFFF)) * factor
    return keys
