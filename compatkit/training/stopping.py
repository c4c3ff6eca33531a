"""Early stopping: when a run ends before its last step, and which weights it gives back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from compatkit.arguments import named
from compatkit.training.limits import number, one_of
from compatkit.training.loop import Loop


@named
@attrs.frozen(kw_only=True)
class EarlyStopping:
    """Ends a run when the figure on held-out training images has not got better for a while.

    With several tasks the figure is the mean over them: they share modules and steps, so that none can stop alone.

    Attributes:
        patience: Evaluations in a row without a better figure after which the run ends.
        least: What a figure must be better by to count as better.
        on: ``"loss"`` (lower is better) or ``"accuracy"`` (higher is better).
        restore: Whether to give back the weights of the best evaluation; else those of the last step.

    Raises:
        UsageError: One of them cannot be used.
    """

    patience: int = attrs.field(validator=number(least=1, whole=True))
    least: float = attrs.field(default=0.0, validator=number(least=0))
    on: Literal["loss", "accuracy"] = attrs.field(default="loss", validator=one_of(("loss", "accuracy")))
    restore: bool = True


@attrs.define(eq=False)
class Stopper:
    """What early stopping knows of a run; kept in checkpoints.

    Attributes:
        best: Best figure so far; ``step`` is where it was measured.
        waited: Evaluations since.
        weights: Modules and averages at ``step``, where they are to be given back.
    """

    rule: EarlyStopping
    best: float | None = None
    step: int = 0
    waited: int = 0
    weights: dict[str, Tensor] = attrs.field(factory=dict)

    @property
    def stopped(self) -> bool:
        """Whether the run is to end."""
        return self.waited >= self.rule.patience

    def see(self, step: int, rows: Sequence[Mapping[str, Any]], loop: Loop) -> None:
        """Take in an evaluation: of the averages where there are any, for they are what a run is then about."""
        weights = "averages" if loop.averages is not None else "trained"
        figures = [row[self.rule.on] for row in rows if row["weights"] == weights]
        figure = math.fsum(figures) / len(figures)
        sign = 1 if self.rule.on == "accuracy" else -1
        if self.best is None or sign * (figure - self.best) > self.rule.least:
            self.best, self.step, self.waited = figure, step, 0
            if self.rule.restore:
                self.weights = {name: value.clone() for name, value in _weights(loop).items()}
        else:
            self.waited += 1

    @torch.no_grad()
    def restore(self, loop: Loop) -> None:
        """Give the weights of the best evaluation back to modules and averages."""
        for name, value in _weights(loop).items() if self.weights else ():
            value.copy_(self.weights[name])

    def values(self) -> dict[str, Any]:
        """Return what a checkpoint keeps besides ``weights``."""
        return {"best": self.best, "step": self.step, "waited": self.waited}

    def take(self, values: Mapping[str, Any], weights: Mapping[str, Tensor], loop: Loop) -> None:
        """Take back what ``values`` gave, and the weights, onto the run's device."""
        self.best, self.step, self.waited = values["best"], values["step"], values["waited"]
        there = _weights(loop)
        self.weights = {name: torch.empty_like(there[name]).copy_(value) for name, value in weights.items()}

    def outcome(self, steps: int) -> dict[str, Any]:
        """Return for the run's manifest where it ended, and of which step the weights are."""
        return {"steps": steps, "weights_of_step": self.step if self.weights else steps}


def _weights(loop: Loop) -> dict[str, Tensor]:
    """Return everything that is trained, and its averages, by name; the tensors themselves."""
    found = {
        f"module/{owner}/{name}": value
        for owner, module in loop.setup.owners.items()
        for name, value in module.state_dict().items()
    }
    kept = loop.averages.kept if loop.averages is not None else {}
    return found | {
        f"average/{owner}/{name}": value for owner, state in kept.items() for name, value in state.items()
    }
