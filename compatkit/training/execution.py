"""How steps are executed: eager, compiled, captured as CUDA graphs; what prevents it, and who."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args

import attrs
import torch

from compatkit.training.agreement import disagreement, draws, replay_disagreement

if TYPE_CHECKING:
    from compatkit.training.loop import Loop
    from compatkit.training.task_loop import Lane

Mode = Literal["eager", "compile", "graph", "compile+graph"]
Asked = Literal["auto", "eager", "compile", "graph", "compile+graph"]
MODES: tuple[Mode, ...] = get_args(Mode)


@attrs.frozen
class Execution:
    """How the steps of a run are executed, and why so.

    Attributes:
        mode: ``"eager"``; ``"compile"``: the loss is one graph of torch.compile; ``"graph"``: forward and backward pass
            and the optimisers are replayed as one CUDA graph; or both.
        reason: Why this one, and what prevents a faster one.
    """

    mode: Mode
    reason: str

    @property
    def compiles(self) -> bool:
        """Whether the loss is compiled."""
        return self.mode.startswith("compile")

    @property
    def captures(self) -> bool:
        """Whether steps are replayed as CUDA graphs."""
        return self.mode.endswith("graph")


EAGER = Execution("eager", "asked for")


def settle(loop: Loop, asked: Asked, *, deterministic: bool) -> Execution:
    """Return how a run is executed: what was asked for, where nothing prevents it; else the most that is left.

    No hook is called that does more than it returns, and nothing of the run changes.

    Args:
        loop: Before its first step.
        asked: ``"auto"`` tries, and measures where the device is a GPU.
        deterministic: Forbids what depends on measured times.
    """
    device = torch.device(loop.setup.precision.device).type
    if asked == "eager":
        return EAGER
    for lane in loop.lanes.values():
        lane.resolve(0)
    if asked == "auto":
        if deterministic:
            return Execution("eager", "deterministic=True forbids trials")
        if device != "cuda":
            return Execution(
                "eager",
                f"on {device} a compiled step gains little over {loop.setup.precision.dtype} in this memory format and "
                "takes half a minute to make; execution='compile' asks for it",
            )
        if loop.world.size > 1:
            return Execution("eager", "several processes would each find another way the fastest")
        from compatkit.training.trials import fastest

        return fastest(loop)
    return possible(loop, asked)


def possible(loop: Loop, mode: Mode) -> Execution:
    """Return ``mode``, or what is left of it, with what prevents the rest."""
    wanted = Execution(mode, "asked for")
    hindrances: list[str] = []
    compiles = wanted.compiles
    if compiles and (found := "; ".join(hinders_compilation(loop))):
        compiles = False
        hindrances.append(found)
    captures = wanted.captures
    if captures and (found := "; ".join(hinders_capture(loop, compiles=compiles))):
        captures = False
        hindrances.append(found)
    left: Mode = "eager"
    for one in MODES:
        tried = Execution(one, "")
        if (tried.compiles, tried.captures) == (compiles, captures):
            left = one
    return wanted if left == mode else Execution(left, f"{mode} was asked for, but {'; '.join(hindrances)}")


def hinders_compilation(loop: Loop) -> Iterator[str]:
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
    for lane in loop.lanes.values():
        if draws(loop, lane):
            yield (
                f"the network of the task {lane.task.name!r} draws random numbers in training (dropout or the like), "
                "and would draw others"
            )
            return
        if (found := disagreement(loop, lane)) is not None:
            yield f"task {lane.task.name!r}{_recorded(lane)}: {found}"
            return


def hinders_capture(loop: Loop, *, compiles: bool) -> Iterator[str]:
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
    for lane in loop.lanes.values():
        if draws(loop, lane):
            yield (
                f"the network of the task {lane.task.name!r} draws random numbers in training, which are seeded for "
                "every step"
            )
            return
        if (found := replay_disagreement(loop, lane, mode)) is not None:
            yield f"task {lane.task.name!r}{_recorded(lane)}: {found}"
            return


def _recorded(lane: Lane) -> str:
    """Return for whom layers are recorded: what may be to blame."""
    recording = lane.objective.recording
    return "" if recording is None else f", with layers recorded for {', '.join(map(repr, recording.names))}"
