"""Weight deviation: how far training moved the weights of each layer, per root of a target example.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 3, Table 1 and 2, Fig. 2.
Equation: 1 / sqrt(n) sum over layers l of |W_l - W0_l|_F, with n the number of target training examples: a sum of
    norms, not the norm of everything. W0 are the weights that the run started from: pretrained ones; for a new head, or
    a network from scratch, its random initialization.
Counted: weights of convolutions and linear layers; neither biases nor normalization, nor transposed convolutions.
Control: Gaussian filters of the norms of W, which lie as far from W0 as weights that know nothing of it.
Cost: none beside the weights; norms are added up in float64.
Limits: layers of another shape are left out. A long way does not mean a bad start: it grows with steps and rate, so
    compare at equal training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import nn

from compatkit import hookimpl
from compatkit.errors import UsageError
from compatkit.evaluation.metrics import Table, TableCell, equal_norm_weights
from compatkit.foundation.limits import COUNT, SEED
from compatkit.hooks import Register

from ._loss import PAPER, weighted

compatkit_api = 1
TOTAL = "total"
QUANTITIES = ("deviation", "random weights", "norm of W0")


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``weight_deviation``."""
    register("weight_deviation", WeightDeviation)


@attrs.define(eq=False, kw_only=True)
class WeightDeviation:
    """The table ``weight_deviation``: by layer and in all. ``other`` is the network that training started from.

    Attributes:
        examples: Target training examples, n; 1 gives plain norms.
        seed: Seed of the control.
    """

    examples: int = attrs.field(validator=COUNT)
    seed: int = attrs.field(default=0, validator=SEED)

    def init(self) -> None:
        """Return the empty state."""

    def update(self, state: None) -> None:
        """Not called: weights are looked at once."""

    def merge(self, left: None, right: None) -> None:
        """Return the empty state."""

    def finalize(
        self,
        state: None,
        network: nn.Module,
        other: nn.Module | None,
        layers: Mapping[str, nn.Module],
        other_layers: Mapping[str, nn.Module],
    ) -> Table:
        """Return the table.

        Raises:
            UsageError: There is no other network.
        """
        if other is None:
            raise UsageError(
                "weight_deviation compares a network with the weights that it started from; give that network: "
                "other=... (--against)"
            )
        own = weighted(layers or {"": network})
        start = weighted(other_layers or {"": other})
        random = equal_norm_weights(network, torch.Generator().manual_seed(self.seed))
        paths = {id(module): path for path, module in network.named_modules()}
        rows: dict[str, list[float] | str] = {}
        for name, layer in own.items():
            before = start[name].weight if name in start else None
            if before is None or before.shape != layer.weight.shape:
                problem = "no such layer" if before is None else f"a weight {tuple(before.shape)}"
                rows[name] = f"the other network has {problem}; this one's is {tuple(layer.weight.shape)}"
                continue
            if not (before.isfinite().all() and layer.weight.isfinite().all()):
                rows[name] = "its weights are not finite"
                continue
            drawn: Any = random.get_submodule(paths[id(layer)]).weight
            origin = before.detach().double().cpu()
            rows[name] = [
                float((weight.detach().double().cpu() - origin).square().sum().sqrt()) / self.examples**0.5
                for weight in (layer.weight, drawn, torch.zeros_like(layer.weight))
            ]
        cells = [
            cell
            for row in rows.values()
            for cell in (
                [TableCell(None, "undefined", row)] * len(QUANTITIES)
                if isinstance(row, str)
                else map(TableCell, row)
            )
        ]
        known = [row for row in rows.values() if not isinstance(row, str)]
        left_out = [name for name, row in rows.items() if isinstance(row, str)]
        for column in range(len(QUANTITIES)):
            total = sum(row[column] for row in known)
            if not known:
                cells.append(
                    TableCell(None, "undefined", "no layer of both networks has weights of one shape")
                )
            elif left_out:
                cells.append(TableCell(total, "approximate", f"without {', '.join(left_out)}"))
            else:
                cells.append(TableCell(total))
        return Table(
            name="weight_deviation",
            axes={"layer": (*rows, TOTAL), "quantity": QUANTITIES},
            cells=tuple(cells),
            unit="1",
            direction="lower",
            estimator=f"sum of Frobenius norms of weights without biases and normalization, / sqrt({self.examples})",
            count=self.examples,
            paper=PAPER,
            equation="Sec. 3, Table 1",
        )
