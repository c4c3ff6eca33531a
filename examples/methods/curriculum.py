"""Self-paced learning: an epoch shows the images that the network finds easy, and more of them in each epoch.

Paper: Kumar, Packer and Koller (2010), "Self-Paced Learning for Latent Variable Models", Sec. 4.
Equations: min over w, v of r(w) + sum_i v_i f(x_i, y_i; w) - (1 / K) sum_i v_i, Eq. 4: v_i = 1 where the loss is below
    1 / K, so a step of v takes the images of the smallest losses. As in Sec. 5, K is set by the share of images that it
    takes, which grows by a factor until all are in. We take the losses of the last step that saw an image, and show all
    images in the first epoch. An epoch keeps its length: images that are in come more than once.
Cost: a sort of the losses an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, distributed

from compatkit import SetUp, Step, TaskState, hookimpl
from compatkit.foundation.limits import Number
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``curriculum``."""
    register("curriculum", Curriculum)


def easiest(order: Tensor, losses: Tensor, share: float) -> Tensor:
    """Return ``order`` ``(images,)`` with the share of the smallest ``losses`` alone, repeated to its length."""
    limit = losses.sort().values[max(1, round(share * len(losses))) - 1]
    kept = order[losses[order] <= limit]
    return kept.repeat(-(-len(order) // len(kept)))[: len(order)]


@attrs.define(eq=False)
class Curriculum:
    """Chooses the images of each epoch by their losses.

    Attributes:
        share: Share of the images in the second epoch.
        growth: Factor of the share from each epoch to the next.
    """

    share: float = attrs.field(default=0.5, validator=Number(above=0, most=1))
    growth: float = attrs.field(default=1.3, validator=Number(least=1))
    _losses: dict[str, Tensor] = attrs.field(factory=dict, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Begin with no losses; the second row is of this epoch, -inf for images not seen."""
        none = torch.tensor([[0.0], [-torch.inf]])
        self._losses = {name: none.repeat(1, len(task.examples)) for name, task in setup.tasks.items()}

    @hookimpl
    def compatkit_sample_losses(self, step: Step, losses: Tensor) -> Tensor:
        """Keep the losses ``(batch,)``, and return them as they are."""
        self._losses[step.task.name][1, step.batch.index.cpu()] = losses.detach().float().cpu()
        return losses

    @hookimpl
    def compatkit_sampler(self, task: TaskState, epoch: int, order: Tensor) -> Tensor:
        """Return positions of easy images."""
        share = min(1.0, self.share * self.growth ** (epoch - 1))
        losses, seen = self._losses[task.name]
        if distributed.is_initialized():  # each process has seen its share of the images
            distributed.all_reduce(seen, distributed.ReduceOp.MAX)
        losses[:], seen[:] = torch.where(seen.isinf(), losses, seen), -torch.inf
        return easiest(order, losses, share) if epoch else order

    @hookimpl
    def compatkit_state(self) -> Mapping[str, Any]:
        """Return the losses by task."""
        return dict(self._losses)

    @hookimpl
    def compatkit_load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the losses."""
        self._losses.update(state)
