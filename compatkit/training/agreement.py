"""Whether another way to execute a step computes the same: tried on one batch, which leaves the run as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from compatkit.training.randomness import reseed, states

if TYPE_CHECKING:
    from compatkit.training.execution import Execution
    from compatkit.training.loop import Loop
    from compatkit.training.objective import Outcome
    from compatkit.training.task_loop import Lane

TOLERANCE = {"float32": 1e-4, "bf16": 5e-2}
"""Largest norm of a difference of all gradients, as a share of their norm."""


@contextmanager
def untouched(loop: Loop) -> Iterator[None]:
    """Give modules and optimisers back what they held, bit by bit and in the same memory, and drop all gradients.

    Moments that were made meanwhile stay, as zeros: what an optimiser begins with.
    """
    kept = [
        (value, value.detach().clone())
        for module in loop.setup.owners.values()
        for value in module.state_dict(keep_vars=True).values()
    ]
    before = {id(value): value.clone() for value in _moments(loop)}
    try:
        yield
    finally:
        with torch.no_grad():
            for value, held in kept:
                value.copy_(held)
            for value in _moments(loop):
                value.copy_(before[id(value)]) if id(value) in before else value.zero_()
        loop.forget_gradients()


def _moments(loop: Loop) -> Iterator[Tensor]:
    for optimiser in loop.optimisers.values():
        for state in optimiser.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def draws(loop: Loop, lane: Lane) -> bool:
    """Tell whether a task's forward pass draws random numbers."""
    with untouched(loop):
        step = loop.begin(lane, 0)
        device = loop.setup.precision.device
        reseed(device, 0)
        before = states(device)
        lane.objective(step)
        return any(not torch.equal(one, other) for one, other in zip(before, states(device), strict=True))


def disagreement(loop: Loop, lane: Lane) -> str | None:
    """Return how a compiled loss differs from the eager one, or why it cannot be compiled; None where it is right."""
    from compatkit.training.objective import Compiled

    try:
        expected = _gradients(loop, lane, lane.objective)
        found = _gradients(loop, lane, Compiled(lane.objective))
    except Exception as error:  # whatever a compiler raises: the run goes on without it
        first = str(error).strip().splitlines() or [""]
        return f"torch.compile does not take the step ({type(error).__name__}: {first[0]:.200})"
    return _apart(loop, expected, found, "compiled gradients")


def replay_disagreement(loop: Loop, lane: Lane, execution: Execution) -> str | None:
    """Return how a replayed step moves otherwise than one that is not, or why it cannot be captured, or None.

    Args:
        loop: Before its first step.
        lane: Whose step is tried, on one batch, from the same weights.
        execution: With the capture that is tried; the step is compiled both times, or neither.
    """
    from compatkit.training.capture import Captured

    before = [one.detach().double() for one in lane.moved]
    settled = loop.execution
    try:
        lane.resolve(0, compiles=execution.compiles)
        with untouched(loop):
            loop.descend(lane, [loop.begin(lane, 0)])
            expected = [one.detach().double() - old for one, old in zip(lane.moved, before, strict=True)]
        loop.set_execution(execution)
        lane.resolve(0, compiles=execution.compiles)
        with untouched(loop):
            steps = [loop.begin(lane, 0)]
            Captured(loop, lane, steps).replay(steps)
            found = [one.detach().double() - old for one, old in zip(lane.moved, before, strict=True)]
    except Exception as error:  # whatever a capture raises: the run goes on without it
        first = str(error).strip().splitlines() or [""]
        return f"the step cannot be captured ({type(error).__name__}: {first[0]:.200})"
    finally:
        loop.set_execution(settled)
        lane.resolve(0)
    return _apart(loop, expected, found, "a replayed step moves weights that")


def _apart(loop: Loop, expected: list[Tensor], found: list[Tensor], what: str) -> str | None:
    scale = torch.stack([one.norm() for one in expected]).norm()
    apart = torch.stack([(one - other).norm() for one, other in zip(expected, found, strict=True)]).norm()
    share, most = float(apart / scale.clamp(min=1e-30)), TOLERANCE[loop.setup.precision.dtype]
    return None if share <= most else f"{what} differ by {share:.1e} of their norm, more than {most:.0e}"


def _gradients(loop: Loop, lane: Lane, forward: Callable[..., Outcome]) -> list[Tensor]:
    with untouched(loop):
        step = loop.begin(lane, 0)
        forward(step)[0].backward()
        return [one.grad.detach().double() for one in loop.moving if one.grad is not None]
