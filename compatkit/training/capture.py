"""A whole step as a CUDA graph: forward and backward pass and optimisers, replayed on the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from compatkit.training.agreement import untouched
from compatkit.training.loss_history import Measured
from compatkit.training.step import Step

if TYPE_CHECKING:
    from compatkit.training.loop import Loop
    from compatkit.training.task_loop import Lane

WARM_UP = 3
"""Steps on a stream of their own before the capture, as torch asks for."""


class Captured:
    """The step of one task, captured once and replayed.

    Batches are copied into memory that stays, losses and answers out of it; gradients live in the graph's own pool. The
    learning rate is a tensor on the device that is filled before a replay.
    """

    def __init__(self, loop: Loop, lane: Lane, steps: Sequence[Step]) -> None:
        """Capture; weights, statistics and moments are afterwards what they were, and where the graph will write."""
        self.steps = [attrs.evolve(one, batch=one.batch.copied()) for one in steps]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with untouched(loop):
            with torch.cuda.stream(stream):  # type: ignore[no-untyped-call]
                for _ in range(WARM_UP):
                    loop.descend(lane, self.steps)
            torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):  # type: ignore[no-untyped-call]
            self.measured = loop.descend(lane, self.steps)

    def replay(self, steps: Sequence[Step]) -> Measured:
        """Take a step on the batches of ``steps``; return what it measured, in memory of its own."""
        for mine, one in zip(self.steps, steps, strict=True):
            mine.batch.take(one.batch)
        self.graph.replay()
        losses = {name: one for name, one in self.measured.items() if isinstance(one, Tensor)}
        values = torch.stack([one.float() for one in losses.values()]).unbind()
        answers = {
            name: (one[0].clone(), one[1].clone())
            for name, one in self.measured.items()
            if not isinstance(one, Tensor)
        }
        return {**dict(zip(losses, values, strict=True)), **answers}
