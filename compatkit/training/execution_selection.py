"""Select how the steps of a run are executed: which modes are possible, compute the same, and are fastest."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import count, islice

import torch
from torch import Tensor

from compatkit.training.execution import EAGER, MODES, Captured, Execution, ExecutionOption, Mode
from compatkit.training.loop import Loop
from compatkit.training.objective import Compiled, Outcome
from compatkit.training.optim import CAPTURED
from compatkit.training.out_of_memory import free_memory, is_out_of_memory
from compatkit.training.randomness import reseed, states
from compatkit.training.step import Step
from compatkit.training.task_loop import TaskLoop

TOLERANCE = {"float32": 1e-4, "bf16": 5e-2}
"""Largest norm of a difference of all gradients, as a share of their norm."""
STEPS = 20
"""Steps of each task that a trial times, after as many to warm up."""
WORTH = 0.97
"""A mode must take less than this share of a simpler mode's time to be chosen."""
SHORT = 60
"""Seconds; a run that takes less is not compiled."""


def select_execution(loop: Loop) -> Execution:
    """Return how a run is executed: as requested, or the part of that which is possible.

    Only hooks without side effects are called, and the run does not change. ``"auto"`` times the modes on a GPU; where
    a trial runs out of memory, steps stay eager.

    Args:
        loop: Before its first step.
    """
    try:
        return _select(loop, loop.settings.execution)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        failure = error
    free_memory(failure)
    loop.zero_grad()
    return Execution("eager", "there is no memory left to try another way")


def _select(loop: Loop, option: ExecutionOption) -> Execution:
    device = torch.device(loop.setup.precision.device).type
    if option == "eager":
        return EAGER
    for task_loop in loop.task_loops.values():
        task_loop.resolve(0)
    if option == "auto":
        if loop.settings.deterministic:
            return Execution("eager", "deterministic=True forbids trials")
        if device != "cuda":
            return Execution(
                "eager",
                f"on {device} a compiled step gains little over {loop.setup.precision.dtype} in this memory format and "
                "takes half a minute to make; execution='compile' asks for it",
            )
        if loop.world.size > 1:
            return Execution("eager", "several processes would each find another way the fastest")
        return fastest(loop)
    return possible_execution(loop, option)


def possible_execution(loop: Loop, mode: Mode) -> Execution:
    """Return ``mode``, or the part of it that is possible, with the reason why not the rest.

    Args:
        loop: Loop of a prepared run.
        mode: The requested mode.
    """
    wanted = Execution(mode, "asked for")
    if mixing := [name for name, state in loop.setup.tasks.items() if state.task.mixes]:
        return Execution(
            "eager",
            f"{mode} was asked for, but the images of task {mixing[0]!r} are mixed anew in every step",
        )
    compiling = compile_blocker(loop) if wanted.compiles else None
    compiles = wanted.compiles and compiling is None
    capturing = capture_blocker(loop, compiles=compiles) if wanted.captures else None
    blockers = list(filter(None, (compiling, capturing)))
    if not blockers:
        return wanted
    left: Mode = "compile" if compiles else "graph" if wanted.captures and capturing is None else "eager"
    return Execution(left, f"{mode} was asked for, but {'; '.join(blockers)}")


def compile_blocker(loop: Loop) -> str | None:
    """Return why losses cannot be compiled, with the plugin that prevents it; None where they can.

    Runs one forward and backward pass of each task eagerly and compiled, and leaves the run as it was.
    """
    for hook in ("losses", "further_views"):
        for bound in getattr(loop.plugins, hook):
            if bound.effect != "pure":
                return (
                    f"compatkit_{hook} of the plugin {bound.instance!r} has the effect {bound.effect!r}; declare "
                    "@effect('pure') if it takes tensors, gives tensors and does nothing else"
                )
    for instance, balanced in loop.setup.gradients.items():
        if balanced:
            return f"the plugin {instance!r} balances its gradient against the task's in every step"
    for task_loop in loop.task_loops.values():
        if task_loop.task.task.recompute_activations:
            return f"the network of the task {task_loop.task.name!r} recomputes its activations"
        if draws_random_numbers(loop, task_loop):
            return (
                f"the network of the task {task_loop.task.name!r} draws random numbers in training (dropout or the "
                "like), and would draw others"
            )
        if (reason := compile_difference(loop, task_loop)) is not None:
            return f"task {task_loop.task.name!r}{_recorded(task_loop)}: {reason}"
    return None


def capture_blocker(loop: Loop, *, compiles: bool) -> str | None:
    """Return why a step cannot be captured, with the plugin that prevents it; None where it can.

    Captures and replays a step of each task, and leaves the run as it was.

    Args:
        loop: Loop of a prepared run.
        compiles: Whether losses are compiled too.
    """
    device = loop.setup.precision.device
    if torch.device(device).type != "cuda":
        return f"a CUDA graph needs a CUDA device, and this run is on {device}"
    if loop.world.size > 1:
        return "several processes tell one another in every step which gradients they have"
    if loop.settings.optimizer not in CAPTURED:
        return f"the optimizer {loop.settings.optimizer!r} counts its steps, or takes its rate, outside of the device"
    for hook in ("losses", "after_backward"):
        for bound in getattr(loop.plugins, hook):
            if bound.effect == "host":
                return (
                    f"compatkit_{hook} of the plugin {bound.instance!r} falls into the graph and is a host effect; "
                    "declare @effect('device') if it changes nothing but tensors on the device"
                )
    mode = Execution("compile+graph" if compiles else "graph", "on trial")
    for task_loop in loop.task_loops.values():
        if task_loop.task.task.recompute_activations:
            return f"the network of the task {task_loop.task.name!r} recomputes its activations"
        if draws_random_numbers(loop, task_loop):
            return (
                f"the network of the task {task_loop.task.name!r} draws random numbers in training, which are seeded "
                "for every step"
            )
        if (reason := replay_difference(loop, task_loop, mode)) is not None:
            return f"task {task_loop.task.name!r}{_recorded(task_loop)}: {reason}"
    return None


