"""PWCCA of all layers of two networks.

Paper: Morcos, Raghu, Bengio (2018), "Insights on Representational Similarity in Neural Networks with Canonical
    Correlation".
Equations: with orthonormal bases U_x, U_y of the centered columns of two layers, the canonical correlations rho_i are
    the singular values of U_x'U_y. PWCCA is sum_i a_i rho_i / sum_i a_i, where a_i = sum_j |h_i'x_j| over the columns
    x_j of the layer with fewer directions, h_i its canonical directions.
Reading: correlations are invariant to any invertible linear map, the weights not even to rotations of the layer that
    gives them. Unrelated layers are far above 0 unless samples are many times the directions. Where the directions of
    two layers are together more than n - 1, some correlations are 1 whatever the layers hold: such cells are
    degenerate. n counts samples that differ: an image that occurs four times counts once.
Cost: a decomposition of n x min(n, p) numbers for each layer, one of the correlations for each pair, in float64.
Limits: it needs many times more images than directions; otherwise correlations of 1 are forced, and cells degenerate.
    Its weights change under rotation of a layer.
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

from ._rows import Rows
from ._similarity import Grid, RowsMetric, forced, judged, pairwise

compatkit_api = 1


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``pwcca``."""
    register("pwcca", PWCCA)


@attrs.define(eq=False)
class PWCCA(RowsMetric):
    """The table ``pwcca``: layers of this network by layers of the other."""

    def fields_of(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, dict[str, Any]]:
        """Return estimator and source of the table."""
        how = f"correlations weighted by projection, {self.flatten}"
        paper = "Morcos, Raghu, Bengio (2018), Insights on Representational Similarity"
        return {"pwcca": {"estimator": how, "paper": paper, "equation": "Sec. 3"}}

    def compare(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, Grid]:
        """Return the cells of the table."""
        return {"pwcca": pairwise(left, right, _spanned, _weighted, symmetric=False)}


def _spanned(rows: Rows) -> tuple[Rows, Tensor, Tensor]:
    """Return the layer, a basis of its columns ``(n, directions)``, and the columns in it ``(directions, p)``."""
    vectors, values, _ = torch.linalg.svd(rows.factor(), full_matrices=False)
    tolerance = torch.finfo(rows.values.dtype).eps * max(rows.values.shape)
    basis = vectors[:, values > tolerance * values[0]]
    return rows, basis, torch.cat([basis.T @ rows.double(columns) for columns in rows.columns()], dim=1)


def _weighted(this: tuple[Rows, Tensor, Tensor], other: tuple[Rows, Tensor, Tensor]) -> TableCell:
    directions = this[1].shape[1], other[1].shape[1]
    (_, basis, columns), (_, against, _) = (this, other) if directions[0] <= directions[1] else (other, this)
    turned, correlations, _ = torch.linalg.svd(basis.T @ against, full_matrices=False)
    weights = (turned.T @ columns).abs().sum(1)
    return judged((weights * correlations).sum() / weights.sum(), forced(this[0], other[0], directions))
