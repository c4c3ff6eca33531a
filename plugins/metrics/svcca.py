"""SVCCA of all layers of two networks.

Paper: Raghu, Gilmer, Yosinski, Sohl-Dickstein (2017), "SVCCA".
Equations: with U_x, U_y the leading left singular vectors of the centered columns of two layers with ``share`` of
    the variance, the mean of the canonical correlations rho_i, which are the singular values of U_x'U_y.
Reading: correlations are invariant to any invertible linear map, but the choice of directions only to rotations and
    scale. Unrelated layers are far above 0 unless samples are many times the directions. Where the directions of two
    layers are together more than n - 1, some correlations are 1 whatever the layers hold: such cells are degenerate.
    n counts samples that differ: an image that occurs four times counts once.
Cost: a decomposition of n x min(n, p) numbers for each layer, one of the correlations for each pair, in float64.
Limits: it needs many times more images than directions, and depends on ``share``. Untrained layers may be near .7:
    compare with controls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit import hookimpl
from compatkit.evaluation.metrics import TableCell
from compatkit.foundation.limits import Number
from compatkit.hooks import Register

from ._rows import Rows
from ._similarity import Grid, RowsMetric, forced, judged, pairwise

compatkit_api = 1


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``svcca``."""
    register("svcca", SVCCA)


@attrs.define(eq=False)
class SVCCA(RowsMetric):
    """The table ``svcca``: layers of this network by layers of the other.

    Attributes:
        share: Share of a layer's variance in the directions that are kept, in (0, 1].
    """

    share: float = attrs.field(default=0.99, validator=Number(above=0, most=1))

    def fields_of(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, dict[str, Any]]:
        """Return estimator and source of the table."""
        how = f"mean correlation of the directions with {self.share:g} of the variance, {self.flatten}"
        return {"svcca": {"estimator": how, "paper": "Raghu et al. (2017), SVCCA", "equation": "Sec. 2"}}

    def compare(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, Grid]:
        """Return the cells of the table."""
        return {"svcca": pairwise(left, right, self._leading, _mean)}

    def _leading(self, rows: Rows) -> tuple[Rows, Tensor]:
        """Return the layer, and its leading left singular vectors, ``(n, directions)``."""
        vectors, values, _ = torch.linalg.svd(rows.factor(), full_matrices=False)
        energy = values.square().cumsum(0)
        return rows, vectors[:, : 1 + int((energy < self.share * energy[-1] * (1 - 1e-12)).sum())]


def _mean(this: tuple[Rows, Tensor], other: tuple[Rows, Tensor]) -> TableCell:
    (left, basis), (right, against) = this, other
    directions = basis.shape[1], against.shape[1]
    return judged(torch.linalg.svdvals(basis.T @ against).mean(), forced(left, right, directions))
