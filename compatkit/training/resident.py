"""Training images that live on the device as uint8, and the order in which they come."""

from __future__ import annotations

import torch
from torch import Tensor

from compatkit.errors import DataError
from compatkit.training.randomness import generator


class Order:
    """The mini-batches of one task: a new permutation an epoch, drawn from (seed, task, epoch).

    An incomplete batch at the end of an epoch is dropped, so that shapes stay fixed.
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

    def at(self, step: int) -> Tensor:
        """Return the positions of the batch at ``step``, int64 ``(batch,)``."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._permutation, self._epoch = self.epoch(epoch), epoch
        return self._permutation[place * self.batch_size : (place + 1) * self.batch_size]

    def epoch(self, number: int) -> Tensor:
        """Return the positions of all images in the order of an epoch, int64 ``(count,)``."""
        draw = generator(self.seed, "order", self.task, number)
        return torch.randperm(self.count, generator=draw)


def augment(images: Tensor, names: tuple[str, ...], seed: int, padding: int = 4) -> Tensor:
    """Return ``images`` (uint8, ``(batch, c, h, w)``) cropped and flipped at random, by one gather.

    Args:
        images: A batch on any device.
        names: ``"crop"`` moves each image by up to ``padding`` pixels, filling with zeros; ``"flip"``
            mirrors half of them.
        seed: Of this batch; it alone decides what is drawn.
        padding: Largest shift in pixels.
    """
    if not names:
        return images
    count, _, height, width = images.shape
    draw = torch.Generator().manual_seed(seed)
    shift = torch.randint(-padding, padding + 1, (2, count), generator=draw) * int("crop" in names)
    mirrored = (torch.rand(count, generator=draw) < 0.5) & ("flip" in names)
    rows = torch.arange(height) + shift[0, :, None]
    columns = torch.arange(width) + shift[1, :, None]
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    device = images.device
    rows, columns = rows.clamp(0, height - 1).to(device), columns.clamp(0, width - 1).to(device)
    batch = torch.arange(count, device=device)[:, None, None]
    moved = images.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]]
    return (moved * inside.to(device)[..., None]).permute(0, 3, 1, 2)
