"""Out of memory: told by the batch that did not fit, and by one that would, found by trying."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from compatkit.errors import EnvironmentFailure
from compatkit.training.context import Batch, TaskState
from compatkit.training.loop import Loop
from compatkit.training.randomness import preserved

SIGNS = (
    "not enough memory",
    "can't allocate memory",
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""What allocators say that have no error of their own: those of the CPU and of CUDA's libraries."""
LEAST = 2
"""Images that are tried at least: batch normalisation has no statistics of one."""


def ran_out(error: BaseException) -> bool:
    """Return whether memory was what failed, also below a plugin."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(cause, RuntimeError) and any(sign in str(cause) for sign in SIGNS):
            return True
        cause = cause.__cause__
    return False


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
    with _untouched(loop):
        fits = next((count for count in _halves(there) if _works(loop, task, number, count)), None)
    tried = f"a batch of {whole} images"
    if lane.pieces > 1:
        tried += f" in {lane.pieces} pieces of {there}"
    said = f"Task {task.name!r} ran out of memory on {loop.setup.precision.device!r} in step {number} with {tried}."
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
        step = loop.begin(lane, number)
        whole = step.batch
        step.batch = Batch(whole.images[:count], whole.labels[:count], whole.index[:count])
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
    """Give back buffers, states of plugins and random numbers, and leave no gradients."""
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
