"""The order in which training images come: a permutation an epoch, drawn before its first step."""

from __future__ import annotations

import torch
from torch import Tensor

from compatkit.errors import DataError
from compatkit.training.randomness import generator


class Order:
    """The mini-batches of one task: a new permutation an epoch, drawn from (seed, task, epoch).

    An incomplete batch at the end of an epoch is dropped, so that shapes stay fixed.

    Attributes:
        per_epoch: Batches an epoch.
        share: Which images of a batch are wanted here: all, or those of one of several processes.
        wanted: How many these are.
    """

    def __init__(self, count: int, batch_size: int, seed: int, task: str, share: slice = slice(None)) -> None:
        if count < batch_size:
            raise DataError(
                f"Task {task!r} has {count} training images, fewer than a batch of {batch_size}; "
                f"set batch_size to {count} or less."
            )
        self.count, self.batch_size, self.seed, self.task = count, batch_size, seed, task
        self.per_epoch, self.share = count // batch_size, share
        self._first, behind, _ = share.indices(batch_size)
        self.wanted = behind - self._first
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def epoch(self, number: int) -> Tensor:
        """Return the positions of all batches of an epoch, one after the other: int64, on the CPU."""
        if number != self._epoch:
            draw = generator(self.seed, "order", self.task, number)
            self._permutation = torch.randperm(self.count, generator=draw)[: self.per_epoch * self.batch_size]
            self._epoch = number
        return self._permutation

    def place(self, step: int) -> tuple[int, slice]:
        """Return the epoch of a step, and where in it what is wanted of the step's batch stands."""
        epoch, number = divmod(step, self.per_epoch)
        first = number * self.batch_size + self._first
        return epoch, slice(first, first + self.wanted)

    def at(self, step: int) -> Tensor:
        """Return the positions of what is wanted of the batch at ``step``, int64 ``(wanted,)``."""
        epoch, here = self.place(step)
        return self.epoch(epoch)[here]

    def ends_epoch(self, step: int) -> bool:
        """Return whether ``step`` is the last of its epoch."""
        return (step + 1) % self.per_epoch == 0
