"""Exponential moving averages of all that a run trains, brought up to date by a few operations a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import torch
from torch import Tensor, nn

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
