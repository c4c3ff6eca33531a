"""Out of memory: told by the batch that did not fit, and by one that would, found by trying."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import torch

from compatkit.errors import EnvironmentFailure
from compatkit.training.execution import Execution
from compatkit.training.exhaustion import ran_out
from compatkit.training.loop import Loop
from compatkit.training.randomness import preserved
from compatkit.training.state import TaskState
from compatkit.training.step import Batch, Step, first
from compatkit.training.task_loop import Lane

LEAST = 2
"""Images that are tried at least: batch normalisation has no statistics of one."""


def settled(loop: Loop, settle: Callable[[], Execution]) -> Execution:
    """Return what ``settle`` does, how a run is executed; steps stay eager where only trying was too large.

    Raises:
        EnvironmentFailure: The memory is too small for a step.
    """
    failure: Exception | None = None
    try:
        return settle()
    except Exception as error:
        if not ran_out(error):
            raise
        failure = error
    _let_go(failure)
    for task in loop.setup.tasks.values():
        with _untouched(loop):
            works = _works(loop, task, 0, loop.batch_size // loop.lanes[task.name].pieces)
        if not works:
            raise does_not_fit(loop, task, 0, failure) from failure
    return Execution("eager", "there is no memory left to try another way")


def does_not_fit(loop: Loop, task: TaskState, number: int, error: BaseException) -> EnvironmentFailure:
    """Return the error of a step that ran out of memory: whose it was, how large, and what would fit.

    Halves of the batch are tried, forward and backward, until one fits; modules, plugins and random numbers are bitwise
    as before afterwards.

    Args:
        loop: Between steps.
        task: Whose step it was.
        number: The step.
        error: Its frames are cleared first, for they hold the tensors that filled the memory.
    """
    _let_go(error)
    lane = loop.lanes[task.name]
    whole = loop.batch_size
    there = whole // lane.pieces
    tried = f"a batch of {whole} images"
    if lane.pieces > 1:
        tried += f" in {lane.pieces} pieces of {there}"
    if loop.world.size > 1:
        tried += f" on {loop.world.size} processes"
    said = f"Task {task.name!r} ran out of memory on {loop.setup.precision.device!r} in step {number} with {tried}."
    if loop.world.size > 1:  # the others wait meanwhile, and may be needed for a pass
        return EnvironmentFailure(
            f"{said} Set accumulate={2 * lane.pieces}, which sees the same images a step, or a smaller batch_size, "
            "or start more processes, each on a device of its own.",
            subject=task.name,
        )
    with _untouched(loop):
        fits = next((count for count in _halves(there) if _works(loop, task, number, count)), None)
    if fits is None:
        return EnvironmentFailure(
            f"{said} Not even {LEAST} images fit: use smaller images (Task.size), a smaller network or another device.",
            subject=task.name,
        )
    advice = f"batch_size={fits * lane.pieces if lane.pieces > 1 else fits}"
    more = next((k for k in range(lane.pieces, whole + 1) if whole % k == 0 and whole // k <= fits), None)
    if more is not None and whole // more >= LEAST:
        advice = f"accumulate={more}, which sees the same images a step, or {advice}"
    return EnvironmentFailure(
        f"{said} Forward and backward pass of {fits} images fit: set {advice}.", subject=task.name
    )


def _halves(count: int) -> Iterator[int]:
    while count // 2 >= LEAST:
        count //= 2
        yield count


def _works(loop: Loop, task: TaskState, number: int, count: int) -> bool:
    failure: Exception | None = None
    try:
        lane = loop.lanes[task.name]
        if number not in lane.span:
            lane.resolve(number)
        lane = attrs.evolve(lane, forward=lane.objective)  # compiling for each size would take minutes
        step = _step(loop, lane, number)
        step.batch = first(step.batch, count)
        loop.view(lane, step)
        loop.gradients(lane, step)
    except Exception as error:
        if not ran_out(error):
            raise
        failure = error
    loop.forget_gradients()
    if failure is not None:
        _let_go(failure)
    return failure is None


def _step(loop: Loop, lane: Lane, number: int) -> Step:
    """Return a step with its batch; of a loader, which does not go back, with one of noise in its place."""
    task = lane.task
    if task.task.loader is None:
        return loop.begin(lane, number)
    precision, count = loop.setup.precision, loop.batch_size
    images = torch.randn(count, len(task.data.mean), *task.data.size, device=precision.device)
    index = torch.arange(count, device=precision.device)
    pixels = images.contiguous(memory_format=precision.memory_format)
    return Step(loop.setup.seed, task, number, Batch(pixels, index % len(task.labels), index), precision)


def _let_go(error: BaseException) -> None:
    """Let go of the tensors that the frames of an error hold, and hand their memory back."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@contextmanager
def _untouched(loop: Loop) -> Iterator[None]:
    """Give back buffers, states of plugins and random numbers, and leave no gradients.

    Weights and moments are not copied, as there is no room, and as nothing moves them.
    """
    loop.forget_gradients()
    modules = (*loop.setup.owners.values(), *(head.module for head in loop.setup.auxiliary.values()))
    buffers = [(one, one.clone()) for module in modules for one in module.buffers()]
    states = copy.deepcopy(loop.plugins.states())
    with preserved():
        yield
    with torch.no_grad():
        for one, value in buffers:
            one.copy_(value)
    loop.plugins.load_states(states)
    loop.forget_gradients()
