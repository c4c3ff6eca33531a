"""Select the execution of a run's steps: the fastest possible mode with the same results."""

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
"""Norm of the difference between all gradients at most, as a share of their norm."""
STEPS = 20
"""Timed steps of each task in a trial, after as many warm-up steps."""
MAX_TIME_SHARE = 0.97
"""Share of a simpler mode's time that a chosen mode takes at most."""
MIN_SECONDS = 60
"""Duration in seconds of a run to compile at least."""


def select_execution(loop: Loop) -> Execution:
    """Return the execution of a run: the requested one, or the possible part of it.

    Only hooks without side effects are called, and the run is restored. ``"auto"`` times the modes on a GPU; steps are
    eager if a trial runs out of memory.

    Args:
        loop: Loop before its first step.
    """
    try:
        return _select(loop, loop.settings.execution)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        failure = error
    free_memory(failure)
    loop.zero_grad()
    return Execution("eager", "the memory does not suffice to try another mode")


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
                f"on {device} compiling gains little over {loop.setup.precision.dtype} in this memory format and "
                "takes half a minute; execution='compile' requests it",
            )
        if loop.world.size > 1:
            return Execution("eager", "several processes could each choose another mode")
        return fastest(loop)
    return possible_execution(loop, option)


def possible_execution(loop: Loop, mode: Mode) -> Execution:
    """Return the execution of a mode, or of its possible part with the reason.

    Args:
        loop: Loop of a prepared run.
        mode: Requested mode.
    """
    requested, prefix = Execution(mode, "asked for"), f"{mode} was asked for, but"
    if mixing := [name for name, state in loop.setup.tasks.items() if state.task.mixes]:
        return Execution("eager", f"{prefix} the images of task {mixing[0]!r} are mixed again in every step")
    for bound in loop.plugins.combine_gradients:
        return Execution(
            "eager", f"{prefix} the plugin {bound.instance!r} combines the gradients of single losses"
        )
    no_compiling = compile_blocker(loop) if requested.compiles else None
    compiles = requested.compiles and no_compiling is None
    no_capturing = capture_blocker(loop, compiles=compiles) if requested.captures else None
    blockers = list(filter(None, (no_compiling, no_capturing)))
    if not blockers:
        return requested
    captures = requested.captures and no_capturing is None
    possible: Mode = "compile" if compiles else "graph" if captures else "eager"
    return Execution(possible, f"{prefix} {'; '.join(blockers)}")


def compile_blocker(loop: Loop) -> str | None:
    """Return the reason if losses cannot be compiled, with the plugin that prevents it; else None.

    Runs one forward and backward pass of each task eagerly and compiled, and restores the run.
    """
    for hook in ("losses", "sample_losses", "further_views"):
        for bound in getattr(loop.plugins, hook):
            if bound.effect != "pure":
                return (
                    f"compatkit_{hook} of the plugin {bound.instance!r} has the effect {bound.effect!r}; declare "
                    "@effect('pure') if it has no side effects"
                )
    for instance, balanced in loop.setup.gradients.items():
        if balanced:
            return f"the plugin {instance!r} balances its gradient against the task's in every step"
    return _task_blocker(loop, partial(compile_difference, loop), "which compiling would change")


def capture_blocker(loop: Loop, *, compiles: bool) -> str | None:
    """Return the reason if a step cannot be captured, with the plugin that prevents it; else None.

    Captures and replays a step of each task, and restores the run.

    Args:
        loop: Loop of a prepared run.
        compiles: Whether losses are compiled too.
    """
    device = loop.setup.precision.device
    if torch.device(device).type != "cuda":
        return f"a CUDA graph needs a CUDA device, and this run is on {device}"
    if loop.world.size > 1:
        return "several processes exchange in every step which gradients they have"
    for bound in loop.plugins.joint_losses:
        return f"the plugin {bound.instance!r} joins the batches of several tasks"
    for rule in loop.rates.rules.values():
        if rule.optimizer not in CAPTURED:
            return f"the optimizer {rule.optimizer!r} keeps its step count or learning rate on the host"
    for hook in ("losses", "sample_losses", "after_backward"):
        for bound in getattr(loop.plugins, hook):
            if bound.effect == "host":
                return (
                    f"compatkit_{hook} of the plugin {bound.instance!r} would be captured and has the effect 'host'; "
                    "declare @effect('device') if it changes only tensors on the device"
                )
    mode = Execution("compile+graph" if compiles else "graph", "on trial")
    difference = partial(replay_difference, loop, execution=mode)
    return _task_blocker(loop, difference, "which are seeded for every step")


def _task_blocker(loop: Loop, difference: Callable[[TaskLoop], str | None], seeding: str) -> str | None:
    """Return the reason if the steps of a task cannot be compiled or captured; else None."""
    for task_loop in loop.task_loops.values():
        network = f"the network of the task {task_loop.task.name!r}"
        if task_loop.task.task.recompute_activations:
            return f"{network} recomputes its activations"
        if draws_random_numbers(loop, task_loop):
            return f"{network} draws random numbers in training (dropout or the like), {seeding}"
        if (reason := difference(task_loop)) is not None:
            return f"task {task_loop.task.name!r}{_recording_plugins(task_loop)}: {reason}"
    return None


def _recording_plugins(task_loop: TaskLoop) -> str:
    """Return the plugins with recorded layers for a message, as they may be the cause."""
    recording = task_loop.objective.recording
    return "" if recording is None else f", with layers recorded for {', '.join(map(repr, recording.names))}"


