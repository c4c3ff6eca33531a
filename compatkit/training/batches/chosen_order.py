"""The order of an epoch's images as plugins choose it: samplers and curricula."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from compatkit.errors import PluginError, type_of
from compatkit.plugins.calls import Bound
from compatkit.training.distributed import World
from compatkit.training.randomness import preserved, reseed, seed_of
from compatkit.training.task_state import TaskState

HOOK = "compatkit_sampler"


@attrs.frozen(eq=False)
class ChosenOrder:
    """Hooks of plugins that choose the images of a task's epochs.

    Attributes:
        hooks: Hooks in their order; each receives the result of the one before.
        task: State of the task.
        seed: Seed of the run.
        device: Device of the run.
        world: Processes of the run; the order of the first one counts.
    """

    hooks: Sequence[Bound]
    task: TaskState
    seed: int
    device: str
    world: World

    def __call__(self, epoch: int, first_step: int, order: Tensor, needed: int) -> Tensor:
        """Return the positions of an epoch's images.

        Args:
            epoch: Number of the epoch, from 0.
            first_step: First step of the epoch.
            order: Permutation that the trainer drew, int64 ``(images,)``.
            needed: Number of positions that the batches of the epoch take.

        Returns:
            int64, ``needed`` positions or more.

        Raises:
            PluginError: A hook returned something else.
        """
        count = len(order)
        for bound in self.hooks:
            if first_step in bound.phase:
                with preserved():
                    reseed(self.device, seed_of(self.seed, "sampler", bound.instance, self.task.name, epoch))
                    chosen = bound.call(self.task, epoch, order.clone())
                order = check_order(bound.instance, chosen, count, needed)
        if self.world.size == 1:
            return order
        first = self.world.broadcast_bytes(order.numpy().tobytes() if self.world.first else None)
        return torch.frombuffer(bytearray(first or b""), dtype=torch.int64)


def check_order(instance: str, order: object, count: int, needed: int) -> Tensor:
    """Check the result of ``compatkit_sampler``, and return it as int64 on the CPU.

    Args:
        instance: Name of the plugin's instance.
        order: The result.
        count: Number of training images.
        needed: Number of positions that an epoch takes.

    Raises:
        PluginError: It is no tensor of enough positions in the training set.
    """

    def wrong(what: str, remedy: str) -> PluginError:
        return PluginError(f"Plugin {instance!r}: {HOOK} {what}. {remedy}", plugin=instance, hook=HOOK)

    if not isinstance(order, Tensor):
        raise wrong(
            f"returned {'nothing (None)' if order is None else type_of(order)}, not a tensor",
            "Return positions in the training set, such as the order that it was given.",
        )
    if order.dim() != 1 or order.is_floating_point() or order.is_complex() or order.dtype == torch.bool:
        raise wrong(
            f"returned positions of shape {tuple(order.shape)} and type {order.dtype}",
            "Return whole numbers of shape (n,); order[mask] takes those of a mask.",
        )
    if len(order) < needed:
        raise wrong(
            f"returned {len(order):,} positions for an epoch that takes {needed:,}",
            "Repeat positions to use fewer images: the number of batches of an epoch stays.",
        )
    order = order.detach().to("cpu", torch.int64)
    low, high = int(order.min()), int(order.max())
    if low < 0 or high >= count:
        raise wrong(f"returned positions from {low} to {high}", f"The task has images 0 to {count - 1}.")
    return order