def _recorded(task_loop: TaskLoop) -> str:
    """Name the plugins for which layers are recorded, as they may be the cause."""
    recording = task_loop.objective.recording
    return "" if recording is None else f", with layers recorded for {', '.join(map(repr, recording.names))}"


def draws_random_numbers(loop: Loop, task_loop: TaskLoop) -> bool:
    """Return whether a task's forward pass draws random numbers.

    Args:
        loop: Loop of a prepared run.
        task_loop: Loop of the task.
    """
    with loop.untouched():
        step = loop.begin(task_loop, 0)
        device = loop.setup.precision.device
        reseed(device, 0)
        before = states(device)
        task_loop.objective(step)
        return any(not torch.equal(state, other) for state, other in zip(before, states(device), strict=True))


def compile_difference(loop: Loop, task_loop: TaskLoop) -> str | None:
    """Return how a compiled loss differs from the eager one, or why it cannot be compiled; None where it agrees.

    Args:
        loop: Loop of a prepared run.
        task_loop: Loop of the task.
    """
    try:
        expected = _gradients(loop, task_loop, task_loop.objective)
        compiled = _gradients(loop, task_loop, Compiled(task_loop.objective))
    except Exception as error:  # whatever a compiler raises: the run goes on without it
        return f"torch.compile does not take the step ({_first_line(error)})"
    return _difference(loop, expected, compiled, "compiled gradients")


def replay_difference(loop: Loop, task_loop: TaskLoop, execution: Execution) -> str | None:
    """Return how a replayed step updates weights differently, or why it cannot be captured; None where it agrees.

    Args:
        loop: Before its first step.
        task_loop: Whose step is tried, on one batch, from the same weights.
        execution: With the capture to try; the step is compiled both times, or neither.
    """
    before, previous = [weight.detach().double() for weight in task_loop.trainable], loop.execution

    def moves(step: Callable[[list[Step]], object]) -> list[Tensor]:
        task_loop.resolve(0, compiles=execution.compiles)
        with loop.untouched():
            step([loop.begin(task_loop, 0)])
            pairs = zip(task_loop.trainable, before, strict=True)
            return [weight.detach().double() - old for weight, old in pairs]

    def replayed(steps: list[Step]) -> None:
        Captured(partial(loop.train_step, task_loop), loop.untouched, steps).replay(steps)

    try:
        expected = moves(partial(loop.train_step, task_loop))
        loop.set_execution(execution)
        observed = moves(replayed)
    except Exception as error:  # whatever a capture raises: the run goes on without it
        return f"the step cannot be captured ({_first_line(error)})"
    finally:
        loop.set_execution(previous)
        task_loop.resolve(0)
    return _difference(loop, expected, observed, "a replayed step moves weights that")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"


def _difference(loop: Loop, expected: list[Tensor], observed: list[Tensor], what: str) -> str | None:
    """Return how far tensors are apart where this is more than rounding explains; None where it is not."""
    scale = torch.stack([tensor.norm() for tensor in expected]).norm()
    differences = [left - right for left, right in zip(expected, observed, strict=True)]
    difference = torch.stack([tensor.norm() for tensor in differences]).norm()
    share, most = float(difference / scale.clamp(min=1e-30)), TOLERANCE[loop.setup.precision.dtype]
    return None if share <= most else f"{what} differ by {share:.1e} of their norm, more than {most:.0e}"


def _gradients(loop: Loop, task_loop: TaskLoop, forward: Callable[..., Outcome]) -> list[Tensor]:
    with loop.untouched():
        step = loop.begin(task_loop, 0)
        forward(step)[0].backward()
        return [weight.grad.detach().double() for weight in loop.trainable if weight.grad is not None]


def fastest(loop: Loop) -> Execution:
    """Return the fastest mode of those that compute the same; the run is restored afterwards.

    Modes are tried from the simplest on. Two trials of the same run may choose different modes, as times differ.
    """
    plugins = loop.plugins
    for bound in (*plugins.views, *plugins.losses, *plugins.after_backward):
        if bound.effect == "host":
            return Execution(
                "eager", f"a trial would call the plugin {bound.instance!r}, whose effect is 'host'"
            )
    best, least, reasons = Execution("eager", ""), _seconds(loop, "eager"), []
    for mode in MODES[1:]:
        if mode.startswith("compile") and least * loop.settings.steps < SHORT:
            reasons.append(f"{mode} would take longer to make than it could save")
            continue
        candidate = possible_execution(loop, mode)
        if candidate.mode != mode:
            reasons.append(candidate.reason)
            continue
        seconds = _seconds(loop, mode)
        if seconds < WORTH * least:
            best, least = candidate, seconds
    reason = f"the fastest of those that were possible, in a trial of {STEPS} steps"
    return Execution(best.mode, "; ".join([reason, *reasons]))


def _seconds(loop: Loop, mode: Mode) -> float:
    """Return the seconds that one step of every task takes."""
    before, numbers = loop.execution, count()

    def take() -> None:
        for number in islice(numbers, STEPS):
            for task_loop in loop.task_loops.values():
                loop.work(task_loop, number)
        torch.cuda.synchronize()

    try:
        with loop.untouched():
            loop.set_execution(Execution(mode, "on trial"))
            take()
            began = time.perf_counter()
            take()
            return (time.perf_counter() - began) / STEPS
    finally:
        loop.set_execution(before)
