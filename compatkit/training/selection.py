"""Select how the steps of a run are executed: what prevents a mode, whether it computes the same, which is fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import torch
from torch import Tensor

from compatkit.training.execution import EAGER, MODES, Asked, Captured, Execution, Mode
from compatkit.training.loop import Loop
from compatkit.training.memory import let_go, ran_out
from compatkit.training.objective import Compiled, Outcome
from compatkit.training.randomness import reseed, states
from compatkit.training.task_loop import TaskLoop

TOLERANCE = {"float32": 1e-4, "bf16": 5e-2}
"""Largest norm of a difference of all gradients, as a share of their norm."""
STEPS = 20
"""Of each task, timed after as many that warm up."""
WORTH = 0.97
"""A mode that takes more than this share of a simpler one's time is not worth it."""
SHORT = 60
"""Seconds; what takes less as it is, compiles nothing."""


def select_execution(loop: Loop) -> Execution:
    """Return how a run is executed: what was asked for, where nothing prevents it; else the most that is left.

    No hook is called that does more than it returns, and nothing of the run changes. ``"auto"`` tries and measures on a
    GPU; where trying runs out of memory, steps stay eager.

    Args:
        loop: Before its first step.
    """
    try:
        return _select(loop, loop.settings.execution)
    except Exception as error:
        if not ran_out(error):
            raise
        failure = error
    let_go(failure)
    loop.zero_grad()
    return Execution("eager", "there is no memory left to try another way")


def _select(loop: Loop, asked: Asked) -> Execution:
    device = torch.device(loop.setup.precision.device).type
    if asked == "eager":
        return EAGER
    for task_loop in loop.task_loops.values():
        task_loop.resolve(0)
    if asked == "auto":
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
    return possible(loop, asked)


def possible(loop: Loop, mode: Mode) -> Execution:
    """Return ``mode``, or what is left of it, with what prevents the rest."""
    wanted = Execution(mode, "asked for")
    hindrances: list[str] = []
    compiles = wanted.compiles
    if compiles and (found := "; ".join(compile_blockers(loop))):
        compiles = False
        hindrances.append(found)
    captures = wanted.captures
    if captures and (found := "; ".join(capture_blockers(loop, compiles=compiles))):
        captures = False
        hindrances.append(found)
    left: Mode = "eager"
    for one in MODES:
        tried = Execution(one, "")
        if (tried.compiles, tried.captures) == (compiles, captures):
            left = one
    return wanted if left == mode else Execution(left, f"{mode} was asked for, but {'; '.join(hindrances)}")


def compile_blockers(loop: Loop) -> Iterator[str]:
    """Yield what prevents that losses are compiled, with the plugin that does.

    Runs one forward and backward pass of each task as it is and compiled, and leaves the run as it was.
    """
    of_losses, of_views = loop.plugins.losses, loop.plugins.further_views
    for hook, bound in (
        *(("losses", one) for one in of_losses),
        *(("further_views", one) for one in of_views),
    ):
        if bound.effect != "pure":
            yield (
                f"compatkit_{hook} of the plugin {bound.instance!r} has the effect {bound.effect!r}; declare "
                "@effect('pure') if it takes tensors, gives tensors and does nothing else"
            )
            return
    for instance, balanced in loop.setup.gradients.items():
        if balanced:
            yield f"the plugin {instance!r} balances its gradient against the task's in every step"
            return
    for task_loop in loop.task_loops.values():
        if draws(loop, task_loop):
            yield (
                f"the network of the task {task_loop.task.name!r} draws random numbers in training (dropout or the "
                "like), and would draw others"
            )
            return
        if (found := disagreement(loop, task_loop)) is not None:
            yield f"task {task_loop.task.name!r}{_recorded(task_loop)}: {found}"
            return


def capture_blockers(loop: Loop, *, compiles: bool) -> Iterator[str]:
    """Yield what prevents that a step is captured, with the plugin that does.

    Where nothing is known to, a step of each task is captured and replayed, and the run left as it was.
    """
    device = loop.setup.precision.device
    if torch.device(device).type != "cuda":
        yield f"a CUDA graph needs a CUDA device, and this run is on {device}"
        return
    if loop.world.size > 1:
        yield "several processes tell one another in every step which gradients they have"
        return
    for hook, bounds in (("losses", loop.plugins.losses), ("after_backward", loop.plugins.after_backward)):
        for bound in bounds:
            if bound.effect == "host":
                yield (
                    f"compatkit_{hook} of the plugin {bound.instance!r} falls into the graph and is a host effect; "
                    "declare @effect('device') if it changes nothing but tensors on the device"
                )
                return
    mode = Execution("compile+graph" if compiles else "graph", "on trial")
    for task_loop in loop.task_loops.values():
        if draws(loop, task_loop):
            yield (
                f"the network of the task {task_loop.task.name!r} draws random numbers in training, which are seeded "
                "for every step"
            )
            return
        if (found := replay_disagreement(loop, task_loop, mode)) is not None:
            yield f"task {task_loop.task.name!r}{_recorded(task_loop)}: {found}"
            return


