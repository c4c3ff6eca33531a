"""Training images as bytes, on the device or in host memory: a batch is one gather and one normalisation."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import attrs
import numpy as np
import torch
from torch import Tensor

from compatkit.contracts.contract import Data
from compatkit.data.dataset import Split
from compatkit.evaluation.preprocessing import affine
from compatkit.hooks import Batch
from compatkit.training.batches.sampler import Augmentation, Further, Sampler, StoreGrid, gather, tables
from compatkit.training.precision import Precision

PIECE = 64 * 2**20
"""Bytes of images that are sent to the device at once."""
INT32 = 2**31 - 1


class Views:
    """Makes normalised views of images that lie in a store; shared by all sources that keep bytes."""

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
        """Return normalised views ``(views * batch, channels, height, width)`` of images; see ``gather``."""
        if not len(self._tables):
            self._tables = tables(self.grid, self.further).to(starts)
        return self.normalised(gather(pixels, self._tables, starts, mirrored))

    def normalised(self, pixels: Tensor) -> Tensor:
        """Return ``(n, channels, height, width)`` of bytes ``(n, height * width * channels)``, laid out as asked."""
        if not self._last:
            planes = pixels.view(-1, *self._shape).permute(0, 3, 1, 2).contiguous().float()
            return torch.addcmul(self._shift, planes, self._scale, out=planes)
        rows = pixels.view(-1, len(self._scale)).float()
        torch.addcmul(self._shift, rows, self._scale, out=rows)
        return rows.view(-1, *self._shape).permute(0, 3, 1, 2)


def batch_of(images: Tensor, labels: Tensor, index: Tensor) -> Batch:
    """Return the batch of all views of some images, the images themselves first."""
    if len(images) == len(labels):
        return Batch(images, labels, index)
    return Batch(images[: len(labels)], labels, index, images)


def sent(value: Tensor, precision: Precision) -> Tensor:
    """Return ``value`` on the run's device without waiting for it."""
    device = torch.device(precision.device)
    if device.type == "cuda":
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


