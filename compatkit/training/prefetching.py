"""Training images that stay in host memory: the next batch is fetched by a thread while a step computes."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import attrs
import numpy as np
import torch
from torch import Tensor

from compatkit.contracts.contract import Data
from compatkit.data.dataset import Split
from compatkit.training.augmenting import Augmentation, Further, Grid
from compatkit.training.order import Order
from compatkit.training.precision import Precision
from compatkit.training.resident import Views, batch_of
from compatkit.training.step import Batch

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
        order: Order,
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
        grid = Grid(*examples.size, augmentation.border)
        self._views, channels = Views(grid, data, precision), examples.images.shape[3]
        self._store = torch.zeros(grid.pixels(order.wanted), channels, dtype=torch.uint8, device=self._device)
        self._starts = torch.arange(order.wanted, device=self._device) * grid.area
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"images-{order.task}")
        self._waiting: dict[int, Future[Fetched]] = {}
        self._epoch, self._drawn = -1, (None, None)

    def arrange(self, further: Further | None) -> None:
        """See ``Source``."""
        self._views.arrange(further)

    def batch(self, step: int) -> Batch:
        """See ``Source``."""
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
        """See ``Source``."""
        return self._order.ends_epoch(step)

    def go_on_from(self, step: int) -> None:
        """See ``Source``: a step's batch depends on nothing that came before."""

    def describe(self) -> str:
        """See ``Source``."""
        return (
            f"{self._order.count:,} images in host memory ({self._reason}), {self._augmentation}: a thread fetches "
            f"batches for {self._device} while a step computes"
        )

    def close(self) -> None:
        """See ``Source``."""
        self._worker.shutdown(cancel_futures=True)
        self._waiting = {}
