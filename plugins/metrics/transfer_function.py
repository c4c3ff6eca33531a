"""Transfer function: how strongly a layer's filters use each principal direction of their input.

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", Definition 3.
Equation: f(sigma_i) = tau_i = sqrt(v_i' B v_i), with v_i the eigenvectors of the data's covariance, sigma_i^2 their
    eigenvalues, and B the covariance of the filters: the deviation of the filters along v_i. Where B is aligned with
    the data, tau_i^2 are its eigenvalues; where it is not, this is the definition.
Reading: the paper sees curves that rise and then fall. At the initialization tau is flat; compare with ``other``.
Cost: one pass for the patches' covariance, an eigendecomposition of d x d numbers for each layer.
Limits: it needs an input that varies in more directions than one; patches that reach into padding do not count. At the
    initialization it is flat; a fall after the rise, as in the paper, did not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from torch import Tensor, nn

from compatkit import hookimpl
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.hooks import Register

from ..patch_covariance import Eigenspaces, filter_covariance, principal_directions
from ._alignment import PAPER, PatchMetric, SeenPatches

compatkit_api = 1


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``transfer_function``."""
    register("transfer_function", TransferFunction)


@attrs.frozen
class Curve:
    """A quantity along the directions of a layer, or why it has none; ``notes`` say which directions are arbitrary."""

    values: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""


def transfer_curve(data: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return sigma, in decreasing order, and tau, each ``(d,)``.

    Args:
        data: Covariance of the data, float64 ``(d, d)``.
        weights: Covariance of the filters, ``(d, d)``.
    """
    values, vectors = principal_directions(data)
    return values.sqrt(), ((vectors @ weights) * vectors).sum(1).clamp(min=0).sqrt()


@attrs.define(eq=False)
class TransferFunction(PatchMetric):
    """The table ``transfer_function``: sigma and tau of each layer and direction, the strongest first."""

    def finalize(
        self,
        state: SeenPatches,
        layers: Mapping[str, nn.Module],
        other_layers: Mapping[str, nn.Module],
    ) -> Table:
        """Return the table."""
        names = tuple(state.layers) or tuple(layers)
        quantities = ("sigma", "tau", "tau-other") if other_layers else ("sigma", "tau")
        widest = max((len(moments.mean) for moments in state.layers.values()), default=1)
        rows = [self._rows(state, name, layers, other_layers) for name in names]
        return Table(
            name="transfer_function",
            axes={
                "layer": names,
                "quantity": quantities,
                "direction": tuple(str(rank) for rank in range(1, widest + 1)),
            },
            cells=tuple(cell for row in rows for what in quantities for cell in _padded(row[what], widest)),
            unit="1",
            direction="none",
            estimator="all positions" if self.patches is None else f"{self.patches} positions an image",
            count=state.examples,
            paper=PAPER,
            equation="Definition 3",
        )

    def _rows(
        self,
        state: SeenPatches,
        name: str,
        layers: Mapping[str, nn.Module],
        others: Mapping[str, nn.Module],
    ) -> dict[str, Curve]:
        """Return the curves of a layer by quantity."""
        seen, plain = state.layers.get(name), name.split("#")[0]
        if seen is None or seen.lacking:
            lacking = Curve(reason="no examples" if seen is None else seen.lacking)
            return dict.fromkeys(("sigma", "tau", "tau-other"), lacking)
        data = seen.covariance
        notes = tuple(Eigenspaces.of(data).arbitrary)
        own = filter_covariance(self.filters(name, layers[plain])).to(data.device)
        sigma, tau = transfer_curve(data, own)
        curves = {
            "sigma": Curve(tuple(sigma.tolist()), ("",) * len(data)),
            "tau": Curve(tuple(tau.tolist()), notes),
            "tau-other": Curve(reason="the other network has no such layer"),
        }
        weight: Any = getattr(others.get(plain), "weight", None)
        if weight is not None and weight[0].numel() == len(data):
            _, tau = transfer_curve(data, filter_covariance(weight).to(data.device))
            curves["tau-other"] = Curve(tuple(tau.tolist()), notes)
        return curves


def _padded(curve: Curve, widest: int) -> Iterator[TableCell]:
    for value, note in zip(curve.values, curve.notes, strict=True):
        yield TableCell(value, "degenerate" if note else "ok", note)
    count = len(curve.values)
    reason = curve.reason or f"the layer has {count} directions"
    yield from [TableCell(None, "undefined", reason)] * (widest - count)