class Resident:
    """All images on the device; what an epoch draws is there before its first step."""

    def __init__(
        self, examples: Split, data: Data, order: Sampler, augmentation: Augmentation, precision: Precision
    ) -> None:
        self.per_epoch = order.per_epoch
        self._order, self._augmentation, self._precision = order, augmentation, precision
        grid = StoreGrid(*examples.size, augmentation.border)
        self._views, self._epoch = Views(grid, data, precision), -1
        self._pixels = _stored(examples, grid, precision.device)
        self._images = self._pixels[grid.lead :].view(len(examples), -1)
        self._labels = torch.from_numpy(np.ascontiguousarray(examples.labels)).to(precision.device)
        self._type = torch.int32 if len(self._pixels) <= INT32 else torch.int64
        self._index: tuple[Tensor, ...] = ()
        self._drawn_labels, self._starts = self._index, self._index
        self._mirrored: tuple[Tensor, ...] | None = None
        self.arrange(None)

    @staticmethod
    def needs(examples: Split, augmentation: Augmentation) -> int:
        """Return how many bytes of the device the images and labels take."""
        grid = StoreGrid(*examples.size, augmentation.border)
        return grid.pixels(len(examples)) * examples.images.shape[3] + 8 * len(examples)

    def arrange(self, further: Further | None) -> None:
        """See ``BatchSource``."""
        self._views.arrange(further)
        self._whole = further is None and not self._augmentation.names

    def batch(self, step: int) -> Batch:
        """See ``BatchSource``; nothing here waits for the device."""
        epoch, number = divmod(step, self._order.per_epoch)
        if epoch != self._epoch:
            self._draw(epoch)
        index, labels = self._index[number], self._drawn_labels[number]
        mirrored = None if self._mirrored is None else self._mirrored[number]
        return batch_of(self.images_at(index, self._starts[number], mirrored), labels, index)

    def _draw(self, epoch: int) -> None:
        index, starts, mirrored = self.drawn(epoch)
        self._epoch, self._index, self._starts = epoch, self._cut(index), self._cut(starts)
        self._drawn_labels = self._cut(self.labels_at(index))
        self._mirrored = None if mirrored is None else self._cut(mirrored)

    def drawn(self, epoch: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return what is drawn for the images of an epoch: positions, where their pixels start, who is mirrored."""
        order, grid, drawn = self._order.epoch(epoch), self._views.grid, self._augmentation
        moved, mirrored = drawn.moved(epoch, len(order), grid), drawn.mirrored(epoch, len(order))
        starts = order * grid.area if moved is None else order * grid.area + moved
        return (
            sent(order, self._precision),
            sent(starts.to(self._type), self._precision),
            None if mirrored is None else sent(mirrored, self._precision),
        )

    def labels_at(self, index: Tensor) -> Tensor:
        """Return the classes of images, by their positions."""
        return self._labels.index_select(0, index)

    def images_at(self, index: Tensor, starts: Tensor, mirrored: Tensor | None) -> Tensor:
        """Return normalised images, and their further views behind them; arguments as ``drawn`` gives them."""
        if self._whole:
            return self._views.normalised(self._images.index_select(0, index))
        return self._views.of(self._pixels, starts, mirrored)

    def _cut(self, drawn: Tensor) -> tuple[Tensor, ...]:
        """Return what was drawn for an epoch batch by batch."""
        return drawn.view(-1, self._order.batch_size)[:, self._order.share].unbind()

    def ends_epoch(self, step: int) -> bool:
        """See ``BatchSource``."""
        return self._order.ends_epoch(step)

    def go_on_from(self, step: int) -> None:
        """See ``BatchSource``: a step's batch depends on nothing that came before."""

    def describe(self) -> str:
        """See ``BatchSource``."""
        return (
            f"{self._order.count:,} images on {self._precision.device} ({self._pixels.numel() / 2**20:,.1f} MiB as "
            f"bytes), {self._augmentation}: one gather a batch"
        )

    def close(self) -> None:
        """See ``BatchSource``."""


def _stored(examples: Split, grid: StoreGrid, device: str) -> Tensor:
    """Return all pixels ``(pixels, channels)`` on the device, with their borders; sent piece by piece."""
    count, channels = len(examples), examples.images.shape[3]
    pixels = torch.zeros(grid.pixels(count), channels, dtype=torch.uint8, device=device)
    images, step = grid.within(pixels), max(1, PIECE // (grid.area * channels))
    for begin in range(0, count, step):
        images[begin : begin + step] = torch.from_numpy(
            np.ascontiguousarray(examples.images[begin : begin + step])
        )
    return pixels


AHEAD = 2
"""Batches that are fetched before they are asked for."""


@attrs.frozen(eq=False)
class Fetched:
    """A batch's bytes on the device, or on their way: whole images, not yet cropped, flipped or turned.

    Attributes:
        images: uint8 ``(batch, height, width, channels)``.
        moved: Pixels of the store by which crops move, or None.
        mirrored: 1 for mirrored images, or None.
        arrived: What the device waits for before it reads them; None where nothing is sent.
    """

    images: Tensor
    labels: Tensor
    index: Tensor
    moved: Tensor | None
    mirrored: Tensor | None
    arrived: torch.cuda.Event | None


class Prefetched:
    """Images in host memory; whole images are sent, and cropped, flipped, turned and normalised on the device.

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
        self.per_epoch = order.per_epoch
        self._order, self._augmentation, self._reason = order, augmentation, reason
        self._device = torch.device(precision.device)
        self._images = torch.from_numpy(np.ascontiguousarray(examples.images))
        self._labels = torch.from_numpy(np.ascontiguousarray(examples.labels))
        grid = StoreGrid(*examples.size, augmentation.border)
        self._views, channels = Views(grid, data, precision), examples.images.shape[3]
        self._store = torch.zeros(grid.pixels(order.wanted), channels, dtype=torch.uint8, device=self._device)
        self._starts = torch.arange(order.wanted, device=self._device) * grid.area
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"images-{order.task}")
        self._waiting: dict[int, Future[Fetched]] = {}
        self._epoch, self._drawn = -1, (None, None)

    def arrange(self, further: Further | None) -> None:
        """See ``BatchSource``."""
        self._views.arrange(further)

    def batch(self, step: int) -> Batch:
        """See ``BatchSource``."""
        waiting = {
            number: self._waiting.get(number) or self._worker.submit(self._fetch, number)
            for number in range(step, step + 1 + AHEAD)
        }
        fetched = waiting.pop(step).result()
        self._waiting = waiting
        if fetched.arrived is not None:
            self._take_over(fetched)
        self._views.grid.within(self._store).copy_(fetched.images)
        starts = self._starts if fetched.moved is None else self._starts + fetched.moved
        images = self._views.of(self._store, starts, fetched.mirrored)
        return batch_of(images, fetched.labels, fetched.index)

    def _fetch(self, step: int) -> Fetched:
        """Gather a batch's images in host memory and send them; runs in the thread, and alone uses the order."""
        epoch, here = self._order.place(step)
        order = self._order.epoch(epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            drawn, count = self._augmentation, len(order)
            self._drawn = drawn.moved(epoch, count, self._views.grid), drawn.mirrored(epoch, count)
        index, (moved, mirrored) = order[here], (None if one is None else one[here] for one in self._drawn)
        shape = len(index), *self._images.shape[1:]
        images = torch.empty(shape, dtype=torch.uint8, pin_memory=self._stream is not None)
        torch.index_select(self._images, 0, index, out=images)
        labels = self._labels.index_select(0, index)
        if self._stream is None:
            return Fetched(images, labels, index, moved, mirrored, None)
        with torch.cuda.stream(self._stream):
            found = [self._send(one) for one in (images, labels, index, moved, mirrored)]
            return Fetched(*found, self._stream.record_event())  # type: ignore[arg-type]

    def _send(self, value: Tensor | None) -> Tensor | None:
        return None if value is None else value.pin_memory().to(self._device, non_blocking=True)

    def _take_over(self, fetched: Fetched) -> None:
        """Let the run's stream wait for what the other one sends, and keep its memory until then."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(fetched.arrived)  # type: ignore[arg-type]
        for value in (fetched.images, fetched.labels, fetched.index, fetched.moved, fetched.mirrored):
            if value is not None:
                value.record_stream(current)

    def ends_epoch(self, step: int) -> bool:
        """See ``BatchSource``."""
        return self._order.ends_epoch(step)

    def go_on_from(self, step: int) -> None:
        """See ``BatchSource``: a step's batch depends on nothing that came before."""

    def describe(self) -> str:
        """See ``BatchSource``."""
        return (
            f"{self._order.count:,} images in host memory ({self._reason}), {self._augmentation}: a thread fetches "
            f"batches for {self._device} while a step computes"
        )

    def close(self) -> None:
        """See ``BatchSource``."""
        self._worker.shutdown(cancel_futures=True)
        self._waiting = {}
