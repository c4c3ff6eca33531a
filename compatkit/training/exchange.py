"""What several processes hand to one another in a step: the gradients of what it moves.

After the backward pass, in one order on all processes, and not in the hooks of a wrapper around each module: a module
may be used many times in a step or by some processes only, and a plugin may call it by itself
(docs/architecture.md, "Gradients are exchanged after the backward pass").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import torch
from torch import Tensor, nn

from compatkit.training.distributed import World


@attrs.define(eq=False)
class Parcel:
    """The gradients that a step moves, of one number format, in one piece of memory.

    Attributes:
        parameters: Whose gradients.
        memory: All of them, flat, and behind them for each whether this process has it.
        views: Into it, each laid out as its parameter, as fused optimisers want gradients.
        flags: Its end.
    """

    parameters: tuple[Tensor, ...]
    memory: Tensor
    views: tuple[Tensor, ...]
    flags: Tensor

    @classmethod
    def of(cls, parameters: Iterable[Tensor]) -> Parcel:
        """Make room for the gradients of ``parameters``."""
        kept = tuple(parameters)
        memory = kept[0].detach().new_zeros(sum(one.numel() for one in kept) + len(kept))
        views, start = [], 0
        for one in kept:
            views.append(memory.as_strided(one.shape, _strides(one), start))
            start += one.numel()
        return cls(kept, memory, tuple(views), memory[start:])

    def held(self) -> Tensor:
        """Return which gradients this process has, uint8, on the CPU."""
        return torch.tensor([one.grad is not None for one in self.parameters], dtype=torch.uint8)

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
            torch._foreach_copy_(views, grads)  # pyright: ignore[reportPrivateImportUsage]

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
        own = {f"{task}.{side}": task for task in tasks for side in ("extractor", "head")}
        self._parcels = {
            task: _parcels(module for owner, module in owners.items() if own.get(owner, task) == task)
            for task in own.values()
        }

    def __call__(self, task: str) -> None:
        """Give every process the mean gradients of what a step of ``task`` moves.

        Raises:
            Lost: Another process does not answer.
        """
        for parcel in self._parcels[task]:
            held, on_cpu = parcel.held(), parcel.memory.device.type == "cpu"
            parcel.fill()
            if on_cpu:
                parcel.flags.copy_(held)
            else:
                self.world.union(held)  # by another way, so that nobody waits for the device
            self.world.add_up(parcel.memory)
            parcel.memory /= self.world.size
            parcel.give((parcel.flags > 0 if on_cpu else held > 0).tolist())


def _parcels(modules: Iterable[nn.Module]) -> tuple[Parcel, ...]:
    formats: dict[torch.dtype, list[Tensor]] = {}
    for module in modules:
        for one in module.parameters():
            if one.requires_grad:
                formats.setdefault(one.dtype, []).append(one)
    return tuple(Parcel.of(each) for each in formats.values())


def _strides(one: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor that fills its memory, else those of a contiguous one."""
    return torch.empty_like(one, device="meta").stride()
