"""How the steps of a run are executed: eager, compiled, or replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal, get_args

import attrs
import torch

from compatkit.training.step import Step, StepResult

WARM_UP = 3
"""Steps on a side stream before the capture, as torch requires."""
Mode = Literal["eager", "compile", "graph", "compile+graph"]
ExecutionOption = Literal["auto", Mode]
MODES: tuple[Mode, ...] = get_args(Mode)


@attrs.frozen
class Execution:
    """How the steps of a run are executed, and why.

    Attributes:
        mode: ``"eager"``; ``"compile"``: the loss is one graph of torch.compile; ``"graph"``: forward and backward pass
            and the optimizers are replayed as one CUDA graph; or both.
        reason: Why this mode, and what prevents a faster one.
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


class Captured:
    """Captured step of a task, which is replayed.

    Batches are copied into static memory, losses and predictions out of it; gradients live in the graph's own pool. The
    learning rate is a tensor on the device that is filled before a replay.
    """

    def __init__(
        self,
        train_step: Callable[[Sequence[Step]], StepResult],
        restored: Callable[[], AbstractContextManager[None]],
        steps: Sequence[Step],
    ) -> None:
        """Capture ``train_step``; weights, statistics and moments are restored afterwards."""
        self.steps = [attrs.evolve(step, batch=step.batch.copied()) for step in steps]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with restored():
            with torch.cuda.stream(stream):  # type: ignore[no-untyped-call]
                for _ in range(WARM_UP):
                    train_step(self.steps)
            torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):  # type: ignore[no-untyped-call]
            self.result = train_step(self.steps)

    def replay(self, steps: Sequence[Step]) -> StepResult:
        """Take a step on the batches of ``steps``; return its result, in memory of its own."""
        for captured, step in zip(self.steps, steps, strict=True):
            captured.batch.take(step.batch)
        self.graph.replay()
        result = self.result
        values = torch.stack([loss.float() for loss in result.losses.values()]).unbind()
        losses = dict(zip(result.losses, values, strict=True))
        if result.predicted is None or result.true is None:
            return StepResult(losses)
        return StepResult(losses, result.predicted.clone(), result.true.clone())
