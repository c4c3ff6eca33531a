"""SVCCA and PWCCA of all layers of two networks.

Papers: Raghu, Gilmer, Yosinski, Sohl-Dickstein (2017), "SVCCA"; Morcos, Raghu, Bengio (2018), "Insights on
    Representational Similarity in Neural Networks with Canonical Correlation".
Equations: with orthonormal bases U_x, U_y of the centred columns of two layers, the canonical correlations rho_i are
    the singular values of U_x'U_y. SVCCA: the bases are the leading singular vectors with ``share`` of the variance;
    the mean of rho_i. PWCCA: bases of all columns; sum_i a_i rho_i / sum_i a_i, where a_i = sum_j |h_i'x_j| over the
    columns x_j of the layer with fewer directions, h_i its canonical directions.
Reading: correlations are invariant to any invertible linear map, but the choice of directions of SVCCA only to
    rotations and scale, and the weights of PWCCA not to rotations of that layer. Where the directions of two layers are
    together more than n - 1, some correlations are 1 whatever the layers hold: such cells are degenerate.
Cost: a decomposition of n x min(n, p) numbers for each layer, one of the correlations for each pair, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit import hookimpl
from compatkit.errors import UsageError
from compatkit.hooks import Register
from compatkit.metrics import Cell

from ._rows import Rows
from ._similarity import Grid, RowsMetric, judged, pairwise

compatkit_api = 1


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``svcca`` and ``pwcca``."""
    register("svcca", SVCCA)
    register("pwcca", PWCCA)


def _forced(one: Tensor, other: Tensor) -> str:
    """Return why some correlations are 1 whatever the values are, or empty; bases are ``(n, directions)``."""
    n, r, s = len(one), one.shape[1], other.shape[1]
    return f"{r} and {s} directions of {n} samples: correlations of 1 are forced" if r + s > n - 1 else ""


@attrs.define(eq=False)
class SVCCA(RowsMetric):
    """The table ``svcca``: layers of this network by layers of the other.

    Attributes:
        share: Share of a layer's variance in the directions that are kept, in (0, 1].
    """

    share: float = 0.99

    def __attrs_post_init__(self) -> None:
        RowsMetric.__attrs_post_init__(self)
        if not 0 < self.share <= 1:
            raise UsageError(f"svcca: share is a share of the variance in (0, 1]; got {self.share!r:.60}.")

    def told(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, dict[str, Any]]:
        """Return estimator and source of the table."""
        how = f"mean correlation of the directions with {self.share:g} of the variance, {self.flatten}"
        return {"svcca": {"estimator": how, "paper": "Raghu et al. (2017), SVCCA", "equation": "Sec. 2"}}

    def compare(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, Grid]:
        """Return the cells of the table."""
        return {"svcca": pairwise(left, right, self._leading, _mean)}

    def _leading(self, rows: Rows) -> Tensor:
        """Return the leading left singular vectors, ``(n, directions)``."""
        vectors, values, _ = torch.linalg.svd(rows.factor(), full_matrices=False)
        held = values.square().cumsum(0)
        return vectors[:, : 1 + int((held < self.share * held[-1] * (1 - 1e-12)).sum())]


def _mean(one: Tensor, other: Tensor) -> Cell:
    return judged(torch.linalg.svdvals(one.T @ other).mean(), _forced(one, other))


@attrs.define(eq=False)
class PWCCA(RowsMetric):
    """The table ``pwcca``: layers of this network by layers of the other."""

    def told(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, dict[str, Any]]:
        """Return estimator and source of the table."""
        how = f"correlations weighted by projection, {self.flatten}"
        paper = "Morcos, Raghu, Bengio (2018), Insights on Representational Similarity"
        return {"pwcca": {"estimator": how, "paper": paper, "equation": "Sec. 3"}}

    def compare(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, Grid]:
        """Return the cells of the table."""
        return {"pwcca": pairwise(left, right, _spanned, _weighted, symmetric=False)}


def _spanned(rows: Rows) -> tuple[Tensor, Tensor]:
    """Return a basis of the columns, ``(n, directions)``, and the columns in that basis, ``(directions, p)``."""
    vectors, values, _ = torch.linalg.svd(rows.factor(), full_matrices=False)
    tolerance = torch.finfo(rows.values.dtype).eps * max(rows.values.shape)
    basis = vectors[:, values > tolerance * values[0]]
    return basis, torch.cat([basis.T @ rows.double(columns) for columns in rows.columns()], dim=1)


def _weighted(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Cell:
    fewer, more = (one, other) if one[0].shape[1] <= other[0].shape[1] else (other, one)
    turned, correlations, _ = torch.linalg.svd(fewer[0].T @ more[0], full_matrices=False)
    weights = (turned.T @ fewer[1]).abs().sum(1)
    return judged((weights * correlations).sum() / weights.sum(), _forced(one[0], other[0]))
