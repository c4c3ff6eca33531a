"""Learning rate, optimisers, and moving averages of what they train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import attrs
import torch
from torch import Tensor, nn

from compatkit.arguments import named
from compatkit.errors import UsageError
from compatkit.training.limits import number, one_of

Decay = Literal["step", "cosine", "constant"]
DECAYS: tuple[Decay, ...] = get_args(Decay)


@named
@attrs.frozen
class Schedule:
    """How the learning rate moves over the steps of a task.

    Attributes:
        kind: ``"step"`` divides every ``every`` steps, ``"cosine"`` falls to zero, ``"constant"`` stays.
        warmup: Steps of linear rise from 0 (the first step has ``1 / (warmup + 1)``).
        every: Steps between divisions; None is a quarter of the run, as Gygli et al. do (5,000 of 20,000).
        factor: What a division leaves.

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


@attrs.frozen
class Optimisation:
    """Which optimiser, and how fast.

    Attributes:
        kind: ``"adam"`` or ``"sgd"``.
        lr: Initial learning rate.
        momentum: Of SGD.
        weight_decay: L2 penalty, added to the gradient as in the papers (not decoupled).
    """

    kind: Kind = "adam"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-7

    def make(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """Return the optimiser of one network, or of one shared module.

        On a GPU the learning rate is a tensor there, which a captured step reads anew at every replay.
        """
        device = parameters[0].device
        lr = torch.tensor(self.lr, device=device) if device.type == "cuda" else self.lr
        if self.kind == "adam":
            return torch.optim.Adam(
                parameters,
                lr=lr,
                weight_decay=self.weight_decay,
                fused=True,
                capturable=device.type == "cuda",
            )
        return torch.optim.SGD(
            parameters, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, fused=True
        )


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Give an optimiser another learning rate, in place where it is a tensor."""
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
"""Of the warm-up: the decay reaches .999 after 31,600 steps at the earliest, as in timm."""


@attrs.frozen
class Averaging:
    """How averages follow the weights.

    Attributes:
        decay: What a step leaves of the averages; the weights make up the rest.
        warmup: Whether the decay rises with the steps, as ``1 - (1 + step) ** (-2 / 3)``, until it is ``decay``.
    """

    decay: float
    warmup: bool = False

    def at(self, step: int) -> float:
        """Return the decay of a step from 0; the first step's weights are taken as they are."""
        if step == 0:
            return 0.0
        return min(self.decay, 1 - (1 + step) ** -POWER) if self.warmup else self.decay


@attrs.frozen(eq=False)
class Following:
    """Tensors that follow others: floating-point ones as averages, counts as copies.

    Running statistics are averaged like weights: copied ones would be those of the latest weights, not of the averages.
    """

    averages: list[Tensor]
    values: list[Tensor]
    copies: list[Tensor]
    counts: list[Tensor]

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Move the averages towards the values."""
        torch._foreach_lerp_(self.averages, self.values, 1 - decay)  # pyright: ignore[reportPrivateImportUsage]
        if self.counts:
            torch._foreach_copy_(self.copies, self.counts)  # pyright: ignore[reportPrivateImportUsage]


@attrs.frozen(eq=False)
class Averages:
    """The averages of a run.

    Attributes:
        kept: By owner, a state dict of averages.
        following: By task, what a step of it brings up to date: its own network and all shared modules.
    """

    averaging: Averaging
    kept: Mapping[str, dict[str, Tensor]]
    following: Mapping[str, Following]

    @classmethod
    def of(cls, averaging: Averaging, owners: Mapping[str, nn.Module], tasks: Iterable[str]) -> Averages:
        """Make averages of modules by owner: ``<task>.extractor`` and ``<task>.head`` are a task's, others shared."""
        states = {owner: module.state_dict() for owner, module in owners.items()}
        kept = {
            owner: {name: value.clone() for name, value in state.items()} for owner, state in states.items()
        }
        names = list(tasks)
        networks = {name: (f"{name}.extractor", f"{name}.head") for name in names}
        shared = tuple(one for one in owners if not any(one in pair for pair in networks.values()))
        following = {}
        for name in names:
            pairs = [
                (kept[owner][key], value)
                for owner in (*networks[name], *shared)
                if owner in states  # the head of a task without labels is not trained
                for key, value in states[owner].items()
            ]
            floats = [pair for pair in pairs if pair[1].is_floating_point()]
            rest = [pair for pair in pairs if not pair[1].is_floating_point()]
            following[name] = Following(
                [one for one, _ in floats],
                [one for _, one in floats],
                [one for one, _ in rest],
                [one for _, one in rest],
            )
        return cls(averaging, kept, following)

    @torch.no_grad()
    def begin_from(self, owners: Mapping[str, nn.Module]) -> None:
        """Take the values that modules have now, before the first step."""
        for owner, kept in self.kept.items():
            for name, value in owners[owner].state_dict().items():
                kept[name].copy_(value)

    def follow(self, task: str, step: int) -> None:
        """Take in what a step of a task moved."""
        self.following[task].follow(self.averaging.at(step))
