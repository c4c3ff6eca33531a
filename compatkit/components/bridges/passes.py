"""What networks give on images, kept while it fits into memory and made again where it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
from torch import Tensor

LIMIT = 2**30
"""Bytes that the features of one set of images may take before they are made again in every pass."""


@attrs.define(eq=False)
class Passes:
    """Batches of tensors, as often as they are asked for.

    Attributes:
        make: Runs the networks.
        limit: Bytes that are kept at most.
    """

    make: Callable[[], Iterator[tuple[Tensor, ...]]]
    limit: int = LIMIT
    _kept: list[tuple[Tensor, ...]] | None = attrs.field(init=False, default=None)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        if self._kept is not None:
            yield from self._kept
            return
        kept, size = list[tuple[Tensor, ...]](), 0
        for batch in self.make():
            size += sum(one.nbytes for one in batch)
            if size <= self.limit:
                kept.append(batch)
            else:
                kept.clear()
            yield batch
        if size <= self.limit:
            self._kept = kept

    @property
    def held(self) -> bool:
        """Whether all batches are in memory; True only after a whole pass."""
        return self._kept is not None

    def first(self) -> Iterator[Tensor]:
        """Yield the first tensor of each batch."""
        for batch in self:
            yield batch[0]
