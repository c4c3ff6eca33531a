"""Training images as bytes, on the device or in host memory: a batch is one gather and one normalization."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import attrs
import numpy as np
import torch
from torch import Tensor

from compatkit.contracts.contract import Data
from compatkit.data.dataset import Split
from compatkit.evaluation.preprocessing import affine
from compatkit.hooks import Batch
from compatkit.training.batches.sampler import (
    Augmentation,
    Sampler,
    StoreGrid,
    ViewFunction,
    gather,
    index_tables,
)
from compatkit.training.precision import Precision

if TYPE_CHECKING:
    from compatkit.data.transforms import Images

CHUNK = 64 * 2**20
"""Bytes of images per transfer to the device."""
INT32 = 2**31 - 1


class Views:
    """Computes normalized views of stored images; used by all sources of stored bytes."""

    def __init__(self, grid: StoreGrid, data: Data, precision: Precision) -> None:
        self.grid, self._last = grid, precision.channels_last
        self._shape = grid.height, grid.width, len(data.mean)
        device, width = torch.device(precision.device), grid.width if self._last else 0
        self._scale, self._shift = affine(data.mean, data.std, device, torch.float32, width)
        self.arrange(None)

    def arrange(self, further: ViewFunction | None) -> None:
        """Set the views that are computed besides the images themselves."""
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
            self._tables = index_tables(self.grid, self.further).to(starts)
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
    """Training images kept as bytes; a step's batch depends on nothing that came before.

    Attributes:
        batches_per_epoch: Number of batches per epoch.
        order: Which images make a batch.
    """

    def __init__(
        self, examples: Split, data: Data, order: Sampler, augmentation: Augmentation, precision: Precision
    ) -> None:
        self.batches_per_epoch = order.batches_per_epoch
        self.order, self._augmentation = order, augmentation
        self._device = torch.device(precision.device)
        images = cast("Images", examples.images)  # those of files come from another source
        self._grid = StoreGrid(images.shape[1], images.shape[2], augmentation.border)
        self._views, self._epoch = Views(self._grid, data, precision), -1
        self._images = torch.from_numpy(np.ascontiguousarray(images))
        self._labels = torch.from_numpy(np.ascontiguousarray(examples.labels))

    def arrange(self, further: ViewFunction | None) -> None:
        """See ``BatchSource``."""
        self._views.arrange(further)

    def ends_epoch(self, step: int) -> bool:
        """See ``BatchSource``."""
        return self.order.ends_epoch(step)

    def resume_at(self, step: int) -> None:
        """See ``BatchSource``; nothing to do."""

    def forget(self) -> None:
        """See ``BatchSource``."""
        self._epoch = -1
        self.order.restore(-1, torch.empty(0, dtype=torch.int64))

    def get_ready(self) -> None:
        """See ``BatchSource``; nothing to do."""

    def _draws(self, epoch: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return order, crops and flips of an epoch's images; see ``Augmentation``."""
        order, drawn = self.order.epoch(epoch), self._augmentation
        return order, drawn.crop_offsets(epoch, len(order), self._grid), drawn.flip_flags(epoch, len(order))

    def _to_device(self, value: Tensor) -> Tensor:
        """Return ``value`` on the run's device without waiting for it."""
        if self._device.type == "cuda":
            value = value.pin_memory()
        return value.to(self._device, non_blocking=True)


class Resident(Stored):
    """All images on the device; the draws of an epoch are sent before its first step."""

    def __init__(
        self, examples: Split, data: Data, order: Sampler, augmentation: Augmentation, precision: Precision
    ) -> None:
        super().__init__(examples, data, order, augmentation, precision)
        self._pixels = _stored(self._images, self._grid, self._device)
        self._images = self._pixels[self._grid.lead :].view(len(examples), -1)
        self._labels = self._labels.to(self._device)
        self._type = torch.int32 if len(self._pixels) <= INT32 else torch.int64
        self._drawn: list[tuple[Any, ...]] = []

    @staticmethod
    def needs(examples: Split, augmentation: Augmentation) -> int:
        """Return how many bytes of the device the images and labels take.

        Args:
            examples: Training images, in memory.
            augmentation: Crops need a border around each image.
        """
        images = cast("Images", examples.images)
        grid = StoreGrid(images.shape[1], images.shape[2], augmentation.border)
        return grid.pixels(len(examples)) * images.shape[3] + 8 * len(examples)

    def batch(self, step: int) -> Batch:
        """See ``BatchSource``; nothing here waits for the device."""
        epoch, number = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._drawn = epoch, self._draw(epoch)
        index, labels, starts, mirrored = self._drawn[number]
        if self._views.further is None and not self._augmentation.names:
            return Batch(self._views.normalized(self._images.index_select(0, index)), labels, index)
        return batch_of(self._views.of(self._pixels, starts, mirrored), labels, index)

    def _draw(self, epoch: int) -> list[tuple[Any, ...]]:
        """Return for each batch of an epoch: positions, labels, starts of the pixels, and which are mirrored."""
        order, shifts, mirrored = self._draws(epoch)
        index, starts = self._to_device(order), order * self._grid.image_stride
        starts = self._to_device((starts if shifts is None else starts + shifts).to(self._type))
        columns = [self._batches(each) for each in (index, self._labels.index_select(0, index), starts)]
        flips = (
            (None,) * self.batches_per_epoch if mirrored is None else self._batches(self._to_device(mirrored))
        )
        return list(zip(*columns, flips, strict=True))

    def _batches(self, drawn: Tensor) -> tuple[Tensor, ...]:
        """Return draws of an epoch, one tensor per batch."""
        return drawn.view(-1, self.order.batch_size)[:, self.order.share].unbind()

    def describe(self) -> str:
        """See ``BatchSource``."""
        return (
            f"{self.order.count:,} images on {self._device} ({self._pixels.numel() / 2**20:,.1f} MiB as "
            f"bytes), {self._augmentation}: one gather a batch"
        )

    def close(self) -> None:
        """See ``BatchSource``."""


