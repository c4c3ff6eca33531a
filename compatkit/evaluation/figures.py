"""Count which examples a head gets right, restricted to common classes and unrestricted.

The recombination accuracy of Gygli et al. 2021 (Sec. 4): examples of the common classes only, arg max over
the outputs of the common classes only. Beside it stands the arg max over all outputs, on the same examples.
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
    """Answers of one head on one split, example by example.

    Answers are compared with the labels when they are asked for, not batch by batch: with few images in a batch the
    comparison would take longer than a small head.

    Attributes:
        columns: Outputs of the head that count, ``(common,)``.
        place: For each example the position of its class in ``columns``, else ``OUTSIDE``, ``(n,)``.
        counted: Whether the example is of a class that counts, ``(n,)``.
        best: Position in ``columns`` of the arg max over them, ``(n,)``; ``OUTSIDE`` where nothing was answered,
            ``NOT_FINITE`` where not all outputs were finite.
        free: Output of the arg max over all, ``(n,)``.
    """

    columns: Tensor
    place: Tensor
    counted: Tensor
    best: Tensor
    free: Tensor
    _right: Tensor | None = attrs.field(default=None, init=False)

    @classmethod
    def start(
        cls,
        labels: Tensor,
        pairs: Iterable[tuple[int, int]],
        classes: int,
        *,
        counted: Iterable[int] | None = None,
    ) -> Tally:
        """Start with nothing counted.

        Args:
            labels: Class indices of the split, int64 ``(n,)``.
            pairs: Class of the split and output of the head that mean the same, each once.
            classes: Count of classes of the split.
            counted: Classes whose examples count; None takes those of ``pairs``. An example of a class that
                counts but has no output is wrong.
        """
        listed = list(pairs)
        places = torch.full((classes,), OUTSIDE, dtype=torch.int64)
        for position, (own, _) in enumerate(listed):
            places[own] = position
        counts = torch.zeros(classes, dtype=torch.bool)
        counts[[own for own, _ in listed] if counted is None else list(counted)] = True
        columns = torch.tensor([output for _, output in listed], dtype=torch.int64)
        nothing = torch.full(labels.shape, OUTSIDE, dtype=torch.int64)
        return cls(columns, places[labels], counts[labels], nothing, nothing.clone())

    def anew(self) -> Tally:
        """Return one for the same examples and outputs with nothing counted."""
        nothing = torch.full_like(self.best, OUTSIDE)
        return attrs.evolve(self, best=nothing, free=nothing.clone())

    def add(self, positions: Tensor, logits: Tensor) -> None:
        """Take the answers of one batch.

        Args:
            positions: Of the examples in the split, ``(batch,)``.
            logits: Outputs of the head, float32 ``(batch, outputs)``, on the CPU.
        """
        if not self.columns.numel():
            return
        free = logits.argmax(dim=1)
        whole = torch.equal(self.columns, torch.arange(logits.shape[1]))
        best = free if whole else logits[:, self.columns].argmax(dim=1)
        finite = torch.isfinite(logits)
        if not finite.all():
            best, free = (torch.where(finite.all(dim=1), one, NOT_FINITE) for one in (best, free))
        self.best[positions], self.free[positions] = best, free
        self._right = None

    @property
    def restricted(self) -> Tensor:
        """Whether an example counts and is right by the arg max over ``columns``, ``(n,)``."""
        if self._right is None:  # every other head asks for it, where this one gives the bound
            self._right = self.counted & (self.place != OUTSIDE) & (self.best == self.place)
        return self._right

    @property
    def unrestricted(self) -> Tensor:
        """Whether an example counts and is right by the arg max over all outputs, ``(n,)``."""
        if not self.columns.numel():
            return torch.zeros_like(self.counted)
        # Examples without a place are compared with column 0, and are wrong all the same.
        target = self.columns[self.place.clamp(min=0)]
        return self.counted & (self.place != OUTSIDE) & (self.free == target)

    @property
    def broken(self) -> int:
        """Examples that count whose outputs are not all finite; they are wrong."""
        return int((self.counted & (self.best == NOT_FINITE)).sum())

    @property
    def count(self) -> int:
        """Examples that count."""
        return int(self.counted.sum())

    def correct(self) -> tuple[int, int]:
        """Return how many are right, restricted and unrestricted."""
        return int(self.restricted.sum()), int(self.unrestricted.sum())

    def against(self, bound: Tally) -> tuple[int, int]:
        """Return how many examples only this head, and only ``bound``, gets right (restricted)."""
        return (
            int((self.restricted & ~bound.restricted).sum()),
            int((bound.restricted & ~self.restricted).sum()),
        )


def chance_level(labels: Tensor, classes: Sequence[int]) -> float:
    """Return the share of the most frequent of ``classes`` among their examples; 0 where there are none."""
    counts = torch.bincount(labels, minlength=max(classes, default=0) + 1).tolist()
    among = [counts[one] for one in classes]
    return max(among) / sum(among) if sum(among) else 0.0
