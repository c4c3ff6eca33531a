"""Linear CKA of all layers of two networks, unbiased and biased, exact in one pass that keeps no rows.

Paper: Kornblith, Norouzi, Lee, Hinton (2019), "Similarity of Neural Network Representations Revisited", eq. 3 and 4;
    Bonheme and Grzes (2023), eq. 2.
Equation: as ``cka``, from feature-space sums: <K_i, K_j> = |X_i'X_j|^2 of centered columns, and the diagonals'
    products r_i.r_j, with r_i the squared norms of the centered rows. Sums are taken of rows less the first batch's
    means and moved to the true means at the end, which is exact: with z' = z - d and D_l = sum over the columns of
    layer l of z d, the squared norm of a row of the layer becomes r' = r - 2 D_l + |d_l|^2.
Choose it for many samples of narrow layers, such as positions of maps; memory is that of (P + Q)^2 float64, P and Q
    the widths of all layers together.
Cost: n (P + Q)^2.
Limits: up to 16,384 columns of all layers together; wider ones are refused. Memory is the square of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.hooks import Register

from ._moments import NEGLIGIBLE, digests_of, within_range
from ._rows import Products
from ._similarity import FlatteningMetric, Grid, at_most_one, distinct, doubted, grid, not_above_0, table

compatkit_api = 1
LEAST = 4
WIDEST = 16384
"""Most columns of all layers together: 2 GB."""
ROUNDING = 1e-12
"""An own product below this share of the biased one is rounding."""
ROWS = 2**14
"""Rows that are added at once."""


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``streamed_cka``."""
    register("streamed_cka", StreamedCKA)


@attrs.frozen(eq=False)
class Sums:
    """Sums over rows z less ``shift``, of all layers side by side, and of r, the squared norm of each layer's part.

    Attributes:
        widths: Columns of each layer.
        shift: ``(P,)``, float64 like all that follow.
        z: Sum of z, ``(P,)``.
        r: Sum of r, ``(L,)``.
        zz: Sum of z z', ``(P, P)``.
        rz: Sum of r z', ``(L, P)``.
        rr: Sum of r r', ``(L, L)``.
    """

    rows: int
    widths: tuple[int, ...]
    shift: Tensor
    z: Tensor
    r: Tensor
    zz: Tensor
    rz: Tensor
    rr: Tensor

    @classmethod
    def of(cls, parts: list[Tensor], shift: Tensor) -> Sums:
        """Return the sums of some rows.

        Args:
            parts: ``(n, p)`` of each layer.
            shift: Offset to subtract first, ``(P,)``.
        """
        widths = tuple(part.shape[1] for part in parts)
        z = torch.cat([part.double() for part in parts], dim=1) - shift
        r = torch.stack([part.square().sum(1) for part in z.split(widths, dim=1)], dim=1)
        return cls(len(z), widths, shift, z.sum(0), r.sum(0), z.T @ z, r.T @ z, r.T @ r)

    def moved(self, shift: Tensor) -> Sums:
        """Return the sums of the same rows less another shift."""
        d, n = shift - self.shift, self.rows
        q = torch.stack([part.square().sum() for part in d.split(self.widths)])
        layer_indices = torch.arange(len(self.widths), device=d.device).repeat_interleave(
            torch.tensor(self.widths, device=d.device)
        )
        at = torch.zeros(len(d), len(q), dtype=d.dtype, device=d.device)
        at[torch.arange(len(d), device=d.device), layer_indices] = d  # z @ at is D of each layer
        z, zd = self.z - n * d, at.T @ self.z
        zz = self.zz - torch.outer(self.z, d) - torch.outer(d, z)
        dz = at.T @ self.zz
        r = self.r - 2 * zd + n * q
        rz = self.rz - torch.outer(self.r, d) - 2 * (dz - torch.outer(zd, d)) + torch.outer(q, z)
        cross = self.rz @ at  # r D'
        rr = self.rr - 2 * (cross + cross.T) + 4 * dz @ at
        for left, right in ((self.r, q), (-2 * zd, q)):
            rr = rr + torch.outer(left, right) + torch.outer(right, left)
        return Sums(n, self.widths, shift, z, r, zz, rz, rr + n * torch.outer(q, q))

    def plus(self, other: Sums) -> Sums:
        """Return the sums of both, with the shift of this one."""
        other = other if torch.equal(other.shift, self.shift) else other.moved(self.shift)
        sums = [
            getattr(self, field) + getattr(other, field).to(self.z.device)
            for field in ("z", "r", "zz", "rz", "rr")
        ]
        return Sums(self.rows + other.rows, self.widths, self.shift, *sums)


@attrs.frozen(eq=False)
class Streamed:
    """Sums of the layers of both networks.

    Attributes:
        axes: Names of the layers.
        digests: Digests of different rows of all layers together, by batch.
        broken: Places, in order of both axes, of layers with values that are not finite; their sums mean nothing.
    """

    examples: int = 0
    axes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    sums: Sums | None = None
    digests: tuple[Tensor, ...] = ()
    broken: frozenset[int] = frozenset()


