"""Learning rate as a pure function of the step."""

from __future__ import annotations

import math
from typing import Literal

import attrs

from compatkit.errors import UsageError


def _positive_or_none(instance: object, attribute: attrs.Attribute[int | None], value: int | None) -> None:
    if value is not None and value < 1:
        raise UsageError(f"Schedule.{attribute.name} expects a positive count of steps or None, got {value}.")


@attrs.frozen
class Schedule:
    """How the learning rate moves over the steps of a task.

    Attributes:
        kind: ``"step"`` divides every ``every`` steps, ``"cosine"`` falls to zero, ``"constant"`` stays.
        warmup: Steps of linear rise from 0 (the first step has ``1 / (warmup + 1)``).
        every: Steps between divisions; None is a quarter of the run, as Gygli et al. do (5,000 of 20,000).
        factor: What a division leaves.
    """

    kind: Literal["step", "cosine", "constant"] = attrs.field(
        default="step", validator=attrs.validators.in_(("step", "cosine", "constant"))
    )
    warmup: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    every: int | None = attrs.field(default=None, validator=_positive_or_none)
    factor: float = 0.1

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
