"""Counting: which examples a head gets right, restricted to common classes and unrestricted.

The recombination accuracy of Gygli et al. 2021 (Sec. 4): examples of the common classes only, arg max over
the outputs of the common classes only. Beside it stands the arg max over all outputs, on the same examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import torch
from torch import Tensor

OUTSIDE = -1


@attrs.define(eq=False)
class Tally:
    """Right and wrong answers of one head on one split, example by example.

    Attributes:
        columns: Outputs of the head that count, ``(common,)``.
        place: For each example the position of its class in ``columns``, else ``OUTSIDE``, ``(n,)``.
        counted: Whether the example is of a class that counts, ``(n,)``.
        restricted: Right by the arg max over ``columns``, ``(n,)``.
        unrestricted: Right by the arg max over all outputs, ``(n,)``.
        broken: Examples that count whose outputs are not all finite; they are wrong.
    """

    columns: Tensor
    place: Tensor
    counted: Tensor
    restricted: Tensor
    unrestricted: Tensor
    broken: int = 0

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
        wrong = torch.zeros(labels.shape, dtype=torch.bool)
        return cls(columns, places[labels], counts[labels], wrong, wrong.clone())

    def add(self, positions: Tensor, logits: Tensor) -> None:
        """Count one batch.

        Args:
            positions: Of the examples in the split, ``(batch,)``.
            logits: Outputs of the head, float32 ``(batch, outputs)``, on the CPU.
        """
        place, counted = self.place[positions], self.counted[positions]
        finite = torch.isfinite(logits).all(dim=1)
        self.broken += int((counted & ~finite).sum())
        usable = counted & finite & (place != OUTSIDE)
        if self.columns.numel():
            # Examples without a place compare with column 0; ``usable`` keeps them wrong.
            target = self.columns[place.clamp(min=0)]
            self.restricted[positions] = usable & (logits[:, self.columns].argmax(dim=1) == place)
            self.unrestricted[positions] = usable & (logits.argmax(dim=1) == target)

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
    counts = [int((labels == one).sum()) for one in classes]
    return max(counts) / sum(counts) if sum(counts) else 0.0