@attrs.define(eq=False)
class StreamedCKA(FlatteningMetric):
    """The tables ``streamed_cka``, which is unbiased, and ``streamed_cka/biased``."""

    def init(self) -> Streamed:
        """Return the empty state."""
        return Streamed()

    def update(
        self,
        state: Streamed,
        positions: Tensor,
        outputs: Mapping[str, Tensor],
        other_outputs: Mapping[str, Tensor],
    ) -> Streamed:
        """Return the state with one more batch.

        Args:
            state: State so far.
            positions: Indices of the images, ``(batch,)``.
            outputs: Output of each layer, ``(batch, ...)``.
            other_outputs: The same of the other network.

        Raises:
            DataError: The layers are too wide, have different numbers of rows, or values beyond the range of squares.
        """
        left, right = self.sides(outputs, other_outputs)
        parts = [*left.values(), *right.values()]
        width, counts = sum(part.shape[1] for part in parts), {len(part) for part in parts}
        if width > WIDEST or len(counts) > 1:
            raise DataError(
                f"streamed_cka takes at most {WIDEST:,} columns of all layers together, and as many rows of each; got "
                f"{width:,} columns and {sorted(counts)} rows. Choose fewer layers, flatten='pooled', or the metric "
                "cka.",
                subject="streamed_cka",
            )
        broken = {index for index, part in enumerate(parts) if not bool(part.isfinite().all())}
        for name, part in (*left.items(), *right.items()):
            if bool(part.isfinite().all()):
                within_range(name, part, power=4)
        parts = [torch.zeros_like(part) if index in broken else part for index, part in enumerate(parts)]
        sums = state.sums
        for first in range(0, counts.pop(), ROWS):
            some = [part[first : first + ROWS] for part in parts]
            shift = (
                torch.cat([part.mean(0, dtype=torch.float64) for part in some])
                if sums is None
                else sums.shift
            )
            more = Sums.of(some, shift)
            sums = more if sums is None else sums.plus(more)
        axes = tuple(left), tuple(right)
        digests = (*state.digests, digests_of(torch.cat([part.double() for part in parts], 1), len(parts[0])))
        return Streamed(state.examples + len(positions), axes, sums, digests, state.broken | broken)

    def merge(self, left: Streamed, right: Streamed) -> Streamed:
        """Return the state of both parts."""
        if left.sums is None or right.sums is None:
            return right if left.sums is None else left
        sums, broken = left.sums.plus(right.sums), left.broken | right.broken
        digests = (*left.digests, *right.digests)
        return Streamed(left.examples + right.examples, left.axes, sums, digests, broken)

    def finalize(
        self, state: Streamed, layers: Mapping[str, Any], other_layers: Mapping[str, Any]
    ) -> tuple[Table, Table]:
        """Return the tables.

        Raises:
            DataError: There are too few samples.
        """
        axes = state.axes if state.sums is not None else (tuple(layers), tuple(other_layers))
        nothing = [[TableCell(None, "undefined", "no examples")] * len(axes[1])] * len(axes[0])
        fair, plain = (nothing, nothing) if state.sums is None else _cells(state.sums, axes, state.broken)
        if state.sums is not None:
            count, rows = distinct(state.digests), state.sums.rows
            fair, plain = (
                [[doubted(cell, count, rows) for cell in line] for line in grid] for grid in (fair, plain)
            )
        common: dict[str, Any] = {"count": state.examples, "equation": "eq. 2"}
        return (
            table("streamed_cka", axes, fair, estimator=f"unbiased, streamed, {self.flatten}", **common),
            table(
                "streamed_cka/biased", axes, plain, estimator=f"biased, streamed, {self.flatten}", **common
            ),
        )


def _cells(
    sums: Sums, axes: tuple[tuple[str, ...], tuple[str, ...]], broken: frozenset[int]
) -> tuple[Grid, Grid]:
    """Return the cells of the unbiased and of the biased table."""
    n, a = sums.rows, len(axes[0])
    if n < LEAST:
        raise DataError(
            f"streamed_cka needs at least {LEAST} samples; got {n}. Give more.", subject="streamed_cka"
        )
    mean = sums.shift + sums.z / n
    at = sums.moved(mean)
    still = at.r <= n * NEGLIGIBLE**2 * torch.stack([part.square().sum() for part in mean.split(at.widths)])
    parts = [part.split(at.widths, dim=1) for part in at.zz.split(at.widths)]
    inner = torch.stack([torch.stack([block.square().sum() for block in row]) for row in parts])
    fair = inner - at.rr * (n / (n - 2)) + torch.outer(at.r, at.r) / ((n - 1) * (n - 2))
    names, tables = [*axes[0], *axes[1]], []
    for products in (fair, inner):
        own = torch.where(
            still | (products.diagonal() <= ROUNDING * inner.diagonal()), 0.0, products.diagonal()
        )
        own[list(broken)] = torch.nan
        whole = Products(products[:a, a:], own[:a], own[a:])
        reasons = [
            f"{name}: zero variance" if flat and index not in broken else reason
            for index, (name, flat, reason) in enumerate(
                zip(names, still.tolist(), not_above_0(names, own), strict=True)
            )
        ]
        tables.append(grid(at_most_one(whole.cosine()), reasons[:a], reasons[a:]))
    return tables[0], tables[1]
