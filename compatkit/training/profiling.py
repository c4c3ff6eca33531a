"""Where the time of a step goes: data, hooks, forward and backward pass, optimisers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import torch

from compatkit.training.agreement import untouched
from compatkit.training.execution import Execution
from compatkit.training.lanes import Lane
from compatkit.training.loop import Loop
from compatkit.training.traffic import bandwidth, least_bytes

PARTS = ("data", "hooks", "forward", "backward", "optimiser", "rest")
COMPUTE = ("forward", "backward", "optimiser")
MUCH = 0.2
"""Share of a step that is not computing from which on a person is told."""
WARM_UP = 3


@attrs.frozen
class Profile:
    """Where the time of a run's steps goes; ``print`` shows it as a table.

    Attributes:
        milliseconds: Of one step of each task, one after the other, without any clock inside.
        shares: Of what is inside, by part; they add up to 1. Regularizers' losses count as forward pass.
        floor: Share of the device's memory bandwidth that the steps reach, counting the bytes that they must move
            (see ``compatkit.training.traffic``); None where that is not measured, which is so on a CPU.
        steps: Of each task that were timed.
    """

    milliseconds: float
    shares: Mapping[str, float]
    floor: float | None
    steps: int

    @property
    def idle(self) -> float:
        """The share that neither forward, backward nor optimiser takes."""
        return 1 - sum(self.shares[one] for one in COMPUTE)

    @property
    def warning(self) -> str | None:
        """What to do where too much of a step is not computing; None where all is well."""
        if self.idle <= MUCH:
            return None
        most = max((one for one in PARTS if one not in COMPUTE), key=lambda one: self.shares[one])
        return f"{self.idle:.0%} of a step is not computing, most of it {most}: {_REMEDIES[most]}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**attrs.asdict(self), "shares": dict(self.shares), "warning": self.warning}

    def __str__(self) -> str:
        lines = [f"{self.milliseconds:.2f} ms for a step of every task, over {self.steps} steps"]
        lines += [
            f"  {part:<10}{self.shares[part]:7.1%}  {'#' * round(40 * self.shares[part])}".rstrip()
            for part in PARTS
        ]
        if self.floor is not None:
            lines.append(
                f"  {self.floor:.0%} of the speed at which this device can move the bytes of these steps"
            )
        return "\n".join([*lines, *([self.warning] if self.warning else [])])

    __repr__ = __str__


_REMEDIES = {
    "data": "keep the images on the device, draw larger batches, or drop augmentations that cost much.",
    "hooks": "look at what the plugins do in views and after a step, and declare @effect where they are pure.",
    "rest": "the network is small for this device: larger batches, or execution='graph' on a GPU.",
}


def profile(loop: Loop, steps: int) -> Profile:
    """Take ``steps`` steps of every task twice, with clocks inside and without; the run is afterwards what it was.

    Hooks are called as in training; those that keep Python values of their own keep what they counted here. Steps that
    are captured are looked into as they are before the capture, and timed as they are.
    """
    settled = loop.execution
    with untouched(loop):
        _take(loop, WARM_UP)
        plain = _take(loop, steps)
        if settled.captures:
            loop.set_execution(Execution("compile" if settled.compiles else "eager", settled.reason))
            _take(loop, WARM_UP)
        watch = Watch(loop.setup.precision.device)
        with _watched(loop, watch):
            _take(loop, steps)
    loop.set_execution(settled)
    device = loop.setup.precision.device
    floor = None
    if torch.device(device).type == "cuda":
        moved = sum(least_bytes(loop, lane) for lane in loop.lanes.values())
        floor = moved / bandwidth(device) / (plain / steps)
    whole = sum(watch.seconds.values())
    shares = {part: watch.seconds[part] / whole for part in PARTS}
    return Profile(1000 * plain / steps, shares, floor, steps)


@attrs.define(eq=False)
class Watch:
    """Adds the time since the last look to a part; waits for the device at each look."""

    device: str
    seconds: dict[str, float] = attrs.field(factory=lambda: dict.fromkeys(PARTS, 0.0))
    after_forward: bool = False
    _last: float = attrs.field(factory=time.perf_counter)

    def look(self, part: str) -> None:
        """Say that what was done since the last look was ``part``."""
        _wait(self.device)
        now = time.perf_counter()
        self.seconds[part] += now - self._last
        self._last = now

    def around(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call`` with a look before and after it; what comes after a forward pass is its backward pass."""

        def watched(*arguments: Any, **named: Any) -> Any:
            self.look("backward" if self.after_forward else "rest")
            self.after_forward = False
            result = call(*arguments, **named)
            self.look(part)
            self.after_forward = part == "forward"
            return result

        return watched


@contextmanager
def _watched(loop: Loop, watch: Watch) -> Iterator[None]:
    """Put clocks around all that the steps of a loop call, and take them away again."""
    kept = {name: attrs.evolve(lane) for name, lane in loop.lanes.items()}
    begin, steps = loop.begin, [(one, one.step) for one in loop.optimisers.values()]
    try:
        loop.begin = watch.around("data", begin)  # type: ignore[method-assign]
        for optimiser, step in steps:
            optimiser.step = watch.around("optimiser", step)  # type: ignore[method-assign]
        for lane in loop.lanes.values():
            _watch_lane(lane, watch)
        yield
        watch.look("rest")
    finally:
        del loop.begin
        for optimiser, _ in steps:
            del optimiser.step
        for name, lane in loop.lanes.items():
            for field in ("views", "forward", "after_backward", "after_step", "after_epoch"):
                setattr(lane, field, getattr(kept[name], field))


def _watch_lane(lane: Lane, watch: Watch) -> None:
    lane.forward = watch.around("forward", lane.forward)
    lane.views = tuple((watch.around("hooks", call), stream) for call, stream in lane.views)
    for hook in ("after_backward", "after_step", "after_epoch"):
        setattr(lane, hook, tuple(watch.around("hooks", call) for call in getattr(lane, hook)))


def _take(loop: Loop, steps: int) -> float:
    """Take steps of every task; return the seconds."""
    device = loop.setup.precision.device
    _wait(device)
    began = time.perf_counter()
    for number in range(steps):
        for state in loop.setup.tasks.values():
            loop.step(state, number)
    _wait(device)
    return time.perf_counter() - began


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
