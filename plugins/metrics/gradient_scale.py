"""Gradient scale: the size of the gradient at each layer, and how fast it grows on its way back.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 4, Fig. 7(a), (b) and (d): in
    networks from scratch the gradient grows as it is propagated to lower layers, in pretrained ones it stays stable.
Equations: ``output``: root mean square over examples i of |d l_i / d X_k,i|, with X_k what layer k gives;
    ``to last``: the same over that of the last layer called; ``weight``: |dL / dW_k|_F of the mean loss;
    ``to weight``: that over |W_k|_F. ``growth``: exp(-slope) of the least-squares line through log ``output`` over the
    place of the layer in the order of calls, the factor by which smoothness is lost with each layer down.
Cost: two passes with gradients.
Limits: of one point in training, in evaluation mode with stored statistics; at the very start these are 0 and 1. The
    paper's explosion at initialization did not show in networks of up to 20 layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from torch import nn

from compatkit import hookimpl
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.hooks import Register

from ._loss import CASES, PAPER, LossMetric, LossSurface, SampledExamples, weighted

compatkit_api = 1
QUANTITIES = ("output", "to last", "weight", "to weight")


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``gradient_scale``."""
    register("gradient_scale", GradientScale)


@attrs.define(eq=False, kw_only=True)
class GradientScale(LossMetric):
    """Tables ``gradient_scale`` by layer and quantity, ``gradient_scale/growth``; of the layers named, or all."""

    def finalize(
        self, state: SampledExamples | None, network: nn.Module, layers: Mapping[str, nn.Module]
    ) -> tuple[Table, Table]:
        """Return the tables."""
        cases = CASES if self.controls else CASES[:1]
        names = tuple(weighted(layers or {"": network}))
        rows: dict[str, dict[str, list[TableCell]]] = {}
        if state is not None:
            rows = {case: _rows(surface) for case, surface in self.surfaces(state, network, layers).items()}
            names = tuple(next(iter(rows.values())))
        none = [TableCell(None, "undefined", "no examples")] * len(QUANTITIES)
        fields: dict[str, Any] = {
            "unit": "1",
            "direction": "none",
            "count": 0 if state is None else len(state.labels),
            "paper": PAPER,
        }
        scales = Table(
            name="gradient_scale",
            axes={"case": cases, "layer": names, "quantity": QUANTITIES},
            cells=tuple(
                cell for case in cases for name in names for cell in rows.get(case, {}).get(name, none)
            ),
            estimator="cross-entropy of each example by a layer's output; of the mean by its weight",
            equation="Sec. 4, Fig. 7(d)",
            **fields,
        )
        growth = Table(
            name="gradient_scale/growth",
            axes={"case": cases},
            cells=tuple(
                _growth([row[0].value for row in rows[case].values()]) if rows else none[0] for case in cases
            ),
            estimator="least squares of log output over the order of calls; factor of one layer down",
            equation="a number for Fig. 7(d)",
            **fields,
        )
        return scales, growth


def _rows(surface: LossSurface) -> dict[str, list[TableCell]]:
    """Return the figures of each layer in the order of calls."""
    squares: dict[str, float] = {}
    for piece in surface.output_gradients():
        for name, batch_slope in piece.items():
            squares[name] = squares.get(name, 0.0) + float(batch_slope.double().square().sum())
    scales = {name: math.sqrt(square / len(surface.labels)) for name, square in squares.items()}
    gradient = surface.gradient()
    paths = {id(parameter): path for path, parameter in surface.network.named_parameters()}
    last = list(scales.values())[-1]
    rows = {}
    for name, scale in scales.items():
        path = paths.get(id(surface.layers[name.split("#")[0]].weight))
        to_last = (
            TableCell(scale / last)
            if last
            else TableCell(None, "undefined", "the last layer has no gradient")
        )
        of_weight = [TableCell(None, "undefined", "the weight is no parameter")] * 2
        if path is not None:
            slope, norm = (
                float(tensor.double().square().sum().sqrt())
                for tensor in (gradient[path], surface.parameters[path])
            )
            of_weight = [
                TableCell(slope),
                TableCell(slope / norm) if norm else TableCell(None, "undefined", "the weight is zero"),
            ]
        rows[name] = [TableCell(scale), to_last, *of_weight]
    return rows


def _growth(scales: list[float | None]) -> TableCell:
    if len(scales) < 2 or not all(scales):
        return TableCell(None, "undefined", "fewer than two layers, or one without a gradient")
    slope = np.polyfit(np.arange(len(scales)), np.log(np.array(scales, dtype=np.float64)), 1)[0]
    return TableCell(float(np.exp(-slope)))
