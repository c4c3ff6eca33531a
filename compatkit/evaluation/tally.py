"""Count correct predictions of a head, restricted to common classes and unrestricted.

Recombination accuracy of Gygli et al. (2021), Sec. 4: only examples of common classes, argmax over the outputs of the
common classes. The unrestricted figure takes the argmax over all outputs on the same examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import torch
from torch import Tensor

OUTSIDE = -1
NOT_FINITE = -2


@attrs.define(eq=False)
class Tally:
    """Predictions of one head on one split, example by example.

    Predictions are compared with labels lazily, not per batch: with small batches the comparison would take longer
    than a small head.

    Attributes:
        columns: Head outputs of the common classes, ``(common,)``.
        ordered: Whether these are the first outputs of the head, in order.
        target: Index of each example's class in ``columns``, or ``OUTSIDE``, ``(n,)``.
        counted: Whether the example's class counts, ``(n,)``.
        best: Index in ``columns`` of the argmax over them, ``(n,)``; ``OUTSIDE`` before a prediction, ``NOT_FINITE``
            if an output was not finite.
        free: Output of the argmax over all, ``(n,)``.
    """

    columns: Tensor
    ordered: bool
    target: Tensor
    counted: Tensor
    best: Tensor
    free: Tensor
    _right: Tensor | None = attrs.field(default=None, init=False)

    @classmethod
    def start(cls, labels: Tensor, pairs: Iterable[tuple[int, int]], classes: int) -> Tally:
        """Return an empty tally.

        Args:
            labels: Class indices of the split, int64 ``(n,)``.
            pairs: Matching (class of the split, output of the head), each once.
            classes: Number of classes of the split; examples of those of ``pairs`` count.
        """
        common = torch.tensor(list(pairs), dtype=torch.int64).reshape(-1, 2)
        column_of_class = torch.full((classes,), OUTSIDE, dtype=torch.int64)
        column_of_class[common[:, 0]] = torch.arange(len(common))
        nothing = torch.full(labels.shape, OUTSIDE, dtype=torch.int64)
        target = column_of_class[labels]
        ordered = torch.equal(common[:, 1], torch.arange(len(common)))
        return cls(common[:, 1], ordered, target, target != OUTSIDE, nothing, nothing.clone())

    def empty(self) -> Tally:
        """Return an empty tally for the same examples and outputs."""
        nothing = torch.full_like(self.best, OUTSIDE)
        return attrs.evolve(self, best=nothing, free=nothing.clone())

    def move(self, device: str) -> None:
        """Move predictions to the device of the batches; to read figures, move them back to the CPU.

        Args:
            device: A device of torch.
        """
        self.columns, self.best, self.free = (
            value.to(device) for value in (self.columns, self.best, self.free)
        )

    def add(self, positions: Tensor, logits: Tensor) -> None:
        """Add the predictions of one batch; nothing waits for the device.

        Args:
            positions: Indices of the examples in the split, ``(batch,)``.
            logits: Outputs of the head, float32 ``(batch, outputs)``, on the device of the tally.
        """
        if not self.columns.numel():
            return
        free = logits.argmax(dim=1)
        all_columns = self.ordered and len(self.columns) == logits.shape[1]
        best = free if all_columns else logits[:, self.columns].argmax(dim=1)
        finite = torch.isfinite(logits)
        if logits.device.type != "cpu" or not finite.all():  # asking would wait for another device
            best, free = (torch.where(finite.all(dim=1), chosen, NOT_FINITE) for chosen in (best, free))
        self.best[positions], self.free[positions] = best, free
        self._right = None

    @property
    def restricted(self) -> Tensor:
        """Whether each example counts and is right by the argmax over ``columns``, bool ``(n,)``."""
        if self._right is None:  # cached: every other head of the row compares with the bound
            self._right = self.counted & (self.best == self.target)
        return self._right

    @property
    def unrestricted(self) -> Tensor:
        """Whether each example counts and is right by the argmax over all outputs, bool ``(n,)``."""
        if not self.columns.numel():
            return torch.zeros_like(self.counted)
        # Examples outside are compared with column 0, but do not count as right below.
        output = self.columns[self.target.clamp(min=0)]
        return self.counted & (self.free == output)

    @property
    def broken(self) -> int:
        """Number of counted examples with an output that is not finite; they are wrong."""
        return int((self.counted & (self.best == NOT_FINITE)).sum())

    @property
    def count(self) -> int:
        """Number of counted examples."""
        return int(self.counted.sum())

    def correct(self) -> tuple[int, int]:
        """Return the numbers of right examples, restricted and unrestricted."""
        return int(self.restricted.sum()), int(self.unrestricted.sum())

    def against(self, bound: Tally) -> tuple[int, int]:
        """Return the numbers of examples that only this head, and only ``bound``, gets right (restricted)."""
        own, other = self.restricted, bound.restricted
        return int((own & ~other).sum()), int((other & ~own).sum())


def chance_level(labels: Tensor, classes: Sequence[int]) -> float:
    """Return the share of the most frequent of ``classes`` among their examples; 0 without examples.

    Args:
        labels: Class indices of the split, int64 ``(n,)``.
        classes: Indices of the common classes.
    """
    counts = torch.bincount(labels, minlength=max(classes, default=0) + 1).tolist()
    among = [counts[index] for index in classes]
    return max(among) / sum(among) if sum(among) else 0.0
