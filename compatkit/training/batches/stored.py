"""Training images as bytes on the device: a batch is one gather and one normalization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from compatkit.contracts.contract import Data
from compatkit.data.dataset import Split
from compatkit.evaluation.preprocessing import affine
from compatkit.hooks import Batch
from compatkit.training.batches.sampler import Augmentation, Further, Sampler, StoreGrid, gather, tables
from compatkit.training.precision import Precision

if TYPE_CHECKING:
    from compatkit.data.transforms import Images

PIECE = 64 * 2**20
"""Bytes of images that are sent to the device at once."""
INT32 = 2**31 - 1


class Views:
    """Makes normalized views of images that lie in a store."""

    def __init__(self, grid: StoreGrid, data: Data, precision: Precision) -> None:
        self.grid, self._last = grid, precision.channels_last
        self._shape = grid.height, grid.width, len(data.mean)
        device, width = torch.device(precision.device), grid.width if self._last else 0
        self._scale, self._shift = affine(data.mean, data.std, device, torch.float32, width)
        self.arrange(None)

    def arrange(self, further: Further | None) -> None:
        """Make these views besides the images themselves from now on."""
        self.further, self._tables = further, torch.empty(0)

    def of(self, pixels: Tensor, starts: Tensor, mirrored: Tensor | None) -> Tensor:
        """Return normalized views ``(views * batch, channels, height, width)`` of images; see ``gather``.

        Args:
            pixels: The store, uint8 ``(pixels, channels)``.
            starts: Offset of each image in the store, in pixels, ``(batch,)``.
            mirrored: 1 for images to mirror, else 0; None for none.

        Returns:
            float32: the images first, then each further view.
        """
        if not len(self._tables):
            self._tables = tables(self.grid, self.further).to(starts)
        return self.normalized(gather(pixels, self._tables, starts, mirrored))

    def normalized(self, pixels: Tensor) -> Tensor:
        """Return ``(n, channels, height, width)`` of bytes ``(n, height * width * channels)`` in the requested layout.

        Returns:
            float32.
        """
        if not self._last:
            planes = pixels.view(-1, *self._shape).permute(0, 3, 1, 2).contiguous().float()
            return torch.addcmul(self._shift, planes, self._scale, out=planes)
        rows = pixels.view(-1, len(self._scale)).float()
        torch.addcmul(self._shift, rows, self._scale, out=rows)
        return rows.view(-1, *self._shape).permute(0, 3, 1, 2)


def batch_of(images: Tensor, labels: Tensor, index: Tensor) -> Batch:
    """Return the batch of all views of some images, the images themselves first.

    Args:
        images: ``(views * batch, channels, height, width)``.
        labels: ``(batch,)``.
        index: Positions in the training images, ``(batch,)``.
    """
    if len(images) == len(labels):
        return Batch(images, labels, index)
    return Batch(images[: len(labels)], labels, index, images)


class Stored:
    """Training images kept as bytes on the device; a step's batch depends on nothing that came before.

    The draws of an epoch are sent before its first step.

    Attributes:
        per_epoch: Batches an epoch.
    """

    def __init__(
        self, examples: Split, data: Data, order: Sampler, augmentation: Augmentation, precision: Precision
    ) -> None:
        self.per_epoch = order.per_epoch
        self._order, self._augmentation = order, augmentation
        self._device = torch.device(precision.device)
        images = cast("Images", examples.images)  # those of files come from another source
        self._grid = StoreGrid(images.shape[1], images.shape[2], augmentation.border)
        self._views, self._epoch = Views(self._grid, data, precision), -1
        self._pixels = _stored(torch.from_numpy(np.ascontiguousarray(images)), self._grid, self._device)
        self._images = self._pixels[self._grid.lead :].view(len(examples), -1)
        self._labels = torch.from_numpy(np.ascontiguousarray(examples.labels)).to(self._device)
        self._type = torch.int32 if len(self._pixels) <= INT32 else torch.int64
        self._drawn: list[tuple[Any, ...]] = []

    def arrange(self, further: Further | None) -> None:
        """See ``BatchSource``."""
        self._views.arrange(further)

    def batch(self, step: int) -> Batch:
        """See ``BatchSource``; nothing here waits for the device."""
        epoch, number = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._drawn = epoch, self._draw(epoch)
        index, labels, starts, mirrored = self._drawn[number]
        if self._views.further is None and not self._augmentation.names:
            images = self._views.normalized(self._images.index_select(0, index))
        else:
            images = self._views.of(self._pixels, starts, mirrored)
        return batch_of(images, labels, index)

    def _draw(self, epoch: int) -> list[tuple[Any, ...]]:
        """Return for each batch of an epoch: positions, labels, starts of the pixels, and which are mirrored."""
        order, augmentation = self._order.epoch(epoch), self._augmentation
        moved = augmentation.moved(epoch, len(order), self._grid)
        mirrored = augmentation.mirrored(epoch, len(order))
        index, starts = self._sent(order), order * self._grid.area
        starts = self._sent((starts if moved is None else starts + moved).to(self._type))
        drawn = [self._cut(index), self._cut(self._labels.index_select(0, index)), self._cut(starts)]
        flips = (None,) * self.per_epoch if mirrored is None else self._cut(self._sent(mirrored))
        return list(zip(*drawn, flips, strict=True))

    def _cut(self, drawn: Tensor) -> tuple[Tensor, ...]:
        """Return draws of an epoch batch by batch."""
        return drawn.view(-1, self._order.batch_size)[:, self._order.share].unbind()

    def _sent(self, value: Tensor) -> Tensor:
        """Return ``value`` on the run's device without waiting for it."""
        if self._device.type == "cuda":
            value = value.pin_memory()
        return value.to(self._device, non_blocking=True)

    def ends_epoch(self, step: int) -> bool:
        """See ``BatchSource``."""
        return self._order.ends_epoch(step)

    def resume_at(self, step: int) -> None:
        """See ``BatchSource``; nothing to do."""

    def get_ready(self) -> None:
        """See ``BatchSource``; nothing to do."""

    def describe(self) -> str:
        """See ``BatchSource``."""
        return (
            f"{self._order.count:,} images on {self._device} ({self._pixels.numel() / 2**20:,.1f} MiB as "
            f"bytes), {self._augmentation}: one gather a batch"
        )

    def close(self) -> None:
        """See ``BatchSource``."""


def _stored(images: Tensor, grid: StoreGrid, device: torch.device) -> Tensor:
    """Return all pixels ``(pixels, channels)`` on the device, with their borders; sent piece by piece."""
    count, channels = len(images), images.shape[3]
    pixels = torch.zeros(grid.pixels(count), channels, dtype=torch.uint8, device=device)
    target, step = grid.within(pixels), max(1, PIECE // (grid.area * channels))
    for begin in range(0, count, step):
        target[begin : begin + step] = images[begin : begin + step]
    return pixels
