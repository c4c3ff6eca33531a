"""Batches of images that are decoded and augmented in worker processes, and normalized on the device.

The randomness of an image depends on (seed, task, epoch, image) alone, so batches are the same with any number of
workers, and a run can resume at any step.
"""

from __future__ import annotations

import copy
import signal
from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from compatkit.adapters.augmentation import ImageAugmentation
from compatkit.contracts.contract import Data
from compatkit.data.lazy import pixels_of
from compatkit.data.pixelcache import Pixels, decoded_once, fits, folder
from compatkit.data.split import Split
from compatkit.errors import CompatkitError
from compatkit.evaluation.preprocessing import fitting, normalize
from compatkit.hooks import Batch
from compatkit.training.batches.loaders import seed_all, seeded
from compatkit.training.batches.sampler import Sampler, ViewFunction
from compatkit.training.precision import Precision
from compatkit.training.randomness import seed_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from compatkit.data.transforms import Images

AHEAD = 4
"""Batches that each worker prefetches."""
Cache = Literal["auto", "off", "on"]
EpochPosition = tuple[int, int]
"""Epoch and position of an image."""


class _Augmented(Dataset[Any]):
    """Images by epoch and position; errors are returned, since raised ones lose their type between processes."""

    def __init__(
        self,
        examples: Split,
        augmentation: ImageAugmentation,
        shape: tuple[int, ...],
        seed: int,
        task: str,
        as_pixels: bool,
    ) -> None:
        self._examples, self._augmentation, self._shape = examples, augmentation, shape
        self._seed, self._task = seed, task
        self._as_pixels = as_pixels
        self._pixels: Pixels | None = None
        self._tried = False

    def decode_once(self) -> None:
        """Use the cache folder from now on, if the images can be cached."""
        if not self._tried:
            self._pixels, self._tried = decoded_once(self._examples), True

    def __getitem__(self, key: EpochPosition) -> Tensor | CompatkitError:
        epoch, position = key
        try:
            source = self._examples if self._pixels is None else self._pixels
            if not self._as_pixels:
                image: Image | Images = source.image(position)
            else:
                image = (
                    source.pixels(position)
                    if isinstance(source, Pixels)
                    else pixels_of(source.image(position))
                )
            seed = seed_of(self._seed, "augment", self._task, epoch, position)
            if get_worker_info() is None:
                with seeded(seed):
                    return self._augmented(image, position)
            seed_all(seed)  # states of a worker are used for nothing else; saving them takes .1 ms
            return self._augmented(image, position)
        except CompatkitError as error:
            return error

    def _augmented(self, image: Image | Images, position: int) -> Tensor:
        return self._augmentation(image, self._shape, self._examples.name_of(position))


class _Steps:
    """The images of each batch of some steps."""

    def __init__(self, order: Sampler, steps: Iterable[int]) -> None:
        self._order, self._steps = order, steps

    def __iter__(self) -> Iterator[list[EpochPosition]]:
        for step in self._steps:
            epoch, _ = self._order.locate(step)
            yield [(epoch, position) for position in self._order.at(step).tolist()]


