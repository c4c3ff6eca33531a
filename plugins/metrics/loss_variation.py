"""Loss variation: how much the loss changes along its gradient, by two protocols.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 4, Fig. 6 and 11, App. A, after
    Santurkar et al. (2018), Sec. 3.2. Measure the networks of several training steps for its curves.
Equations: along theta_i = theta - i s d for i = 0, ..., points: max |L(theta_i) - L(theta_0)| and max L - min L.
    ``gradient``: d = g, s = rate: steps of the size of the gradient, the paper's first protocol;
    ``fixed``: d = g / |g|, s = length: steps of one length, its second.
The rate, the length and the two statistics are choices: the paper does not state them.
Cost: one gradient and 2 points passes.
Limits: rate, length and points are choices that the paper does not state, so only ratios between networks mean
    something.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from torch import nn

from compatkit import hookimpl
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import COUNT, Number
from compatkit.hooks import Register

from ._loss import CASES, PAPER, LossMetric, LossSurface, SampledExamples

compatkit_api = 1
PROTOCOLS = ("gradient", "fixed")
QUANTITIES = ("loss", "largest change", "range", "gradient norm")


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``loss_variation``."""
    register("loss_variation", LossVariation)


@attrs.define(eq=False, kw_only=True)
class LossVariation(LossMetric):
    """The table ``loss_variation``, by protocol and quantity; named layers restrict the gradient to their parameters.

    Attributes:
        points: On the ray.
        rate: Step of the protocol ``gradient``, in gradients; 100 steps of .01 go as far as one gradient.
        length: Step of the protocol ``fixed``.
    """

    points: int = attrs.field(default=100, validator=COUNT)
    rate: float = attrs.field(default=0.01, validator=Number(above=0))
    length: float = attrs.field(default=0.001, validator=Number(above=0))

    def finalize(
        self, state: SampledExamples | None, network: nn.Module, layers: Mapping[str, nn.Module]
    ) -> Table:
        """Return the table."""
        cases = CASES if self.controls else CASES[:1]
        if state is None:
            none = TableCell(None, "undefined", "no examples")
            cells = [none] * (len(cases) * len(PROTOCOLS) * len(QUANTITIES))
        else:
            cells = [
                cell
                for surface in self.surfaces(state, network, layers).values()
                for cell in self._cells(surface)
            ]
        return Table(
            name="loss_variation",
            axes={"case": cases, "protocol": PROTOCOLS, "quantity": QUANTITIES},
            cells=tuple(cells),
            unit="loss",
            direction="lower",
            estimator=f"{self.points} points; gradient: steps of {self.rate:g} g; fixed: steps of {self.length:g}",
            count=0 if state is None else len(state.labels),
            paper=PAPER,
            equation="Sec. 4, App. A",
        )

    def _cells(self, surface: LossSurface) -> list[TableCell]:
        gradient, start = surface.gradient(), surface.value(surface.parameters)
        norm = sum(float(slope.double().square().sum()) for slope in gradient.values()) ** 0.5
        cells = []
        for step in (self.rate, self.length / norm if norm else 0.0):
            losses = [start] + [
                surface.value(
                    {
                        path: parameter - at * step * gradient[path]
                        for path, parameter in surface.parameters.items()
                    }
                )
                for at in range(1, self.points + 1)
            ]
            if not max(losses, key=abs) < float("inf") or any(loss != loss for loss in losses):
                lost = TableCell(None, "undefined", "the loss on the ray is not finite; take a smaller step")
                cells += [TableCell(start), lost, lost, TableCell(norm)]
                continue
            values = (start, max(abs(loss - start) for loss in losses), max(losses) - min(losses), norm)
            cells += map(TableCell, values)
        return cells
