"""Rows of layers without their means, and the inner products of their Grams: all pairs of layers in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

import attrs
import torch
from torch import Tensor

from ._moments import HUGE, NEGLIGIBLE, TINY

STACK = 2**27
"""Bytes of Gram blocks of all layers that are held at once."""
BLOCKS = 5
"""Blocks, at least: what is computed twice is the part of the Grams beside the diagonal, 1 / BLOCKS."""
MARKS = 4
"""Random directions that tell rows apart."""
VALUES = 2**23
"""Values of one layer that are centered at once for its Gram."""
CACHED = 2**17
"""Values that a processor centers at once, so that they stay in its cache."""
MARKED = 2**12
"""Columns whose products with random directions are summed in the type of the values."""
SUMMED = 2**14
"""Products that are summed in the type of the values before the sum goes on in float64."""


@attrs.frozen(eq=False)
class Rows:
    """Values of a layer, one row a sample; ``centered`` gives them without their means.

    Attributes:
        name: Name of the layer.
        values: float32 or float64, ``(n, p)``; may be a map of a file, and is never written.
        mean: Means in the type of the values and what this rounding left, ``(p,)`` each.
        norms: Squared norm of each centered row, float64 ``(n,)``.
        reason: Why the layer has no similarity, or empty.
        marks: Each centered row along a few random directions, float64 ``(n, MARKS)``; equal for equal rows.
    """

    name: str
    values: Tensor
    mean: tuple[Tensor, Tensor]
    norms: Tensor
    reason: str
    marks: Tensor

    @classmethod
    def of(cls, name: str, pieces: Sequence[Tensor]) -> Rows:
        """Return the rows of all pieces, ``(n_i, p)`` each.

        Args:
            name: Name of the layer.
            pieces: At least one.
        """
        values = _in_range(pieces[0] if len(pieces) == 1 else torch.cat(list(pieces)))
        mean = _mean(values)
        rounded_mean = mean.to(values.dtype)
        squares = torch.zeros(len(values), dtype=torch.float64, device=values.device)
        marks, draw = squares.new_zeros(len(squares), MARKS), torch.Generator().manual_seed(0)
        along = torch.randn(values.shape[1], MARKS, generator=draw, dtype=torch.float64).to(values)
        layer = cls(
            name, values, (rounded_mean, (mean - rounded_mean.double()).to(values.dtype)), squares, "", marks
        )
        for rows in _row_blocks(values):
            centered = layer.centered(rows, slice(None))
            for some, directions in zip(centered.split(MARKED, 1), along.split(MARKED), strict=True):
                marks[rows] += some @ directions
            squares[rows] = centered.double().square_().sum(1)
        total = float(squares.sum())
        reason = ""
        if not total < float("inf"):
            reason = "its values are not finite"
        elif total <= len(values) * NEGLIGIBLE**2 * float(mean.square().sum()):
            reason = "zero variance"
        return attrs.evolve(layer, reason=f"{name}: {reason}" if reason else "")

    @property
    def scale(self) -> float:
        """Root of the mean squared norm of the centered rows; 1 where the layer has no similarity."""
        return 1.0 if self.reason else float(self.norms.mean().sqrt())

    @property
    def rounding(self) -> float:
        """Tolerance of a mark if its image passes in another batch, relative to ``scale``."""
        raw = (self.norms.mean() + self.mean[0].double().square().sum()).sqrt()
        return 64 * torch.finfo(self.values.dtype).eps * float(raw) / self.scale

    @cached_property
    def different(self) -> int:
        """Return the number of different rows."""
        return _different(self.marks / self.scale, self.rounding)

    def columns(self) -> Iterator[slice]:
        """Yield ranges of columns that are centered at once."""
        width = max(1, VALUES // max(1, len(self.values)))
        for first in range(0, self.values.shape[1], width):
            yield slice(first, first + width)

    def centered(self, rows: slice, columns: slice) -> Tensor:
        """Return a copy of some values without their means; a large mean costs no digits."""
        return (self.values[rows, columns] - self.mean[0][columns]).sub_(self.mean[1][columns])

    def double(self, columns: slice) -> Tensor:
        """Return centered values of all rows in float64, ``(n, columns)``."""
        return self.values[:, columns].double() - (self.mean[0][columns].double() + self.mean[1][columns])

    def grams(self, blocks: Sequence[tuple[int, Tensor]], space: Tensor) -> None:
        """Write the Gram of blocks of centered rows with themselves and, times the root of 2, with all later ones.

        So the sum of squares of what is written is that of these rows and columns of the whole symmetric Gram. Rows
        are divided by ``scale``: the fourth powers of large or small values would leave the range of float32.

        Args:
            blocks: First row of each block, ascending, and where to write it: ``(b, n - first)``.
            space: As many values as a range of ``columns`` has, in the type of the products; overwritten.
        """
        first, scale = blocks[0][0], self.scale
        for columns in self.columns():
            values = self.values[first:, columns]
            centered = space[: values.numel()].view(values.shape)
            for rows in _row_blocks(values):
                some = self.centered(slice(first + rows.start, first + rows.stop), columns)
                centered[rows].copy_(some).div_(scale)
            kept = float(columns.start > 0)  # of the ranges before
            for start, out in blocks:
                these, later = centered[start - first :].tensor_split([len(out)])
                out[:, : len(out)].addmm_(these, these.T, beta=kept)
                out[:, len(out) :].addmm_(these, later.T, beta=kept, alpha=2**0.5)

    def factor(self) -> Tensor:
        """Return F, float64 ``(n, min(n, p))`` with the Gram of the centered values: they are F times orthonormal rows.

        For n < p, F' is the R of a QR decomposition of the transposed values, n or more columns at a time.
        """
        n, p = self.values.shape
        if p <= n:
            return self.double(slice(None))
        width, triangle = (
            max(n, VALUES // n),
            torch.empty(0, n, dtype=torch.float64, device=self.values.device),
        )
        for first in range(0, p, width):
            block = self.double(slice(first, first + width)).T
            triangle = torch.linalg.qr(torch.cat([triangle, block]), mode="r").R
        return triangle.T


@attrs.frozen(eq=False)
class Products:
    """Inner products of the centered Grams K of two networks' layers, rows divided by ``Rows.scale``; float64.

    Attributes:
        cross: <K_i, K_j>, ``(a, b)``.
        left: <K_i, K_i>, ``(a,)``.
        right: <K_j, K_j>, ``(b,)``.
    """

    cross: Tensor
    left: Tensor
    right: Tensor

    def cosine(self) -> Tensor:
        """Return ``cross / sqrt(left right)``; NaN where an own product is not a number above 0."""
        left, right = (
            torch.where(own.isfinite() & (own > 0), own, torch.nan).sqrt() for own in (self.left, self.right)
        )
        return self.cross / left[:, None] / right


def _row_blocks(values: Tensor) -> Iterator[slice]:
    """Yield ranges of rows that are worked on at once."""
    count, width = values.shape
    step = max(1, (CACHED if values.device.type == "cpu" else VALUES) // max(1, width))
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))


def _mean(values: Tensor) -> Tensor:
    """Return the mean of each column, added up in float64."""
    total = torch.zeros(values.shape[1], dtype=torch.float64, device=values.device)
    for rows in _row_blocks(values):
        total += values[rows].double().sum(0)
    return total / len(values)


def _in_range(values: Tensor) -> Tensor:
    """Return float64 values whose squares would leave its range in another scale, which no similarity sees."""
    if values.dtype != torch.float64 or not values.numel():
        return values
    largest = values.abs().amax()
    within = (TINY < largest < HUGE) or not largest.isfinite() or largest == 0
    return values if within else values / largest


def different(left: Rows, right: Rows) -> int:
    """Return how many samples differ in at least one of two layers: an image that occurs twice counts once."""
    marks = left.marks / left.scale + (right.marks / right.scale).to(left.marks.device) * 2**0.5
    return _different(marks, left.rounding + 2**0.5 * right.rounding)


def _different(marks: Tensor, rounding: float) -> int:
    ordered = marks[marks[:, 0].argsort()]
    return 1 + int((ordered.diff(dim=0).abs().amax(1) > rounding).sum())


def same_layers(left: Sequence[Rows], right: Sequence[Rows]) -> bool:
    """Return whether the two sides are the same layers of the same network."""
    return len(left) == len(right) and all(
        rows.values.data_ptr() == other.values.data_ptr() and rows.values.shape == other.values.shape
        for rows, other in zip(left, right, strict=True)
    )


def gram_products(left: Sequence[Rows], right: Sequence[Rows]) -> Products:
    """Return the inner products of the Grams of all layers of one side with all of the other, in one pass.

    Grams are made in blocks of rows, as many at a time as ``STACK`` holds of all layers; these are one matrix, so that
    all pairs are one product. Of a symmetric Gram a block needs the later columns alone, which count twice.

    Args:
        left: Layers of one side, of n rows each.
        right: Layers of the other; the same layers are not made twice.
    """
    same = same_layers(left, right)
    layers = [*left] if same else [*left, *right]
    kind = max((dtype.values.dtype for dtype in layers), key=lambda layer: layer.itemsize)
    n, device = len(layers[0].values), layers[0].values.device
    held = STACK // (len(layers) * kind.itemsize)  # values of each layer
    step = max(1, min(-(-n // BLOCKS), held // n))
    cross = torch.zeros(len(left), len(right), dtype=torch.float64, device=device)
    own = torch.zeros(len(layers), dtype=torch.float64, device=device)
    widest = max(
        (layer.values[:, columns].numel() for layer in layers for columns in layer.columns()), default=0
    )
    space = torch.empty(widest, dtype=kind, device=device)
    starts = [*range(0, n, step)]
    sizes = [min(step, n - start) * (n - start) for start in starts]
    buffer = torch.empty(len(layers) * max(sizes[0], min(held, sum(sizes))), dtype=kind, device=device)
    while starts:
        count = max(1, sum(total <= held for total in accumulate(sizes)))
        values = len(layers) * sum(sizes[:count])
        stack = buffer[:values].view(len(layers), -1)
        for layer, flat in zip(layers, stack, strict=True):
            blocks = zip(starts, flat.split(sizes[:count]), strict=False)
            layer.grams([(start, block.view(-1, n - start)) for start, block in blocks], space)
        add_products(stack[: len(left)], stack if same else stack[len(left) :], stack, cross, own)
        starts, sizes = starts[count:], sizes[count:]
    return Products(cross, own[: len(left)], own if same else own[len(left) :])


def add_products(left: Tensor, right: Tensor, both: Tensor, cross: Tensor, own: Tensor) -> None:
    """Add the inner products of rows: of each left with each right one, of each with itself.

    Args:
        left: ``(a, m)``.
        right: ``(b, m)``.
        both: All of these, ``(l, m)``.
        cross: float64 ``(a, b)``, is changed.
        own: float64 ``(l,)``, is changed.
    """
    for first in range(0, both.shape[1], SUMMED):
        some = slice(first, first + SUMMED)
        cross.add_((left[:, some] @ right[:, some].T).double())
        own.add_(both[:, some].square().sum(1).double())


def unbiased(products: Products, left: Tensor, right: Tensor, rounding: float) -> Products:
    """Return the products of the unbiased estimate: the diagonals of the Grams left out (Song et al. 2012).

    ``U_ij = <K_i, K_j> - n / (n - 2) r_i.r_j + t_i t_j / ((n - 1) (n - 2))``, r_i the diagonal of K_i, t_i its sum.

    Args:
        products: Products of the whole Grams.
        left: r of each layer of one side, float64 ``(a, n)``, n at least 4.
        right: The same of the other, ``(b, n)``.
        rounding: An own product is never below 0; one below this share of the biased one is rounding, and made 0.
    """
    n = left.shape[1]

    def positive(inner: Tensor, of: Tensor) -> Tensor:
        return torch.where(inner > rounding * of, inner, 0.0)

    def corrected(inner: Tensor, diagonals: Tensor, sums: Tensor) -> Tensor:
        return inner - diagonals * (n / (n - 2)) + sums / ((n - 1) * (n - 2))

    a, b = left.sum(1), right.sum(1)
    return Products(
        corrected(products.cross, left @ right.T, torch.outer(a, b)),
        positive(corrected(products.left, left.square().sum(1), a.square()), products.left),
        positive(corrected(products.right, right.square().sum(1), b.square()), products.right),
    )


def fair_products(left: Sequence[Rows], right: Sequence[Rows]) -> tuple[Products, Products]:
    """Return the biased and the unbiased products of two sides' layers, from one pass."""
    products = gram_products(left, right)
    rounding = 16 * max(torch.finfo(rows.values.dtype).eps for rows in (*left, *right))
    a, b = (torch.stack([rows.norms / rows.scale**2 for rows in side]) for side in (left, right))
    return products, unbiased(products, a, b, rounding)
