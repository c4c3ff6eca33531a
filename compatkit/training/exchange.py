"""What several processes hand to one another in a step: the gradients of each owner module, and running statistics.

After the backward pass, in one order on all processes, and not in the hooks of a wrapper around each module: a module
may be used many times in a step or by some processes only, and a plugin may call it by itself
(docs/architecture.md, "Gradients are exchanged after the backward pass").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.evaluation.normalisation import norm_layers
from compatkit.registry.tensors.tensorfile import state_digest
from compatkit.training.distributed import World


@attrs.define(eq=False)
class Parcel:
    """The gradients of one owner module, of one number format, in one piece of memory.

    Attributes:
        parameters: Whose gradients.
        memory: All of them, flat.
        views: Into it, each laid out as its parameter, as fused optimisers want gradients.
    """

    parameters: tuple[Tensor, ...]
    memory: Tensor
    views: tuple[Tensor, ...]

    @classmethod
    def of(cls, parameters: Iterable[Tensor]) -> Parcel:
        """Make room for the gradients of ``parameters``."""
        kept = tuple(parameters)
        memory = kept[0].new_zeros(sum(one.numel() for one in kept))
        views, start = [], 0
        for one in kept:
            views.append(memory.as_strided(one.shape, _strides(one), start))
            start += one.numel()
        return cls(kept, memory, tuple(views))

    def fill(self) -> None:
        """Take in the gradients of this process; 0 where it has none."""
        views, grads = [], []
        for view, one in zip(self.views, self.parameters, strict=True):
            if one.grad is None:
                view.zero_()
            else:
                views.append(view)
                grads.append(one.grad)
        if grads:
            torch._foreach_copy_(views, grads)

    def give(self, moved: Iterable[bool]) -> None:
        """Hand the gradients out, to the parameters that any process has one for."""
        for one, view, has in zip(self.parameters, self.views, moved, strict=True):
            one.grad = view if has else None


class Exchange:
    """Means of gradients over processes, for the steps of one run.

    The mean is the gradient over the whole batch, as every process has an equal share of it. Call it once for each
    movement of the optimisers: gradients may add up over several backward passes before.
    """

    def __init__(self, owners: Mapping[str, nn.Module], tasks: Iterable[str], world: World) -> None:
        """See the class."""
        self.world = world
        self._parcels = {owner: tuple(_parcels(module)) for owner, module in owners.items()}
        own = {f"{task}.{side}": task for task in tasks for side in ("extractor", "head")}
        self._moved = {
            task: [
                one for owner, all_ in self._parcels.items() if own.get(owner, task) == task for one in all_
            ]
            for task in own.values()
        }

    def __call__(self, task: str) -> None:
        """Give every process the mean gradients of what a step of ``task`` moves.

        Raises:
            Lost: Another process does not answer.
        """
        parcels = self._moved[task]
        flags = torch.tensor(
            [one.grad is not None for parcel in parcels for one in parcel.parameters], dtype=torch.uint8
        )
        self.world.union(flags)
        moved = [part.tolist() for part in flags.bool().split([len(one.parameters) for one in parcels])]
        waiting: list[tuple[Parcel, list[bool], Any]] = []
        for parcel, has in zip(parcels, moved, strict=True):
            if any(has):
                parcel.fill()
                waiting.append((parcel, has, self.world.start_sum(parcel.memory)))
        for parcel, has, work in waiting:
            self.world.finish(work)
            parcel.memory /= self.world.size
            parcel.give(has)


def _parcels(module: nn.Module) -> list[Parcel]:
    formats: dict[torch.dtype, list[Tensor]] = {}
    for one in module.parameters():
        if one.requires_grad:
            formats.setdefault(one.dtype, []).append(one)
    return [Parcel.of(each) for each in formats.values()]


def _strides(one: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor that fills its memory, else those of a contiguous one."""
    return torch.empty_like(one, device="meta").stride()


def even_statistics(modules: Iterable[nn.Module], world: World) -> None:
    """Give every process the mean of the running statistics of batch normalisation, and process 0's other buffers.

    Running statistics are moving averages: their mean is what averaging in every step would have given.
    """
    if world.size == 1:
        return
    owners = list(modules)
    running = [
        value
        for module in owners
        for layer in norm_layers(module)
        for value in (layer.running_mean, layer.running_var)
        if value is not None
    ]
    counts = [layer.num_batches_tracked for module in owners for layer in norm_layers(module)]
    known = {id(value) for value in (*running, *counts)}
    for value in [one for module in owners for one in module.buffers() if id(one) not in known]:
        world.copy_first(value)
    if running:
        flat = torch.cat([value.flatten() for value in running])
        world.finish(world.start_sum(flat))
        flat /= world.size
        parts = flat.split([value.numel() for value in running])
        torch._foreach_copy_(
            running, [part.view_as(value) for part, value in zip(parts, running, strict=True)]
        )


def check_replicas(owners: Mapping[str, nn.Module], world: World) -> None:
    """Check that all processes hold the same weights and buffers, bit by bit.

    Raises:
        TrainingError: They drifted apart; the owner module is named.
    """
    if world.size > 1:
        digests = {owner: state_digest(module.state_dict()) for owner, module in owners.items()}
        world.check_same(
            digests,
            "weights",
            "They began alike and move by the same gradients: a plugin changed them in one process only.",
        )
