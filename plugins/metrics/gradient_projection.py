"""Gradient projection: how much of a layer's weight lies along the leading directions of its gradient.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 4, Fig. 7(c): pretraining
    shrinks the directions of the gradient with large singular values in the weights, which keeps the gradient that is
    propagated back small.
Equations: the paper leaves open which matrix is decomposed and which projection is measured; both readings are given.
    ``output``: |W' u_i| / |W|_F with u_i the left singular vectors of the gradients by the layer's output, a column for
    each example and position; ``isotropic`` is what a weight without preference has, 1 / sqrt(channels).
    ``weight``: |u_i' W v_i| / |W|_F and ``weight, right``: |W v_i| / |W|_F with dL / dW = U S V'. Signs of singular
    vectors are arbitrary, so sizes are given.
Cost: two passes with gradients; an eigendecomposition of channels x channels and an SVD of each weight, in float64.
Limits: the paper's text allows several readings, of which two are given. SVDs in float64 are slow for wide layers.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor, nn

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import COUNT
from compatkit.hooks import Register

from ._loss import CASES, PAPER, LossMetric, LossSurface, SampledExamples, weighted
from ._singular import usual_tolerance

compatkit_api = 1
QUANTITIES = ("output", "isotropic", "weight", "weight, right")


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``gradient_projection``."""
    register("gradient_projection", GradientProjection)


@attrs.define(eq=False, kw_only=True)
class GradientProjection(LossMetric):
    """The table ``gradient_projection``: by layer, quantity and place of the singular vector, the leading one first.

    Attributes:
        top: Singular vectors.
    """

    top: int = attrs.field(default=20, validator=COUNT)

    def finalize(
        self, state: SampledExamples | None, network: nn.Module, layers: Mapping[str, nn.Module]
    ) -> Table:
        """Return the table."""
        cases = CASES if self.controls else CASES[:1]
        names = tuple(weighted(layers or {"": network}))
        if state is None:
            cells = [TableCell(None, "undefined", "no examples")] * (
                len(cases) * len(names) * len(QUANTITIES) * self.top
            )
        else:
            cells = []
            for surface in self.surfaces(state, network, layers).values():
                rows = self._rows(surface)
                names = tuple(rows)
                cells += [cell for row in rows.values() for cell in row]
        return Table(
            name="gradient_projection",
            axes={
                "case": cases,
                "layer": names,
                "quantity": QUANTITIES,
                "place": tuple(str(rank) for rank in range(1, self.top + 1)),
            },
            cells=tuple(cells),
            unit="1",
            direction="none",
            estimator="shares of |W|_F; gradients by outputs (a column for each example and position) and by weights",
            count=0 if state is None else len(state.labels),
            paper=PAPER,
            equation="Sec. 4, Fig. 7(c)",
        )

    def _rows(self, surface: LossSurface) -> dict[str, list[TableCell]]:
        moments: dict[str, Tensor] = {}
        for piece in surface.output_gradients():
            for name, output in piece.items():
                linear = isinstance(surface.layers[name.split("#")[0]], nn.Linear)
                columns = (output if linear else output.movedim(1, -1)).reshape(
                    -1, output.shape[-1 if linear else 1]
                )
                moments[name] = moments.get(name, 0) + columns.double().T @ columns.double()
        gradient = surface.gradient()
        paths = {id(parameter): path for path, parameter in surface.network.named_parameters()}
        rows = {}
        for name, moment in moments.items():
            path = paths.get(id(surface.layers[name.split("#")[0]].weight))
            if path is None:
                raise DataError(f"The weight of {name!r} is no parameter of the network; name other layers.")
            weight, slope = (tensors[path].flatten(1).double() for tensors in (surface.parameters, gradient))
            rows[name] = self._of(weight, moment, slope)
        return rows

    def _of(self, weight: Tensor, moment: Tensor, slope: Tensor) -> list[TableCell]:
        norm = weight.norm()
        if not norm or not moment.any():
            return [TableCell(None, "undefined", "the weight or its gradient is zero")] * (
                len(QUANTITIES) * self.top
            )
        squares, along = (values.flip(-1) for values in torch.linalg.eigh(moment))
        left, sizes, right = torch.linalg.svd(slope, full_matrices=False)
        by_output = squares.clamp(min=0).sqrt()
        rows = (
            ((weight.T @ along).norm(dim=0) / norm, by_output),
            (torch.full((len(weight),), len(weight) ** -0.5), torch.ones(len(weight))),
            (((left.T @ weight) * right).sum(1).abs() / norm, sizes),
            ((weight @ right.T).norm(dim=0) / norm, sizes),
        )
        cells = []
        for row, strength in rows:
            tolerance = usual_tolerance(*weight.shape) * strength.max()
            cells += [
                TableCell(float(share))
                if size > tolerance
                else TableCell(float(share), "degenerate", "a direction of rounding")
                for share, size in zip(row[: self.top], strength, strict=False)
            ]
            cells += [TableCell(None, "undefined", f"the gradient has {len(row)} directions")] * (
                self.top - len(row)
            )
        return cells
