"""Linear CKA of all layers of two networks, unbiased and biased, from one pass over blocks of their Grams.

Paper: Kornblith, Norouzi, Lee, Hinton (2019), "Similarity of Neural Network Representations Revisited", eq. 3 and 4;
    Bonheme and Grzes (2023), eq. 2; the unbiased estimate is that of Song et al. (2012).
Equations: K_i = X_i X_i' with centered columns. Biased: <K_i, K_j> / (|K_i| |K_j|). Unbiased: the same of the products
    without the diagonals, U_ij (``_rows.unbiased``).
Reading: biased CKA of unrelated layers is far above 0 where samples are fewer than values, and grows with their number;
    the unbiased one is about 0 there, and may be below it. CKA is invariant to rotations and to the scale of all
    values, not to other linear maps, and mainly sees the strongest principal components.
    Where fewer than .9 of the samples differ, both are degenerate: the estimates take samples as independent. So is
    the biased one where samples are about equally far from each other: it is then the same for every pairing.
Cost: n^2 p once for each layer, n^2 for each pair; memory for all rows and 128 MB of Grams.
Limits: it needs four images and more images than values for the biased figure. It sees mainly the strongest
    directions, and says nothing of layers of unlike kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from compatkit import hookimpl
from compatkit.evaluation.metrics import TableCell
from compatkit.hooks import Register

from ._rows import Rows, different, fair_products
from ._similarity import Grid, RowsMetric, at_most_one, equally_far, few, grid, not_above_0, repeated, spread

compatkit_api = 1


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``cka``."""
    register("cka", CKA)


@attrs.define(eq=False)
class CKA(RowsMetric):
    """The tables ``cka``, which is unbiased, and ``cka/biased``: layers of this network by layers of the other."""

    min_samples = 4

    def fields_of(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, dict[str, Any]]:
        """Return estimator and equation of each table."""
        return {
            "cka": {
                "estimator": f"unbiased, {self.flatten}",
                "equation": "eq. 2, without the Grams' diagonals",
            },
            "cka/biased": {"estimator": f"biased, {self.flatten}{few([*left, *right])}", "equation": "eq. 2"},
        }

    def compare(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, Grid]:
        """Return the cells of each table."""
        products, fair = fair_products(left, right)
        reasons = [
            not_above_0([rows.name for rows in side], own)
            for side, own in ((left, fair.left), (right, fair.right))
        ]
        unbiased = grid(at_most_one(fair.cosine()), *reasons)
        spreads = [
            [
                spread(square, float(rows.norms.sum()) / rows.scale**2)
                for square, rows in zip(own.tolist(), side, strict=True)
            ]
            for side, own in ((left, products.left), (right, products.right))
        ]
        biased = grid(at_most_one(products.cosine()))
        return {
            "cka": [
                [_repeated(cell, rows, other) for cell, other in zip(line, right, strict=True)]
                for line, rows in zip(unbiased, left, strict=True)
            ],
            "cka/biased": [
                [
                    _forced(_repeated(cell, rows, other), rows, other, (wide, also))
                    for cell, other, also in zip(line, right, spreads[1], strict=True)
                ]
                for line, rows, wide in zip(biased, left, spreads[0], strict=True)
            ],
        }


def _repeated(cell: TableCell, left: Rows, other: Rows) -> TableCell:
    """Return a cell, degenerate where so many samples repeat that they are not independent."""
    rows = len(left.values)
    if repeated(cell, max(left.different, other.different), rows) is cell:
        return cell
    return repeated(cell, different(left, other), rows)


def _forced(cell: TableCell, left: Rows, other: Rows, spreads: tuple[float, float]) -> TableCell:
    """Return a cell of biased CKA, degenerate where its samples are equally far from each other."""
    if cell.status != "ok" or not equally_far(spreads, max(left.different, other.different)):
        return cell
    reason = equally_far(spreads, different(left, other))
    return TableCell(cell.value, "degenerate", reason) if reason else cell
