"""Profile a step: shares of data, hooks, forward pass, backward pass and optimizers in its time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import attrs
import torch

from compatkit.training.execution import Execution
from compatkit.training.loop import Loop

PARTS = ("data", "hooks", "forward", "backward", "optimizer", "rest")
COMPUTE = ("forward", "backward", "optimizer")
MAX_IDLE_SHARE = 0.2
"""Share of a step besides computing at most, without a warning."""
WARM_UP = 3


@attrs.frozen
class Profile:
    """Time of a run's steps and of their parts; ``print`` shows it as a table.

    Attributes:
        milliseconds: Time of one step of each task in sequence, measured without timing the parts.
        shares: Shares of the parts of a step, which sum to 1. Losses of regularizers belong to the forward pass.
        steps: Number of timed steps of each task.
    """

    milliseconds: float
    shares: Mapping[str, float]
    steps: int

    @property
    def idle(self) -> float:
        """Share of the time outside forward pass, backward pass and optimizer."""
        return 1 - sum(self.shares[part] for part in COMPUTE)

    @property
    def warning(self) -> str | None:
        """Advice if too much of a step is not computing, else None."""
        if self.idle <= MAX_IDLE_SHARE:
            return None
        largest = max((part for part in PARTS if part not in COMPUTE), key=lambda part: self.shares[part])
        return f"{self.idle:.0%} of a step is not computing, most of it {largest}: {_REMEDIES[largest]}"

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON values."""
        return {**attrs.asdict(self), "shares": dict(self.shares), "warning": self.warning}

    def __str__(self) -> str:
        lines = [f"{self.milliseconds:.2f} ms for a step of every task, over {self.steps} steps"]
        lines += [
            f"  {part:<10}{self.shares[part]:7.1%}  {'#' * round(40 * self.shares[part])}".rstrip()
            for part in PARTS
        ]
        return "\n".join([*lines, *([self.warning] if self.warning else [])])

    __repr__ = __str__


_REMEDIES = {
    "data": "keep the images on the device, use larger batches, or drop slow augmentations.",
    "hooks": "make the plugins' views and hooks after a step faster, and declare @effect if they are pure.",
    "rest": "the network is small for this device: larger batches, or execution='graph' on a GPU.",
}


def profile(loop: Loop, steps: int) -> Profile:
    """Take steps of every task twice, with and without timing the parts, and restore the run.

    Hooks are called as in training; values in their Python attributes are not restored. The parts of captured steps are
    timed without the capture.

    Args:
        loop: Loop of a prepared run.
        steps: Number of timed steps of each task.
    """
    execution = loop.execution
    with loop.restored():
        _take_steps(loop, WARM_UP)
        seconds = _take_steps(loop, steps)
        if execution.captures:
            loop.set_execution(Execution("compile" if execution.compiles else "eager", execution.reason))
            _take_steps(loop, WARM_UP)
        shares = _shares(loop, steps)
    loop.set_execution(execution)
    return Profile(1000 * seconds / steps, shares, steps)


def _shares(loop: Loop, steps: int) -> dict[str, float]:
    """Take steps with a clock that waits for the device after each part; return the share of each part."""
    device, mark = loop.setup.precision.device, loop.mark
    seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    last = time.perf_counter()

    def add_time(part: str) -> None:
        nonlocal last
        _wait(device)
        now = time.perf_counter()
        seconds[part] += now - last
        last = now

    loop.mark = add_time
    try:
        _take_steps(loop, steps)
    finally:
        loop.mark = mark
    add_time("rest")
    return {part: value / sum(seconds.values()) for part, value in seconds.items()}


def _take_steps(loop: Loop, steps: int) -> float:
    """Take steps of every task; return their duration in seconds."""
    device = loop.setup.precision.device
    _wait(device)
    start = time.perf_counter()
    for number in range(steps):
        for state in loop.setup.tasks.values():
            loop.step(state, number)
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
