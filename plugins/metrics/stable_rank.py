"""Stable rank: how many directions of its input a layer uses, counted by their strength.

Paper: Rudelson and Vershynin (2007), "Sampling from Large Matrices: An Approach through Geometric Functional Analysis".
Equation: |W|_F^2 / |W|_2^2, the sum of the squared singular values over the largest of them. From 1 to the rank; a
    small change of the weights changes it little, unlike the rank, which is given beside it.
Matrix: the weight ``(out, in)``, of a convolution ``(out, in * kernel)``.
Cost: singular values of each layer's matrix, in float64.
Limits: of the weight alone, whatever the data; batch normalization behind a layer changes what its scale means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import torch
from torch import Tensor, nn

from compatkit import hookimpl
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.hooks import Register

from ._loss import weighted

compatkit_api = 1
QUANTITIES = ("stable rank", "rank", "most")


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``stable_rank``."""
    register("stable_rank", StableRank)


@attrs.define(eq=False)
class StableRank:
    """The table ``stable_rank``: stable rank, rank, and the most there can be, of convolutions and linear layers."""

    def init(self) -> None:
        """Return the empty state."""

    def update(self, state: None) -> None:
        """Not called: weights are looked at once."""

    def merge(self, left: None, right: None) -> None:
        """Return the empty state."""

    def finalize(self, state: None, network: nn.Module, layers: Mapping[str, nn.Module]) -> Table:
        """Return the table.

        Raises:
            UsageError: No convolution or linear layer is named or there.
        """
        weights = {name: layer.weight for name, layer in weighted(layers or {"": network}).items()}
        return Table(
            name="stable_rank",
            axes={"layer": tuple(weights), "quantity": QUANTITIES},
            cells=tuple(cell for weight in weights.values() for cell in _cells(weight)),
            unit="1",
            direction="none",
            estimator="squared Frobenius over squared spectral norm; rank: singular values above float32's rounding",
            count=len(weights),
            paper="Rudelson and Vershynin (2007), Sampling from Large Matrices",
            equation="Sec. 1",
        )


def _cells(weight: Tensor) -> Iterator[TableCell]:
    matrix = weight.detach().double().cpu().flatten(1)
    largest = matrix.abs().max()
    if not bool(largest > 0) or not bool(largest.isfinite()):
        reason = "its weights are zero" if bool(largest == 0) else "its weights are not finite"
        yield from [TableCell(None, "undefined", reason)] * (len(QUANTITIES) - 1)
    else:
        values = torch.linalg.svdvals(matrix / largest)
        yield TableCell(float(values.square().sum() / values[0].square()))
        tolerance = max(matrix.shape) * torch.finfo(torch.float32).eps
        yield TableCell(float((values > tolerance * values[0]).sum()))
    yield TableCell(float(min(matrix.shape)))
