"""Mutual nearest neighbors of all layers of two networks: how many neighbors of a sample are the same in both.

Paper: Huh, Cheung, Wang, Isola (2024), "The Platonic Representation Hypothesis", App. A.
Equation: mean over samples i of |N_k(i) in X and N_k(i) in Y| / k, N_k(i) the k nearest of the other samples.
Reading: unrelated layers have k / (n - 1). Invariant to whatever keeps the order of distances.
Cost: n^2 p in float64 for each layer, n k for each pair; memory for one n x n table of bits.
Limits: it depends on how many images there are: of unrelated layers k / (n - 1). Distances of n x n images are kept,
    so samples are limited by memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.evaluation.metrics import TableCell
from compatkit.foundation.limits import COUNT, OneOf
from compatkit.hooks import Register

from ._rows import Rows
from ._similarity import Grid, RowsMetric, judged, pairwise

compatkit_api = 1
DISTANCES = ("cosine", "euclidean")
BLOCK = 2**23
"""Distances that are sorted at once."""


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``mutual_neighbors``."""
    register("mutual_neighbors", MutualNeighbors)


@attrs.define(eq=False)
class MutualNeighbors(RowsMetric):
    """The table ``mutual_neighbors``: layers of this network by layers of the other.

    Attributes:
        neighbors: k, from 1.
        distance: ``cosine`` of the values as they are, as in the paper, or ``euclidean``.
    """

    neighbors: int = attrs.field(default=10, validator=COUNT)
    distance: str = attrs.field(default="cosine", validator=OneOf(DISTANCES))

    def check_samples(self, name: str, count: int) -> None:
        """Raise if there are no more samples than neighbors and the sample itself.

        Raises:
            DataError: There are not.
        """
        if count < self.neighbors + 2:
            raise DataError(
                f"{name}: {self.neighbors} neighbors need at least {self.neighbors + 2} samples; got {count}. Give "
                "more, or fewer neighbors.",
                subject=name,
            )

    def fields_of(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, dict[str, Any]]:
        """Return estimator and source of the table."""
        others = len(left[0].values) - 1 if left else 0
        chance = f"; {self.neighbors / others:.3g} by chance" if others else ""
        how = f"{self.neighbors} neighbors by {self.distance} distance, {self.flatten}{chance}"
        paper = "Huh, Cheung, Wang, Isola (2024), The Platonic Representation Hypothesis"
        return {"mutual_neighbors": {"estimator": how, "paper": paper, "equation": "App. A"}}

    def compare(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, Grid]:
        """Return the cells of the table."""
        return {"mutual_neighbors": pairwise(left, right, self._nearest, self._shared)}

    def _nearest(self, rows: Rows) -> tuple[Tensor, str]:
        """Return the nearest samples of each, int64 ``(n, k)``, and a reason if they cannot be told apart."""
        values = rows.double(slice(None)) if self.distance == "euclidean" else rows.values.double()
        squares = values.square().sum(1)
        if self.distance == "cosine":
            values = values / squares.sqrt().clamp(min=torch.finfo(torch.float64).tiny)[:, None]
        n, tied = len(values), 0
        neighbors = torch.empty(n, self.neighbors, dtype=torch.int64, device=values.device)
        step = max(1, BLOCK // n)
        for first in range(0, n, step):
            near = values[first : first + step] @ values.T
            if self.distance == "euclidean":
                near = 2 * near - squares  # minus the squared distance, but for the sample's own square
            near[torch.arange(len(near)), torch.arange(len(near)) + first] = -torch.inf
            nearest = near.topk(self.neighbors + 1, dim=1)
            tied += int((nearest.values[:, -2] == nearest.values[:, -1]).sum())
            neighbors[first : first + step] = nearest.indices[:, :-1]
        return neighbors, f"{rows.name}: {tied:,} of {n:,} samples have equally near ones" if tied else ""

    def _shared(self, this: tuple[Tensor, str], other: tuple[Tensor, str]) -> TableCell:
        n = len(this[0])
        near = torch.zeros(n, n, dtype=torch.bool, device=this[0].device).scatter_(1, this[0], True)
        share = near.gather(1, other[0]).sum(dtype=torch.float64) / (n * self.neighbors)
        return judged(share, "; ".join(dict.fromkeys(filter(None, (this[1], other[1])))))