def draws_random_numbers(loop: Loop, task_loop: TaskLoop) -> bool:
    """Return whether a task's forward pass draws random numbers.

    Args:
        loop: Loop of a prepared run.
        task_loop: Loop of the task.
    """
    with loop.restored():
        step = loop.begin(task_loop, 0)
        device = loop.setup.precision.device
        reseed(device, 0)
        before = states(device)
        task_loop.objective(step)
        return any(not torch.equal(state, other) for state, other in zip(before, states(device), strict=True))


def compile_difference(loop: Loop, task_loop: TaskLoop) -> str | None:
    """Return the difference of a compiled loss from the eager one, or the reason if it cannot be compiled; else None.

    Args:
        loop: Loop of a prepared run.
        task_loop: Loop of the task.
    """
    try:
        expected = _gradients(loop, task_loop, task_loop.objective)
        compiled = _gradients(loop, task_loop, Compiled(task_loop.objective))
    except Exception as error:  # any error of the compiler: the run continues without it
        return f"torch.compile cannot compile the step ({_first_line(error)})"
    return _difference(loop, expected, compiled, "compiled gradients")


def replay_difference(loop: Loop, task_loop: TaskLoop, execution: Execution) -> str | None:
    """Return the difference of a replayed step from an eager one, or the reason if it cannot be captured; else None.

    Args:
        loop: Loop before its first step.
        task_loop: Loop of the task, which takes both steps on one batch, from the same weights.
        execution: Mode to try; the step is compiled both times, or neither.
    """
    before, previous = [weight.detach().double() for weight in task_loop.trainable], loop.execution

    def updates(step: Callable[[list[Step]], object]) -> list[Tensor]:
        task_loop.resolve(0, compiles=execution.compiles)
        with loop.restored():
            step([loop.begin(task_loop, 0)])
            pairs = zip(task_loop.trainable, before, strict=True)
            return [weight.detach().double() - old for weight, old in pairs]

    def replayed(steps: list[Step]) -> None:
        Captured(partial(loop.train_step, task_loop), loop.restored, steps).replay(steps)

    try:
        expected = updates(partial(loop.train_step, task_loop))
        loop.set_execution(execution)
        observed = updates(replayed)
    except Exception as error:  # any error of the capture: the run continues without it
        return f"the step cannot be captured ({_first_line(error)})"
    finally:
        loop.set_execution(previous)
        task_loop.resolve(0)
    return _difference(loop, expected, observed, "weight updates of a replayed step")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"


def _difference(loop: Loop, expected: list[Tensor], observed: list[Tensor], what: str) -> str | None:
    """Return the difference of tensors, for a message, if it is over the tolerance; else None."""
    scale = torch.stack([tensor.norm() for tensor in expected]).norm()
    differences = [reference - value for reference, value in zip(expected, observed, strict=True)]
    difference = torch.stack([tensor.norm() for tensor in differences]).norm()
    share, limit = float(difference / scale.clamp(min=1e-30)), TOLERANCE[loop.setup.precision.dtype]
    return None if share <= limit else f"{what} differ by {share:.1e} of their norm, more than {limit:.0e}"


def _gradients(loop: Loop, task_loop: TaskLoop, forward: Callable[..., Outcome]) -> list[Tensor]:
    with loop.restored():
        step = loop.begin(task_loop, 0)
        forward(step)[0].backward()
        return [weight.grad.detach().double() for weight in loop.trainable if weight.grad is not None]


def fastest(loop: Loop) -> Execution:
    """Return the fastest mode with the same results, and restore the run.

    Modes are tried in order of complexity. Two trials of the same run may choose different modes, as times differ.
    """
    plugins = loop.plugins
    for bound in plugins.combine_gradients:
        return Execution("eager", f"the plugin {bound.instance!r} combines the gradients of single losses")
    called = (
        *plugins.sampler,
        *plugins.joint_losses,
        *plugins.views,
        *plugins.sample_losses,
        *plugins.losses,
        *plugins.after_backward,
    )
    for bound in called:
        if bound.effect == "host":
            reason = f"a trial would call the plugin {bound.instance!r}, whose effect is 'host'"
            return Execution("eager", reason)
    best, best_seconds, reasons = Execution("eager", ""), _seconds(loop, "eager"), []
    for mode in MODES[1:]:
        if mode.startswith("compile") and best_seconds * loop.settings.steps < MIN_SECONDS:
            reasons.append(f"{mode} would take longer to compile than it could save")
            continue
        candidate = possible_execution(loop, mode)
        if candidate.mode != mode:
            reasons.append(candidate.reason)
            continue
        seconds = _seconds(loop, mode)
        if seconds < MAX_TIME_SHARE * best_seconds:
            best, best_seconds = candidate, seconds
    reason = f"the fastest possible mode in a trial of {STEPS} steps"
    return Execution(best.mode, "; ".join([reason, *reasons]))


def _seconds(loop: Loop, mode: Mode) -> float:
    """Return the duration in seconds of one step of every task."""
    before, numbers = loop.execution, count()

    def take() -> None:
        for number in islice(numbers, STEPS):
            for task_loop in loop.task_loops.values():
                loop.work(task_loop, number)
        torch.cuda.synchronize()

    try:
        with loop.restored():
            loop.set_execution(Execution(mode, "on trial"))
            take()
            start = time.perf_counter()
            take()
            return (time.perf_counter() - start) / STEPS
    finally:
        loop.set_execution(before)
