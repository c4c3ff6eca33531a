"""Procrustes similarity of all layers of two networks.

Paper: Bonheme and Grzes (2023), "How Good Are Variational Autoencoders at Transfer Learning?", eq. 5 and 7 (Schoenemann
    1966).
Equation: X and Y centered, each divided by its Frobenius norm; 1 - min_Q |X - Y Q|^2 / 2 = |Y'X|_*, the sum of the
    singular values, with Q orthogonal (zeros are added to the narrower). 1: the same up to rotation, scale and shift.
Reading: it sees small differences that CKA does not see, and is too high for few samples: unrelated layers of 50 values
    have .75 at n = 50, and two points always have 1. Where the samples of a layer are about equally far from each other
    (their variance is spread over more than .9 (n - 1) directions, as of 20 unrelated rows of 500 values), the value
    hardly depends on their pairing, and is degenerate. The paper reads the smaller of this and CKA.
Cost: with n < p each layer is reduced to n x n numbers once (QR), which changes no singular value; then one
    decomposition of min(n, p) x min(n, q) numbers for each pair, in float64.
Limits: too high for few images, so read it beside shuffled ones. Wide layers take seconds for each pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit import hookimpl
from compatkit.evaluation.metrics import TableCell
from compatkit.hooks import Register

from ._rows import Rows, different
from ._similarity import Grid, RowsMetric, equally_far, few, judged, pairwise, spread

compatkit_api = 1


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``procrustes``."""
    register("procrustes", Procrustes)


@attrs.frozen(eq=False)
class Unit:
    """Summary of a layer: its rows, a factor of Frobenius norm 1, and the spread of its Gram."""

    rows: Rows
    factor: Tensor
    spread: float

    @classmethod
    def of(cls, rows: Rows) -> Unit:
        """Return that of a layer."""
        factor = rows.factor()
        factor = factor / factor.square().sum().sqrt()
        return cls(rows, factor, spread(float((factor.T @ factor).square().sum()), 1.0))


def _nuclear(this: Unit, other: Unit) -> TableCell:
    spreads, different_rows = (this.spread, other.spread), max(this.rows.different, other.rows.different)
    reason = equally_far(spreads, different_rows) and equally_far(spreads, different(this.rows, other.rows))
    return judged(torch.linalg.svdvals(other.factor.T @ this.factor).sum(), reason)


@attrs.define(eq=False)
class Procrustes(RowsMetric):
    """The table ``procrustes``: layers of this network by layers of the other."""

    def fields_of(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, dict[str, Any]]:
        """Return estimator and equation of the table."""
        return {
            "procrustes": {"estimator": f"exact, {self.flatten}{few([*left, *right])}", "equation": "eq. 5"}
        }

    def compare(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, Grid]:
        """Return the cells of the table."""
        return {"procrustes": pairwise(left, right, Unit.of, _nuclear)}
