"""A whole step as a CUDA graph: forward and backward pass and optimisers, replayed on the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from compatkit.training.agreement import untouched
from compatkit.training.context import Batch, Step

if TYPE_CHECKING:
    from compatkit.training.lanes import Lane
    from compatkit.training.loop import Loop

WARM_UP = 3
"""Steps on a stream of their own before the capture, as torch asks for."""


class Captured:
    """The step of one task, captured once and replayed.

    Batches are copied into memory that stays, losses and answers out of it; gradients live in the graph's own pool. The
    learning rate is a tensor on the device that is filled before a replay.
    """

    def __init__(self, loop: Loop, lane: Lane, batches: Sequence[Batch]) -> None:
        """Capture; weights, statistics and moments are afterwards what they were, and where the graph will write.

        Args:
            loop: Before a step.
            lane: Of the task.
            batches: Of the step, one for each piece in which it is worked through.
        """
        self.batches = [Batch(one.images.clone(), one.labels.clone(), one.index.clone()) for one in batches]
        self.steps = [
            Step(loop.setup.seed, lane.task, 0, one, loop.setup.precision, piece=piece)
            for piece, one in enumerate(self.batches)
        ]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with untouched(loop), torch.cuda.stream(stream):  # type: ignore[no-untyped-call]
            for _ in range(WARM_UP):
                loop.descend(lane, self.steps, 0)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):  # type: ignore[no-untyped-call]
            self.terms, self.answers = loop.descend(lane, self.steps, 0)
        self.names = tuple(self.terms)

    def replay(self, batches: Sequence[Batch]) -> tuple[dict[str, Tensor], Tensor]:
        """Take a step on ``batches``; return its terms and answers, in memory of their own."""
        for mine, given in zip(self.batches, batches, strict=True):
            mine.images.copy_(given.images, non_blocking=True)
            mine.labels.copy_(given.labels, non_blocking=True)
            mine.index.copy_(given.index, non_blocking=True)
        self.graph.replay()
        values = torch.stack([self.terms[name] for name in self.names])
        return dict(zip(self.names, values.unbind(), strict=True)), self.answers.clone()