class Decoded:
    """Images of files, or augmented one by one; see the module.

    Attributes:
        batches_per_epoch: Number of batches per epoch.
        order: Which images make a batch.
        shrinks: Whether images are scaled down, as for evaluation, before they are augmented.
        crops_by_torch: Whether crops of these are resized by torch instead of Pillow.
        jitters_by_matrix: Whether colors of these are jittered in one pass.
    """

    def __init__(
        self,
        examples: Split,
        data: Data,
        order: Sampler,
        augmentation: ImageAugmentation,
        precision: Precision,
        workers: int,
        cache: Cache = "off",
        steps: int = 0,
    ) -> None:
        """Prepare; the first batch starts the workers.

        Args:
            examples: Training images, of any sizes.
            data: Size, channels and normalization that the network takes.
            order: Which images make a batch.
            augmentation: What is done to each.
            precision: Device and memory layout.
            workers: Processes that decode; 0 decodes in this one.
            cache: Whether images are decoded once; ``"auto"`` where this changes no pixel and there is room.
            steps: Steps of the run; nothing is decoded ahead of its end.
        """
        self.batches_per_epoch = order.batches_per_epoch
        self.order, self._data, self._augmentation = order, data, augmentation
        self._precision, self._workers = precision, workers
        converted = fitting(examples, data) if augmentation.fitted else examples.converted(data.channels)
        self.shrinks = cache == "on" and examples.lazy and not augmentation.fitted
        if self.shrinks:
            interpolation, crop_pct = data.interpolation, data.crop_pct
            converted = converted.shrunk(data.size, interpolation=interpolation, crop_pct=crop_pct)
        self.crops_by_torch = self.shrinks and augmentation.of_pixels is not None
        self.jitters_by_matrix = self.crops_by_torch and augmentation.jitters_by_matrix
        reused = steps > order.batches_per_epoch and augmentation.fitted
        self._caches = examples.lazy and (cache == "on" or (cache == "auto" and reused and fits(converted)))
        shape = *data.size, len(data.mean)
        as_pixels = self.crops_by_torch
        self._images = _Augmented(converted, augmentation, shape, order.seed, order.task, as_pixels)
        self._labels = torch.from_numpy(examples.labels)
        self._step = 0
        self._stop = steps
        self._upcoming: Iterator[Tensor | CompatkitError] | None = None

    def arrange(self, further: ViewFunction | None) -> None:
        """See ``BatchSource``: extra views are computed from the batch."""

    def batch(self, step: int) -> Batch:
        """See ``BatchSource``.

        Raises:
            DataError: An image is damaged or gone.
            EnvironmentFailure: One cannot be read.
        """
        chosen = self.order.choose is not None and step % self.batches_per_epoch == 0
        if step != self._step or self._upcoming is None or step == self._stop or chosen:
            self.close()
            self._upcoming = self._begin(step)
        stacked = next(self._upcoming)
        self._step = step + 1
        if isinstance(stacked, CompatkitError):
            raise stacked
        device = torch.device(self._precision.device)
        index = self.order.at(step)
        if device.type == "cuda":
            stacked, index = stacked.pin_memory(), index.pin_memory()
        planes = stacked.to(device, non_blocking=True).permute(0, 3, 1, 2)
        pixels = normalize(planes.contiguous(memory_format=self._precision.memory_format), self._data)
        if self._augmentation.erasing is not None:
            epoch, _ = self.order.locate(step)
            for image, position in zip(pixels, index.tolist(), strict=True):  # each is changed in place
                with seeded(seed_of(self.order.seed, "erase", self.order.task, epoch, position)):
                    self._augmentation.erasing(image)
        labels = self._labels[index].to(device, non_blocking=True)
        return Batch(pixels, labels, index.to(device, non_blocking=True))

    def ends_epoch(self, step: int) -> bool:
        """See ``BatchSource``."""
        return self.order.ends_epoch(step)

    def resume_at(self, step: int) -> None:
        """See ``BatchSource``; nothing to do."""

    def describe(self) -> str:
        """See ``BatchSource``."""
        where = f"{self._workers} worker processes" if self._workers else "this process"
        once = f", decoded once into {folder()}" if self._caches else ""
        augmented = f"decoded and augmented ({self._augmentation.description})"
        return f"{self.order.count:,} images, {augmented} by {where}{once}"

    def forget(self) -> None:
        """See ``BatchSource``."""
        self.close()
        self.order.restore(-1, torch.empty(0, dtype=torch.int64))

    def get_ready(self) -> None:
        """See ``BatchSource``: decode all images into the cache folder, if they are cached."""
        if self._caches:
            self._images.decode_once()

    def close(self) -> None:
        """See ``BatchSource``."""
        self._upcoming = None

    def _begin(self, step: int) -> Iterator[Tensor | CompatkitError]:
        self.get_ready()
        steps = range(step, self._stop) if step < self._stop else count(step)
        if self.order.choose is not None:  # plugins are called here, and choose the next epoch when it begins
            self.order.epoch(self.order.locate(step)[0])
            steps = range(step, self.order.last_step(step) + 1)
        loader = DataLoader(
            self._images,
            batch_sampler=_Steps(copy.copy(self.order), steps),  # type: ignore[arg-type]
            num_workers=self._workers,
            collate_fn=_joined,
            prefetch_factor=AHEAD if self._workers else None,
            worker_init_fn=_begin_worker,
            generator=torch.Generator(),  # otherwise it would draw from the global one
        )
        return iter(loader)


def _joined(images: list[Tensor | CompatkitError]) -> Tensor | CompatkitError:
    """Stack images to a batch, or return the first error."""
    wrong = next((image for image in images if isinstance(image, CompatkitError)), None)
    return torch.stack(images) if wrong is None else wrong  # type: ignore[arg-type]


def _begin_worker(worker: int) -> None:
    """Ignore Ctrl-C: the run ends its workers after saving its state."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
