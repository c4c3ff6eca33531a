"""PCGrad: takes from the gradient of each loss what conflicts with the gradients of the others.

Paper: Yu, Kumar, Gupta, Levine, Hausman, Finn (2020), "Gradient Surgery for Multi-Task Learning", Alg. 1.
Equations: g_i <- g_i - (g_i . g_j) / |g_j|^2 g_j for each other loss j in random order, if g_i . g_j < 0; the step
    takes the sum of the g_i. Losses are those of a task's step: its own, and each one of a plugin with its weight.
    Projections are over all parameters that two losses reach; all others keep their gradient, as in the paper.
Cost: a backward pass for each loss, and a copy of the gradients; n (n - 1) scalar products for n losses.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from compatkit import Step, hookimpl
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``pcgrad``."""
    register("pcgrad", PCGrad)


def project(gradients: Tensor, orders: Tensor) -> Tensor:
    """Return the sum of gradients without their conflicts.

    Args:
        gradients: A row for each loss, ``(losses, values)``.
        orders: Order of the losses for each of them, int64 ``(losses, losses)``.

    Returns:
        Gradient ``(values,)``.
    """
    total, squares = torch.zeros_like(gradients[0]), gradients.square().sum(1)
    least = torch.finfo(gradients.dtype).tiny  # a gradient with a smaller square has no direction left
    for own, order in enumerate(orders.tolist()):
        changed = gradients[own].clone()
        for other in order:
            product = changed @ gradients[other]
            if other != own and product < 0 and squares[other] >= least:
                changed -= product / squares[other] * gradients[other]
        total += changed
    return total


@attrs.define(eq=False)
class PCGrad:
    """Projects the gradients of a step's losses."""

    @hookimpl
    def compatkit_combine_gradients(
        self, step: Step, gradients: Mapping[str, Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Return the sum of the projected gradients, by parameter."""
        like = next(iter(gradients.values()))
        rows = torch.stack(
            [torch.cat([part.flatten() for part in each.values()]) for each in gradients.values()]
        )
        draw = step.rng("pcgrad")
        orders = torch.stack([torch.randperm(len(rows), generator=draw) for _ in rows])
        parts = project(rows, orders).split([value.numel() for value in like.values()])
        return {name: part.view(like[name].shape) for name, part in zip(like, parts, strict=True)}