def _recorded(task_loop: TaskLoop) -> str:
    """Return for whom layers are recorded: what may be to blame."""
    recording = task_loop.objective.recording
    return "" if recording is None else f", with layers recorded for {', '.join(map(repr, recording.names))}"


def draws(loop: Loop, task_loop: TaskLoop) -> bool:
    """Tell whether a task's forward pass draws random numbers."""
    with loop.untouched():
        step = loop.begin(task_loop, 0)
        device = loop.setup.precision.device
        reseed(device, 0)
        before = states(device)
        task_loop.objective(step)
        return any(not torch.equal(one, other) for one, other in zip(before, states(device), strict=True))


def disagreement(loop: Loop, task_loop: TaskLoop) -> str | None:
    """Return how a compiled loss differs from the eager one, or why it cannot be compiled; None where it is right."""
    try:
        expected = _gradients(loop, task_loop, task_loop.objective)
        found = _gradients(loop, task_loop, Compiled(task_loop.objective))
    except Exception as error:  # whatever a compiler raises: the run goes on without it
        first = str(error).strip().splitlines() or [""]
        return f"torch.compile does not take the step ({type(error).__name__}: {first[0]:.200})"
    return _apart(loop, expected, found, "compiled gradients")


def replay_disagreement(loop: Loop, task_loop: TaskLoop, execution: Execution) -> str | None:
    """Return how a replayed step moves otherwise than one that is not, or why it cannot be captured, or None.

    Args:
        loop: Before its first step.
        task_loop: Whose step is tried, on one batch, from the same weights.
        execution: With the capture that is tried; the step is compiled both times, or neither.
    """
    before = [one.detach().double() for one in task_loop.trainable]
    settled = loop.execution
    try:
        task_loop.resolve(0, compiles=execution.compiles)
        with loop.untouched():
            loop.train_step(task_loop, [loop.begin(task_loop, 0)])
            expected = [
                one.detach().double() - old for one, old in zip(task_loop.trainable, before, strict=True)
            ]
        loop.set_execution(execution)
        task_loop.resolve(0, compiles=execution.compiles)
        with loop.untouched():
            steps = [loop.begin(task_loop, 0)]
            Captured(partial(loop.train_step, task_loop), loop.untouched, steps).replay(steps)
            found = [
                one.detach().double() - old for one, old in zip(task_loop.trainable, before, strict=True)
            ]
    except Exception as error:  # whatever a capture raises: the run goes on without it
        first = str(error).strip().splitlines() or [""]
        return f"the step cannot be captured ({type(error).__name__}: {first[0]:.200})"
    finally:
        loop.set_execution(settled)
        task_loop.resolve(0)
    return _apart(loop, expected, found, "a replayed step moves weights that")


def _apart(loop: Loop, expected: list[Tensor], found: list[Tensor], what: str) -> str | None:
    scale = torch.stack([one.norm() for one in expected]).norm()
    apart = torch.stack([(one - other).norm() for one, other in zip(expected, found, strict=True)]).norm()
    share, most = float(apart / scale.clamp(min=1e-30)), TOLERANCE[loop.setup.precision.dtype]
    return None if share <= most else f"{what} differ by {share:.1e} of their norm, more than {most:.0e}"


def _gradients(loop: Loop, task_loop: TaskLoop, forward: Callable[..., Outcome]) -> list[Tensor]:
    with loop.untouched():
        step = loop.begin(task_loop, 0)
        forward(step)[0].backward()
        return [one.grad.detach().double() for one in loop.trainable if one.grad is not None]


def fastest(loop: Loop) -> Execution:
    """Return the fastest mode of those that compute the same; the run is afterwards what it was.

    Modes are tried from the simplest on. Whoever asks for the same twice may get different answers: times differ.
    """
    plugins = loop.plugins
    for bound in (*plugins.views, *plugins.losses, *plugins.after_backward):
        if bound.effect == "host":
            return Execution(
                "eager", f"a trial would call the plugin {bound.instance!r}, whose effect is 'host'"
            )
    best, least, told = Execution("eager", ""), _seconds(loop, "eager"), []
    for mode in MODES[1:]:
        if mode.startswith("compile") and least * loop.settings.steps < SHORT:
            told.append(f"{mode} would take longer to make than it could save")
            continue
        there = possible(loop, mode)
        if there.mode != mode:
            told.append(there.reason)
            continue
        seconds = _seconds(loop, mode)
        if seconds < WORTH * least:
            best, least = there, seconds
    reason = f"the fastest of those that were possible, in a trial of {STEPS} steps"
    return Execution(best.mode, "; ".join([reason, *told]))


def _seconds(loop: Loop, mode: Mode) -> float:
    """Return the seconds that one step of every task takes."""
    before = loop.execution
    try:
        with loop.untouched():
            loop.set_execution(Execution(mode, "on trial"))
            numbers = count()
            _take(loop, numbers)
            torch.cuda.synchronize()
            began = time.perf_counter()
            _take(loop, numbers)
            torch.cuda.synchronize()
            return (time.perf_counter() - began) / STEPS
    finally:
        loop.set_execution(before)


def _take(loop: Loop, numbers: count[int]) -> None:
    for _ in range(STEPS):
        number = next(numbers)
        for task_loop in loop.task_loops.values():
            loop.work(task_loop, number)
