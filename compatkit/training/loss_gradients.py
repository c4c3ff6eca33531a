"""Gradients of each loss of a step by itself, for plugins that combine them in another way than their sum.

Each loss has a backward pass of its own. torch adds a gradient to that of earlier micro-batches in place, in the memory
layout of its parameter, as in an ordinary step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
from torch import Tensor

from compatkit.plugins.calls import Bound
from compatkit.training.distributed import World
from compatkit.training.step import Step


@attrs.define(eq=False)
class LossGradients:
    """Gradients of the losses of one step, summed over its micro-batches.

    Attributes:
        parameters: Parameters that the step moves, by the names that plugins see.
        sums: Gradient of each parameter, or None, by loss; losses have their weights.
    """

    parameters: Mapping[str, Tensor]
    sums: dict[str, list[Tensor | None]] = attrs.field(factory=dict)

    def add(self, losses: Mapping[str, Tensor]) -> None:
        """Add the gradients of a micro-batch, and free its graph.

        Args:
            losses: Losses with their weights, divided by the number of micro-batches; those without a gradient are
                left out.
        """
        trained = {name: loss for name, loss in losses.items() if loss.requires_grad}
        for left, (name, loss) in zip(reversed(range(len(trained))), trained.items(), strict=True):
            self._assign(self.sums.get(name))
            loss.backward(retain_graph=left > 0)
            self.sums[name] = self._take()

    def take(self, name: str) -> None:
        """Move gradients that are set already to those of a loss of this name."""
        self.sums[name] = self._take()

    def average(self, world: World, all_reduce: Callable[[], None]) -> None:
        """Average the gradients over all processes.

        Args:
            world: Processes of the run.
            all_reduce: Function that averages the gradients of the parameters.
        """
        names = dict.fromkeys(name for names in world.gather(list(self.sums)) for name in names)
        for name in names:
            self._assign(self.sums.get(name))
            all_reduce()
            taken = self._take()  # memory that the next loss overwrites
            self.sums[name] = [None if gradient is None else gradient.clone() for gradient in taken]

    def combine(self, bound: Bound, step: Step) -> None:
        """Set the gradients of the parameters: combined where several losses have one, else the only one.

        Args:
            bound: The hook ``compatkit_combine_gradients``.
            step: First micro-batch of the step.
        """
        # One order however a batch is divided, since plugins may draw random numbers by it.
        losses = sorted(self.sums, key=lambda loss: (loss != "task", loss))
        self.sums = {loss: self.sums[loss] for loss in losses}
        columns = dict(zip(self.parameters, zip(*self.sums.values(), strict=True), strict=True))
        present = {name: [one for one in column if one is not None] for name, column in columns.items()}
        shared = [name for name, gradients in present.items() if len(gradients) > 1]
        combined: Mapping[str, Tensor] = {}
        if shared:
            by_loss: dict[str, dict[str, Tensor]] = {}
            for index, loss in enumerate(self.sums):
                found = {name: columns[name][index] for name in shared}
                if any(gradient is not None for gradient in found.values()):
                    by_loss[loss] = {
                        name: torch.zeros_like(present[name][0]) if gradient is None else gradient
                        for name, gradient in found.items()
                    }
            sums = {name: _sum(present[name]) for name in shared} if bound.weight != 1 else {}
            with torch.no_grad():
                combined = bound.call(step, by_loss)
                if sums:
                    combined = {name: sums[name].lerp(combined[name], bound.weight) for name in shared}
        for name, parameter in self.parameters.items():
            gradients = present[name]
            if name in combined:
                parameter.grad = torch.empty_like(parameter).copy_(combined[name])
            else:
                parameter.grad = gradients[0] if gradients else None

    def _assign(self, gradients: Sequence[Tensor | None] | None) -> None:
        """Set the gradients of the parameters; None drops them."""
        for index, parameter in enumerate(self.parameters.values()):
            parameter.grad = None if gradients is None else gradients[index]

    def _take(self) -> list[Tensor | None]:
        """Return the gradients of the parameters, and drop them there."""
        gradients = [parameter.grad for parameter in self.parameters.values()]
        self._assign(None)
        return gradients


def _sum(gradients: Sequence[Tensor]) -> Tensor:
    total = gradients[0].clone()
    for gradient in gradients[1:]:
        total += gradient
    return total
