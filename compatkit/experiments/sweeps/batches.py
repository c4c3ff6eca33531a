"""The batches of many runs at once, where all of them have the same images on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from compatkit.training.batches.stored import Resident


class Batches:
    """One task's batches of all members: each member's own order, crops and flips, gathered at once."""

    def __init__(self, sources: Sequence[Resident], batch_size: int) -> None:
        """Take the members' sources; the images are those of the first."""
        self._sources, self._size, self._epoch = sources, batch_size, -1
        self._drawn: tuple[Tensor, Tensor, Tensor, Tensor | None] | None = None

    def __len__(self) -> int:
        """Return how many members there are."""
        return len(self._sources)

    def at(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return images ``(members, batch, channels, height, width)``, labels and positions ``(members, batch)``."""
        first = self._sources[0]
        epoch, place = divmod(step, first.per_epoch)
        if self._drawn is None or epoch != self._epoch:
            self._epoch, self._drawn = epoch, self._draw(epoch)
        positions, classes, starts, mirrored = self._drawn
        index = positions[place]
        flipped = None if mirrored is None else mirrored[place].view(-1)
        images = first.images_at(index.view(-1), starts[place].view(-1), flipped)
        return images.unflatten(0, index.shape), classes[place], index

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return what is drawn for an epoch, each ``(batches, members, batch)``."""
        index, starts, mirrored = zip(*(one.drawn(epoch) for one in self._sources), strict=True)
        positions = self._cut(index)
        flips = [one for one in mirrored if one is not None]
        labels = self._sources[0].labels_at(positions.view(-1)).view_as(positions)
        return positions, labels, self._cut(starts), self._cut(flips) if flips else None

    def _cut(self, drawn: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(drawn)).unflatten(1, (-1, self._size)).transpose(0, 1).contiguous()
