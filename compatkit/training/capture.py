"""A whole step as a CUDA graph: forward and backward pass and optimisers, replayed on the same memory."""

from __future__ import annotations

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

    def __init__(self, loop: Loop, lane: Lane, batch: Batch) -> None:
        """Capture; weights, statistics and moments are afterwards what they were, and where the graph will write."""
        self.batch = Batch(batch.images.clone(), batch.labels.clone(), batch.index.clone())
        self.step = Step(loop.setup.seed, lane.task, 0, self.batch, loop.setup.precision)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with untouched(loop), torch.cuda.stream(stream):  # type: ignore[no-untyped-call]
            for _ in range(WARM_UP):
                loop.descend(lane, self.step, 0)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):  # type: ignore[no-untyped-call]
            self.terms, self.answers = loop.descend(lane, self.step, 0)
        self.names = tuple(self.terms)

    def replay(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Take a step on ``batch``; return its terms and answers, in memory of their own."""
        self.batch.images.copy_(batch.images, non_blocking=True)
        self.batch.labels.copy_(batch.labels, non_blocking=True)
        self.batch.index.copy_(batch.index, non_blocking=True)
        self.graph.replay()
        values = torch.stack([self.terms[name] for name in self.names])
        return dict(zip(self.names, values.unbind(), strict=True)), self.answers.clone()
