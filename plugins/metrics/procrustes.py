"""Procrustes similarity of all layers of two networks.

Paper: Bonheme and Grzes (2023), "How Good Are Variational Autoencoders at Transfer Learning?", eq. 5 and 7 (Schoenemann
    1966).
Equation: X and Y centred, each divided by its Frobenius norm; 1 - min_Q |X - Y Q|^2 / 2 = |Y'X|_*, the sum of the
    singular values, with Q orthogonal (zeros are added to the narrower). 1: the same up to rotation, scale and shift.
Reading: it sees small differences that CKA does not see, and is too high for few samples: unrelated layers of 50 values
    have .75 at n = 50, and two points always have 1, which is degenerate. The paper reads the smaller of this and CKA.
Cost: with n < p each layer is reduced to n x n numbers once (QR), which changes no singular value; then one
    decomposition of min(n, p) x min(n, q) numbers for each pair, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit import hookimpl
from compatkit.hooks import Register
from compatkit.metrics import Cell

from ._rows import Rows
from ._similarity import Grid, RowsMetric, few, judged, pairwise

compatkit_api = 1


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``procrustes``."""
    register("procrustes", Procrustes)


def _unit(rows: Rows) -> Tensor:
    """Return what the similarity needs of a layer, of Frobenius norm 1."""
    found = rows.factor()
    return found / found.square().sum().sqrt()


def _nuclear(one: Tensor, other: Tensor) -> Cell:
    return judged(torch.linalg.svdvals(other.T @ one).sum())


@attrs.define(eq=False)
class Procrustes(RowsMetric):
    """The table ``procrustes``: layers of this network by layers of the other."""

    def told(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, dict[str, Any]]:
        """Return estimator and equation of the table."""
        return {
            "procrustes": {"estimator": f"exact, {self.flatten}{few([*left, *right])}", "equation": "eq. 5"}
        }

    def compare(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, Grid]:
        """Return the cells of the table."""
        return {"procrustes": pairwise(left, right, _unit, _nuclear)}
