"""Correlation of the channels of all layers of two networks under the best one-to-one assignment.

Paper: Li, Yosinski, Clune, Lipson, Hopcroft (2016), "Convergent Learning: Do Different Neural Networks Learn the Same
    Representations?"
Equation: mean over channels of r_i,p(i) under the assignment p with the largest sum, r the Pearson correlation over
    rows; ``absolute`` takes |r|.
Reading: matching gives positive values for unrelated layers too; compare with shuffled samples. ``cross_correlation``
    has that baseline, for layers of one name, and streams. Choose ``flatten="positions"`` or ``"pooled"`` for maps.
Constant channels have no correlation and count as 0; their numbers are in the reason of the cell.
Cost: one product of p x q correlations for each pair, and an assignment of p^3.
Limits: an assignment fits noise too; there is no baseline here, ``cross_correlation`` has one. The time of the
    assignment grows with the cube of the width.
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

from ._moments import NEGLIGIBLE, best_pairs
from ._rows import Rows
from ._similarity import Grid, RowsMetric, judged, pairwise

compatkit_api = 1
MOST = 8192
"""Most channels that are assigned."""


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``matched_correlation``."""
    register("matched_correlation", MatchedCorrelation)


@attrs.define(eq=False)
class MatchedCorrelation(RowsMetric):
    """The table ``matched_correlation``: layers of this network by layers of the other.

    Attributes:
        absolute: Whether a negative correlation is as good as a positive one.
    """

    absolute: bool = False

    def fields_of(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, dict[str, Any]]:
        """Return estimator and source of the table."""
        how = f"mean {'|r|' if self.absolute else 'r'} of the best assignment, {self.flatten}"
        paper = "Li, Yosinski, Clune, Lipson, Hopcroft (2016), Convergent Learning"
        return {"matched_correlation": {"estimator": how, "paper": paper, "equation": "Sec. 3.1"}}

    def compare(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, Grid]:
        """Return the cells of the table."""
        return {"matched_correlation": pairwise(left, right, _standardized, self._matched)}

    def _matched(self, this: tuple[Tensor | None, str], other: tuple[Tensor | None, str]) -> TableCell:
        (left, why), (right, too) = this, other
        reason = "; ".join(dict.fromkeys(filter(None, (why, too))))
        if left is None or right is None:
            return TableCell(None, "undefined", reason)
        correlations = (left.T @ right).clamp(-1, 1)
        mean = best_pairs(correlations.abs() if self.absolute else correlations).mean()
        if reason:
            return judged(mean, reason)
        a, b = correlations.shape
        return judged(
            mean, f"{min(a, b)} of {max(a, b)} channels have a partner" if a != b else "", "approximate"
        )


def _standardized(rows: Rows) -> tuple[Tensor | None, str]:
    """Return centered channels of norm 1, constant ones as 0, float64 ``(n, p)``; and what is wrong with them."""
    n, p = rows.values.shape
    if p > MOST:
        return (
            None,
            f"{rows.name}: {p:,} channels are more than can be assigned ({MOST:,}); flatten otherwise",
        )
    values = rows.double(slice(None))
    norms, mean = values.square().sum(0).sqrt(), rows.mean[0].double().abs()
    constant = norms <= n**0.5 * NEGLIGIBLE * mean
    scaled = torch.where(constant, 0.0, values / torch.where(constant, 1.0, norms))
    count = int(constant.sum())
    return scaled, f"{rows.name}: {count} of {p} channels are constant and count as 0" if count else ""
