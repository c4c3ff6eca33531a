"""Specialization: how many inputs activate each unit of a layer, and how many units each input activates.

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", Sec. 3, Fig. 7, 10, 11
    and 24, on 5,000 held-out images.
Equations: with a(u, x) = 1[output of u for x > threshold]: the fraction of a unit is the mean of a(u, x) over inputs x,
    that of an input its mean over units u. Units that few inputs activate are specialized.
Units: every number that a layer gives for an input, so those of a convolution are channels x positions; the paper does
    not say whether its figures count positions.
Cost: no extra pass; a count of each unit, and one fraction of each input.
Limits: it counts activity, not meaning. That later layers specialize before a switch of labels, as in the paper, did
    not show.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import COUNT, Number
from compatkit.hooks import Register

compatkit_api = 1
QUANTITIES = ("mean", "never", "always")
PAPER = {
    "paper": "Maennel et al. (2020), What Do Neural Networks Learn When Trained With Random Labels?",
    "equation": "Sec. 3, Fig. 7",
}


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``specialization``."""
    register("specialization", Specialization)


@attrs.frozen(eq=False)
class Activity:
    """Activity of a layer so far.

    Attributes:
        units: Inputs that activated each unit, int64 ``(units,)``.
        inputs: Units that each input activated, int64 ``(batch,)``, one tensor per batch.
    """

    units: Tensor
    inputs: tuple[Tensor, ...]


@attrs.frozen
class Specialization:
    """Activity of the units of layers; choose layers of activations, such as ``layers=["blocks.*.act", "act"]``.

    Attributes:
        bins: Number of bins of the two histograms, from 0 to 1.
        threshold: A unit is active where it gives more than this; 0 for ReLU.
    """

    bins: int = attrs.field(default=20, validator=COUNT)
    threshold: float = attrs.field(default=0.0, validator=Number())

    def init(self) -> Mapping[str, Activity]:
        """Return the empty state."""
        return {}

    def update(self, state: Mapping[str, Activity], outputs: Mapping[str, Tensor]) -> Mapping[str, Activity]:
        """Return the state with one more batch.

        Args:
            state: State by layer.
            outputs: Output of each layer, ``(batch, ...)``.

        Raises:
            DataError: A layer gives no floating-point values for each input.
        """
        activities = {}
        for name, output in outputs.items():
            if output.ndim < 2 or not output.is_floating_point():
                raise DataError(
                    f"specialization: expected values of the units of {name!r} for each input, got a tensor "
                    f"{tuple(output.shape)} {output.dtype}. Choose a layer of activations."
                )
            active = output.flatten(1) > self.threshold
            new = Activity(active.sum(0), (active.sum(1),))
            activities[name] = _joined(state[name], new) if name in state else new
        return activities

    def merge(self, left: Mapping[str, Activity], right: Mapping[str, Activity]) -> Mapping[str, Activity]:
        """Return the activity of both parts."""
        names = [*left, *(name for name in right if name not in left)]
        return {
            name: _joined(left[name], right[name])
            if name in left and name in right
            else left.get(name) or right[name]
            for name in names
        }

    def finalize(self, state: Mapping[str, Activity], layers: Mapping[str, Any]) -> tuple[Table, ...]:
        """Return ``specialization`` (mean fraction, units never and always active) and both histograms."""
        names = tuple(state) or tuple(layers)
        digits = max(4, len(str(self.bins)) + 1)
        edges = [f"{edge / self.bins:.{digits}g}" for edge in range(self.bins + 1)]
        bins = tuple(f"{low} to {high}" for low, high in pairwise(edges))
        cells: dict[str, list[TableCell]] = {"": [], "/units": [], "/inputs": []}
        counts = [sum(len(part) for part in activity.inputs) for activity in state.values()]
        for name in names:
            activity = state.get(name)
            if activity is None:
                none = TableCell(None, "undefined", "no examples")
                cells[""] += [none] * len(QUANTITIES)
                cells["/units"] += [none] * self.bins
                cells["/inputs"] += [none] * self.bins
                continue
            examples = sum(len(part) for part in activity.inputs)
            inputs = torch.cat([part.to(activity.units.device) for part in activity.inputs])
            never, always = activity.units == 0, activity.units == examples
            shares = (activity.units.double() / examples, never.double(), always.double())
            cells[""] += [TableCell(float(share.mean())) for share in shares]
            cells["/units"] += self._histogram(activity.units, examples)
            cells["/inputs"] += self._histogram(inputs, len(activity.units))
        axes = {"": {"quantity": QUANTITIES}, "/units": {"fraction": bins}, "/inputs": {"fraction": bins}}
        meanings = {
            "": "active share of all pairs of unit and input; shares of units that no input, or every one, activates",
            "/units": "share of units by the fraction of inputs that activate them",
            "/inputs": "share of inputs by the fraction of units that they activate",
        }
        return tuple(
            Table(
                name=f"specialization{what}",
                axes={"layer": names, **axes[what]},
                cells=tuple(values),
                unit="1",
                direction="none",
                estimator=f"{meanings[what]}; active above {self.threshold:g}; units of a map: channels x positions",
                count=max(counts, default=0),
                **PAPER,
            )
            for what, values in cells.items()
        )

    def _histogram(self, counts: Tensor, largest: int) -> list[TableCell]:
        """Return the share of counts / largest in each bin; bins include their lower edge, and the last one also 1."""
        # whole numbers, so that edges are exact
        bin_indices = (counts * self.bins // largest).clamp(max=self.bins - 1)
        shares = torch.bincount(bin_indices, minlength=self.bins).double() / len(counts)
        return [TableCell(float(value)) for value in shares]


def _joined(left: Activity, right: Activity) -> Activity:
    return Activity(left.units + right.units.to(left.units.device), (*left.inputs, *right.inputs))
