"""Learning rate, optimisers, and moving averages of weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import attrs
import torch
from torch import Tensor, nn

from compatkit.contracts.arguments import named
from compatkit.errors import UsageError
from compatkit.training.limits import number, one_of

Decay = Literal["step", "cosine", "constant"]
DECAYS: tuple[Decay, ...] = get_args(Decay)


@named
@attrs.frozen
class Schedule:
    """The learning rate over the steps of a task.

    Attributes:
        kind: ``"step"`` divides every ``every`` steps, ``"cosine"`` falls to zero, ``"constant"`` stays.
        warmup: Steps of linear rise from 0 (the first step has ``1 / (warmup + 1)``).
        every: Steps between divisions; None is a quarter of the run, as Gygli et al. do (5,000 of 20,000).
        factor: Multiplies the rate at each division.

    Raises:
        UsageError: One of them cannot be used.
    """

    kind: Decay = attrs.field(default="step", validator=one_of(DECAYS))
    warmup: int = attrs.field(default=0, validator=number(least=0, whole=True))
    every: int | None = attrs.field(default=None, validator=number(least=1, whole=True, optional=True))
    factor: float = attrs.field(default=0.1, validator=number(least=0))

    def at(self, step: int, steps: int) -> float:
        """Return the factor on the initial learning rate at ``step`` of ``steps``, in [0, 1]."""
        warm = min(1.0, (step + 1) / (self.warmup + 1))
        if self.kind == "step":
            every = self.every or max(1, math.ceil(steps / 4))
            return warm * self.factor ** (step // every)
        if self.kind == "cosine":
            span = max(1, steps - self.warmup)
            return warm * 0.5 * (1 + math.cos(math.pi * max(0, step - self.warmup) / span))
        return warm


Kind = Literal["adam", "sgd"]


def make_optimiser(
    parameters: list[Tensor], kind: Kind, lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return the optimiser of one network, or of one shared module.

    On a GPU the learning rate is a tensor there, which a captured step reads anew at every replay.

    Args:
        parameters: To be trained, all on one device.
        kind: ``"adam"`` or ``"sgd"``.
        lr: Initial learning rate.
        momentum: Of SGD.
        weight_decay: L2 penalty, added to the gradient as in the papers (not decoupled).
    """
    device = parameters[0].device
    on_gpu = device.type == "cuda"
    rate = torch.tensor(lr, device=device) if on_gpu else lr
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=weight_decay, fused=True, capturable=on_gpu)
    return torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=weight_decay, fused=True)


def set_lr(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of an optimiser, in place where it is a tensor."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def check_owners(owners: dict[str, nn.Module]) -> None:
    """Check that every parameter has exactly one owner.

    Raises:
        UsageError: A parameter is held by two owners; both are named.
    """
    seen: dict[int, str] = {}
    for owner, module in owners.items():
        for name, parameter in module.named_parameters():
            other = seen.setdefault(id(parameter), owner)
            if other != owner:
                raise UsageError(
                    f"The parameter {name!r} is owned by {owner!r} and by {other!r}; every parameter needs exactly "
                    "one owner. Share a module through an auxiliary head, not by putting it into two networks."
                )


POWER = 2 / 3
"""Exponent of the warm-up: the decay reaches .999 after 31,600 steps at the earliest, as in timm."""


@attrs.frozen(eq=False)
class Averages:
    """Exponential moving averages of all that a run trains.

    Floating-point values are averaged, running statistics too: copied ones would be those of the latest weights, not of
    the averages. Counts are copied.

    Attributes:
        decay: Share of the averages that a step keeps; the weights make up the rest.
        warmup: Whether the decay rises with the steps, as ``1 - (1 + step) ** (-2 / 3)``, until it is ``decay``.
        kept: By owner, a state dict of averages.
    """

    decay: float
    warmup: bool
    kept: Mapping[str, dict[str, Tensor]]
    _pairs: Mapping[str, tuple[list[Tensor], ...]]

    @classmethod
    def of(
        cls, decay: float, warmup: bool, owners: Mapping[str, nn.Module], tasks: Iterable[str]
    ) -> Averages:
        """Make averages of modules by owner: ``<task>.extractor`` and ``<task>.head`` are a task's, others shared."""
        states = {owner: module.state_dict() for owner, module in owners.items()}
        kept = {owner: {key: value.clone() for key, value in one.items()} for owner, one in states.items()}
        own = {f"{task}.{side}": task for task in tasks for side in ("extractor", "head")}
        pairs: dict[str, tuple[list[Tensor], ...]] = {}
        for task in dict.fromkeys(own.values()):
            moved = pairs[task] = [], [], [], []
            for owner, state in states.items():
                for key, value in state.items() if own.get(owner, task) == task else ():
                    place = 0 if value.is_floating_point() else 2
                    moved[place].append(kept[owner][key])
                    moved[place + 1].append(value)
        return cls(decay, warmup, kept, pairs)

    def decay_at(self, step: int) -> float:
        """Return the decay of a step, from 0; that of the first step is 0, so that averages begin with its weights."""
        if step == 0:
            return 0.0
        return min(self.decay, 1 - (1 + step) ** -POWER) if self.warmup else self.decay

    @torch.no_grad()
    def begin_from(self, owners: Mapping[str, nn.Module]) -> None:
        """Set the averages to the current values of the modules, before the first step."""
        for owner, kept in self.kept.items():
            for name, value in owners[owner].state_dict().items():
                kept[name].copy_(value)

    @torch.no_grad()
    def follow(self, task: str, step: int) -> None:
        """Update the averages of the modules that a step of a task moves: its own network and all shared ones."""
        averages, values, copies, counts = self._pairs[task]
        torch._foreach_lerp_(averages, values, 1 - self.decay_at(step))  # pyright: ignore[reportPrivateImportUsage]
        if counts:
            torch._foreach_copy_(copies, counts)  # pyright: ignore[reportPrivateImportUsage]
