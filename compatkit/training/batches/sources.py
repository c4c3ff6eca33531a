"""Sources of a task's batches, and the choice of one: images on the device, in host memory, or from a loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, cast

import attrs
import torch

from compatkit.adapters.augmentation import image_augmentation
from compatkit.errors import EnvironmentFailure, UsageError
from compatkit.foundation.threads import processors
from compatkit.hooks import Batch
from compatkit.training.batches.decoded import Cache, Decoded
from compatkit.training.batches.loaders import Streamed, loader_of
from compatkit.training.batches.sampler import Augmentation, Choose, Sampler, ViewFunction
from compatkit.training.batches.stored import Prefetched, Resident
from compatkit.training.out_of_memory import is_out_of_memory
from compatkit.training.precision import Precision
from compatkit.training.task_state import TaskState

ImageStorage = Literal["auto", "resident", "prefetched"]
IMAGE_STORAGE: tuple[ImageStorage, ...] = ("auto", "resident", "prefetched")


class BatchSource(Protocol):
    """Gives a task's batches; a step's batch depends on the seed, the task and the step alone.

    Attributes:
        batches_per_epoch: Batches of a pass through the data; None if unknown.
        order: Which images make a batch; None for a loader.
    """

    @property
    def order(self) -> Sampler | None:
        """See the class."""
        ...

    @property
    def batches_per_epoch(self) -> int | None:
        """See the class."""
        ...

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, on the device of the run."""
        ...

    def arrange(self, further: ViewFunction | None) -> None:
        """Set the further views that batches contain from now on (``Batch.stacked``), if the source supports them."""
        ...

    def ends_epoch(self, step: int) -> bool:
        """Return whether the step's batch is the last of a pass through the data; called after ``batch``."""
        ...

    def resume_at(self, step: int) -> None:
        """Prepare for ``step`` in a run that resumes from a checkpoint.

        Raises:
            TrainingError: The batches from there on cannot be guaranteed to be those of an uninterrupted run.
        """
        ...

    def forget(self) -> None:
        """Drop what was drawn and fetched, so that the next batch is made anew."""
        ...

    def describe(self) -> str:
        """Return a description of where the images are and how they get to the device."""
        ...

    def get_ready(self) -> None:
        """Do what is done once before the first batch, and may take long."""
        ...

    def close(self) -> None:
        """Stop threads and iterators."""
        ...


@attrs.frozen
class ImagePlacement:
    """Where training images are kept.

    Attributes:
        where: ``"resident"`` on the device, ``"prefetched"`` in host memory, ``"auto"`` by size.
        share: Share of the device's free memory that the images of one task may take under ``"auto"``.
        workers: Processes that decode and augment images one by one; None takes one a processor, eight at most.
        cache: Whether these are decoded once.
        steps: Steps of the run.
    """

    where: ImageStorage = "auto"
    share: float = 0.5
    workers: int | None = None
    cache: Cache = "off"
    steps: int = 0

    def source(
        self,
        state: TaskState,
        seed: int,
        batch_size: int,
        precision: Precision,
        share: slice = slice(None),
        choose: Choose | None = None,
    ) -> BatchSource:
        """Return the source of a task's batches, or of a share of each batch.

        Args:
            state: State of the task.
            seed: Seed of the run.
            batch_size: Images of a step, on all processes.
            precision: Device and memory layout of the batches.
            share: The part of each batch that this process takes.
            choose: Function of plugins that replaces the order of an epoch, or None; never with a loader.

        Raises:
            DataError: There are fewer images than in a batch.
            EnvironmentFailure: The memory does not hold the images.
            UsageError: The images come from a loader and were asked to be elsewhere.
        """
        try:
            return self._source(state, seed, batch_size, precision, share, choose)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            count, (height, width) = len(state.examples), state.data.size
            raise EnvironmentFailure(
                f"The memory of {precision.device} is too small for the training images of task {state.name!r} "
                f"({count:,} of {height}x{width} pixels, {count * height * width * len(state.data.mean) / 2**20:,.0f} "
                f"MiB): {error}. Use Trainer(image_storage='prefetched'), a subset of the data set, or a Task.loader.",
                subject=state.name,
            ) from error

    def _source(
        self,
        state: TaskState,
        seed: int,
        batch_size: int,
        precision: Precision,
        share: slice,
        choose: Choose | None,
    ) -> BatchSource:
        task, device = state.task, torch.device(precision.device)
        if task.loader is not None:
            if self.where != "auto":
                raise UsageError(
                    f"Task {task.name!r} has a loader, so its images cannot be {self.where}. Set the trainer's "
                    "image_storage='auto', or leave the loader out."
                )
            loader = task.loader
            if isinstance(loader, str | Mapping):
                loader = loader_of(loader, task.data.train, state.data, batch_size)
            return Streamed(loader, state.data, task.name, seed, batch_size, precision, share)
        order = Sampler(len(state.examples), batch_size, seed, task.name, share, choose)
        if task.data.train.lazy or not task.moves_pixels:
            if self.where != "auto":
                raise UsageError(
                    f"The images of task {task.name!r} are decoded or augmented one by one and cannot be "
                    f"{self.where}. Set the trainer's image_storage='auto'."
                )
            workers = min(8, processors()) if self.workers is None else self.workers
            augmentation = image_augmentation(task.augment, state.data)
            arguments = task.data.train, state.data, order, augmentation, precision, workers
            return Decoded(*arguments, self.cache, self.steps)
        crops = Augmentation(cast("tuple[str, ...]", task.augment), seed, task.name)
        arguments = state.examples, state.data, order, crops, precision
        if self.where != "auto":
            return Resident(*arguments) if self.where == "resident" else Prefetched(*arguments)
        if device.type != "cuda":
            return Resident(*arguments)  # the device's memory is the host's
        free, _ = torch.cuda.mem_get_info(device)
        needed = Resident.needs(state.examples, crops)
        if needed <= self.share * free:
            return Resident(*arguments)
        sizes = f"{needed / 2**20:,.0f} MiB, more than {self.share:.0%} of {free / 2**20:,.0f} free"
        return Prefetched(*arguments, reason=sizes)
