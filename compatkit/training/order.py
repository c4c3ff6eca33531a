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
    """

    def __init__(self, count: int, batch_size: int, seed: int, task: str) -> None:
        if count < batch_size:
            raise DataError(
                f"Task {task!r} has {count} training images, fewer than a batch of {batch_size}; "
                f"set batch_size to {count} or less."
            )
        self.count, self.batch_size, self.seed, self.task = count, batch_size, seed, task
        self.per_epoch = count // batch_size
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
        """Return the epoch of a step, and where in it the step's batch stands."""
        epoch, number = divmod(step, self.per_epoch)
        return epoch, slice(number * self.batch_size, (number + 1) * self.batch_size)

    def at(self, step: int) -> Tensor:
        """Return the positions of the batch at ``step``, int64 ``(batch,)``."""
        epoch, here = self.place(step)
        return self.epoch(epoch)[here]

    def ends_epoch(self, step: int) -> bool:
        """Return whether ``step`` is the last of its epoch."""
        return (step + 1) % self.per_epoch == 0
