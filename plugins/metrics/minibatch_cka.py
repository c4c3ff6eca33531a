"""Minibatch CKA of all layers of two networks: an estimate that keeps no rows.

Paper: Nguyen, Raghu, Kornblith (2021), "Do Wide and Deep Networks Learn the Same Things?", eq. 2 to 4.
Equation: sum_t n_t HSIC_1(X_t, Y_t) / sqrt(sum_t n_t HSIC_1(X_t, X_t) sum_t n_t HSIC_1(Y_t, Y_t)) over minibatches t of
    n_t rows, with HSIC_1 the unbiased estimate of Song et al. (2012): U / (n (n - 3)), ``_rows.unbiased``. The
    paper has no weights n_t; its batches are all of one size.
Reading: the value depends on which images form a batch, and how many: cells are ``approximate`` and the estimator has
    the sizes. ``cka`` is exact; ``streamed_cka`` is exact for narrow layers.
A last batch of fewer than four rows is left out.
Cost: as ``cka`` of one batch; memory for one batch and the sums.
Limits: the value depends on which images form a batch. It is an estimate where ``cka`` is exact; take it only where
    neither rows nor sums fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.hooks import Register

from ._moments import digests_of
from ._rows import Products, Rows, fair_products
from ._similarity import FlatteningMetric, distinct, doubted, grid, not_above_0, table

compatkit_api = 1
LEAST = 4
LIGHTEST = 1e-290
"""Least weight of a batch that keeps its digits in float64."""


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``minibatch_cka``."""
    register("minibatch_cka", MinibatchCKA)


@attrs.frozen(eq=False)
class Batches:
    """Sums over batches.

    Attributes:
        sizes: Rows of each batch, with how many batches had as many.
        axes: Layers of this network and of the other.
        products: Weighted HSIC_1; None before the first batch.
        varying: Names of this network's layers, and of the other's, that vary in some batch.
        digests: Digests of different rows of all layers together, by batch.
    """

    examples: int = 0
    sizes: Mapping[int, int] = attrs.field(factory=dict)
    axes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    products: Products | None = None
    varying: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    digests: tuple[Tensor, ...] = ()


@attrs.define(eq=False)
class MinibatchCKA(FlatteningMetric):
    """The table ``minibatch_cka``: layers of this network by layers of the other."""

    def init(self) -> Batches:
        """Return the empty state."""
        return Batches()

    def update(
        self,
        state: Batches,
        positions: Tensor,
        outputs: Mapping[str, Tensor],
        other_outputs: Mapping[str, Tensor],
    ) -> Batches:
        """Return the state with one more batch.

        Args:
            state: State so far.
            positions: Indices of the images, ``(batch,)``.
            outputs: Output of each layer, ``(batch, ...)``.
            other_outputs: The same of the other network.

        Raises:
            DataError: Layers have different numbers of rows, or values beyond the range of fourth powers.
        """
        left, right = (
            [Rows.of(name, [layer]) for name, layer in side.items()]
            for side in self.sides(outputs, other_outputs)
        )
        counts = {len(layer.values) for layer in (*left, *right)}
        if len(counts) > 1:
            raise DataError(
                f"minibatch_cka needs as many rows of each layer; got {sorted(counts)}. Choose flatten='pooled'.",
                subject="minibatch_cka",
            )
        if (n := counts.pop()) < LEAST:
            return state
        for layer in (*left, *right):
            _check_range(layer)
        _, products = fair_products(left, right)
        # HSIC_1 is U / (n (n - 3)), and a batch weighs by its n; a layer that is constant in it adds nothing.
        a, b = (
            torch.tensor(
                [_weight(layer) / (n - 3) for layer in side], dtype=torch.float64, device=products.left.device
            )
            for side in (left, right)
        )
        scaled = Products(
            products.cross * torch.outer(a.sqrt(), b.sqrt()), products.left * a, products.right * b
        )
        axes = tuple(outputs), tuple(other_outputs)
        varying = tuple(frozenset(layer.name for layer in side if _weight(layer)) for side in (left, right))
        digests = digests_of(torch.cat([layer.values.double() for layer in (*left, *right)], 1), n)
        batch = Batches(len(positions), {n: 1}, axes, scaled, (varying[0], varying[1]), (digests,))
        return self.merge(state, batch)

    def merge(self, left: Batches, right: Batches) -> Batches:
        """Return the state of both parts."""
        if left.products is None or right.products is None:
            return right if left.products is None else left
        sums = [
            product + getattr(right.products, name).to(product.device)
            for name, product in attrs.asdict(left.products, recurse=False).items()
        ]
        sizes = {
            n: left.sizes.get(n, 0) + right.sizes.get(n, 0) for n in sorted({**left.sizes, **right.sizes})
        }
        varying = left.varying[0] | right.varying[0], left.varying[1] | right.varying[1]
        return Batches(
            left.examples + right.examples,
            sizes,
            left.axes,
            Products(*sums),
            varying,
            (*left.digests, *right.digests),
        )

    def finalize(self, state: Batches, layers: Mapping[str, Any], other_layers: Mapping[str, Any]) -> Table:
        """Return the table."""
        axes = state.axes if state.products is not None else (tuple(layers), tuple(other_layers))
        batches = ", ".join(f"{count} of {size}" for size, count in state.sizes.items())
        if state.products is None:
            cells = [[TableCell(None, "undefined", "no batch of four rows or more")] * len(axes[1])] * len(
                axes[0]
            )
        else:
            owns = (state.products.left, state.products.right)
            reasons = [
                [
                    reason if name in varying else f"{name}: zero variance"
                    for name, reason in zip(side, not_above_0(side, own), strict=True)
                ]
                for side, own, varying in zip(axes, owns, state.varying, strict=True)
            ]
            cells = [
                [
                    attrs.evolve(cell, status="approximate", reason="minibatches")
                    if cell.status == "ok"
                    else cell
                    for cell in row
                ]
                for row in grid(state.products.cosine(), *reasons)
            ]
        if state.products is not None:
            count, rows = distinct(state.digests), sum(size * many for size, many in state.sizes.items())
            cells = [[doubted(cell, count, rows) for cell in row] for row in cells]
        return table(
            "minibatch_cka",
            axes,
            cells,
            count=state.examples,
            estimator=f"minibatch, unbiased in each; batches: {batches}; {self.flatten}",
            paper="Nguyen, Raghu, Kornblith (2021), Do Wide and Deep Networks Learn the Same Things?",
            equation="eq. 2 to 4",
        )


def _check_range(rows: Rows) -> None:
    if not rows.reason and not LIGHTEST < _weight(rows) < 1 / LIGHTEST:
        raise DataError(
            f"{rows.name}: values deviate from their mean by {rows.scale:.3g}, and fourth powers leave the range of "
            "float64. Scale them.",
            subject=rows.name,
        )


def _weight(rows: Rows) -> float:
    """Return what an own product of rows divided by their scale weighs."""
    if rows.reason:
        return 0.0 if bool(rows.norms.isfinite().all()) else math.nan
    square = rows.scale * rows.scale
    return square * square  # infinite where the power ** would raise
