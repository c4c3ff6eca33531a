"""Learning rate as a pure function of the step."""

from __future__ import annotations

import math
from typing import Literal, get_args

import attrs

from compatkit.arguments import named
from compatkit.training.limits import number, one_of

Kind = Literal["step", "cosine", "constant"]
KINDS: tuple[Kind, ...] = get_args(Kind)


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

    kind: Kind = attrs.field(default="step", validator=one_of(KINDS))
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