def _stored(images: Tensor, grid: StoreGrid, device: torch.device) -> Tensor:
    """Return all pixels ``(pixels, channels)`` on the device, with their borders; transferred in chunks."""
    count, channels = len(images), images.shape[3]
    pixels = torch.zeros(grid.pixels(count), channels, dtype=torch.uint8, device=device)
    target, step = grid.image_view(pixels), max(1, CHUNK // (grid.image_stride * channels))
    for begin in range(0, count, step):
        target[begin : begin + step] = images[begin : begin + step]
    return pixels


AHEAD = 2
"""Batches that are prefetched."""


@attrs.frozen(eq=False)
class Fetched:
    """A batch's bytes, on the device or in transfer: complete images, before crops, flips and views.

    Attributes:
        images: uint8 ``(batch, height, width, channels)``.
        moved: Pixels of the store by which crops move, or None.
        mirrored: 1 for mirrored images, or None.
        arrived: Event that the device waits for before it reads them; None on a CPU.
    """

    images: Tensor
    labels: Tensor
    index: Tensor
    moved: Tensor | None
    mirrored: Tensor | None
    arrived: torch.cuda.Event | None


class Prefetched(Stored):
    """Images in host memory; complete images are transferred, then cropped, flipped and normalized on the device.

    Batches are bitwise those of ``Resident``: the same draws, the same gather, from a store of one batch.
    """

    def __init__(
        self,
        examples: Split,
        data: Data,
        order: Sampler,
        augmentation: Augmentation,
        precision: Precision,
        *,
        reason: str = "as asked",
    ) -> None:
        super().__init__(examples, data, order, augmentation, precision)
        self._reason, grid, channels = reason, self._grid, self._images.shape[3]
        self._store = torch.zeros(
            grid.pixels(order.local_batch_size), channels, dtype=torch.uint8, device=self._device
        )
        self._starts = torch.arange(order.local_batch_size, device=self._device) * grid.image_stride
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"images-{order.task}")
        self._waiting: dict[int, Future[Fetched]] = {}
        self._drawn: tuple[Tensor, Tensor | None, Tensor | None] | None = None

    def batch(self, step: int) -> Batch:
        """See ``BatchSource``."""
        end = step + 1 + AHEAD
        if self.order.choose is not None:  # plugins are called here, before the worker asks for the epoch
            if step not in self._waiting:
                self._finish_waiting()
            self.order.epoch(self.order.locate(step)[0])
            end = min(end, self.order.last_step(step) + 1)
        waiting = {
            number: self._waiting.get(number) or self._worker.submit(self._fetch, number)
            for number in range(step, end)
        }
        fetched = waiting.pop(step).result()
        self._waiting = waiting
        if fetched.arrived is not None:
            self._wait_for(fetched)
        self._grid.image_view(self._store).copy_(fetched.images)
        starts = self._starts if fetched.moved is None else self._starts + fetched.moved
        images = self._views.of(self._store, starts, fetched.mirrored)
        return batch_of(images, fetched.labels, fetched.index)

    def forget(self) -> None:
        """See ``BatchSource``."""
        self._finish_waiting()
        super().forget()

    def _finish_waiting(self) -> None:
        """Let the worker finish, and drop what it fetched."""
        for future in self._waiting.values():
            if not future.cancel():
                future.result()
        self._waiting = {}

    def _fetch(self, step: int) -> Fetched:
        """Gather a batch's images in host memory and send them; only this thread uses the order."""
        epoch, here = self.order.locate(step)
        if epoch != self._epoch or self._drawn is None:
            self._epoch, self._drawn = epoch, self._draws(epoch)
        order, *drawn = self._drawn
        index, (moved, mirrored) = order[here], (None if draw is None else draw[here] for draw in drawn)
        shape = len(index), *self._images.shape[1:]
        images = torch.empty(shape, dtype=torch.uint8, pin_memory=self._stream is not None)
        torch.index_select(self._images, 0, index, out=images)
        labels = self._labels.index_select(0, index)
        if self._stream is None:
            return Fetched(images, labels, index, moved, mirrored, None)
        with torch.cuda.stream(self._stream):
            tensors = images, labels, index, moved, mirrored
            sent = [None if tensor is None else self._to_device(tensor) for tensor in tensors]
            return Fetched(*sent, self._stream.record_event())  # type: ignore[arg-type]

    def _wait_for(self, fetched: Fetched) -> None:
        """Make the run's stream wait for the transfer, and keep its memory until then."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(fetched.arrived)  # type: ignore[arg-type]
        for value in (fetched.images, fetched.labels, fetched.index, fetched.moved, fetched.mirrored):
            if value is not None:
                value.record_stream(current)

    def describe(self) -> str:
        """See ``BatchSource``."""
        return (
            f"{self.order.count:,} images in host memory ({self._reason}), {self._augmentation}: a thread fetches "
            f"batches for {self._device} while a step computes"
        )

    def close(self) -> None:
        """See ``BatchSource``."""
        self._worker.shutdown(cancel_futures=True)
        self._waiting = {}
