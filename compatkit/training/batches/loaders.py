"""Batches from a user's loader, for data that is not an array of bytes: streams, own augmentation.

A loader's batches can be repeated if its random numbers come from generators that can be seeded: its own, and the
global ones of torch, numpy and Python. All are seeded before each pass and each batch, and restored afterwards.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from compatkit.contracts.contract import Data
from compatkit.contracts.labels import label
from compatkit.data.split import Split
from compatkit.errors import DataError, EnvironmentFailure, TrainingError, type_of
from compatkit.evaluation.preprocessing import normalize
from compatkit.hooks import Batch
from compatkit.plugins.discovery import find
from compatkit.training.batches.sampler import ViewFunction
from compatkit.training.precision import Precision
from compatkit.training.randomness import seed_of

Pair = tuple[Tensor, Tensor]
NOT_FINITE = "hold numbers that are not finite"
CHECKED_BATCHES = 3
"""Batches at the start of a run whose values are checked."""


def unrepeatable(loader: Iterable[Any]) -> str | None:
    """Return why a pass through ``loader`` cannot be repeated; None if it can."""
    if not isinstance(loader, DataLoader):
        return "it is not a torch DataLoader, so it cannot be seeded"
    if isinstance(loader.dataset, IterableDataset):
        return "its data set is a stream, which may give other images the next time"
    if loader.num_workers and loader.persistent_workers:
        return "its workers persist from pass to pass, with random states that cannot be set"
    return None


def loader_of(loader: str | Mapping[str, Any], split: Split, data: Data, batch_size: int) -> Iterable[Any]:
    """Return the loader of a plugin for the images of a task.

    Args:
        loader: Name of the loader, or a table of ``name`` and settings.
        split: Training images.
        data: Preprocessing of the network.
        batch_size: Images of a batch.

    Raises:
        UnknownName: There is none of that name.
        PluginError: Its factory fails, lacks a setting, or returns something that cannot be iterated again.
    """
    settings = {"name": loader} if isinstance(loader, str) else dict(loader)
    offer = find("loaders", settings.pop("name"))
    instance = offer.make({"split": split, "data": data, "batch_size": batch_size, **settings})
    if not isinstance(instance, Iterable) or isinstance(instance, Iterator):
        raise offer.owner.error(
            f"its factory returned {type_of(instance)}; expected a DataLoader, or another iterable that can be "
            "iterated again for each pass."
        )
    return instance


def check_order(loader: Iterable[Any], data: Data, task: str) -> None:
    """Compare a loader's classes with a task's, where its data set says what they are (``class_to_idx``).

    Args:
        loader: The user's loader.
        data: Classes and preprocessing of the task.
        task: Its name, for the message.

    Raises:
        DataError: They are the same classes in another order.
    """
    images: Any = getattr(loader, "dataset", None)
    while images is not None and not hasattr(images, "class_to_idx"):
        images = getattr(images, "dataset", None)  # of a subset
    if images is None:
        return
    names = [label(str(name)).name for name in sorted(images.class_to_idx, key=images.class_to_idx.get)]
    own_names = [own_label.name for own_label in data.labels or ()]
    if names != own_names and sorted(names) == sorted(own_names):
        pairs = enumerate(zip(names, own_names, strict=True))
        number, (name, own) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
        raise DataError(
            f"Class {number} of the loader of task {task!r} is {name!r}, that of the task's data {own!r}: the same "
            "classes in another order. Reorder one of them.",
            subject=name,
        )


def implausible(images: Tensor, data: Data) -> str | None:
    """Return why numbers do not look like images normalized as a contract says; None if they do.

    Args:
        images: ``(N, C, H, W)``.
        data: Mean and standard deviation of each channel.
    """
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (data.mean, data.std))
    lowest, highest = float((-mean / std).min()), float(((1 - mean) / std).max())
    low, high = (float(bound) for bound in images.aminmax())
    width = highest - lowest
    if not math.isfinite(low) or not math.isfinite(high):
        return NOT_FINITE
    if high > highest + 2 * width or low < lowest - 2 * width:
        return f"range from {low:.3g} to {high:.3g}, like bytes"
    if lowest < -0.5 and low >= 0 and high <= 1:
        return f"range from {low:.3g} to {high:.3g}, like images that are scaled but not normalized"
    return None


class Streamed:
    """The batches of a loader, in its own order; passes follow each other.

    Images are bytes, normalized here, or floating-point numbers that are normalized already. An incomplete batch
    ends a pass. The next batch is fetched along with each, to know where a pass ends. With several processes, each
    iterates over a loader of its own and takes a share of every batch.

    Attributes:
        order: None: the loader decides.
    """

    order: None = None

    def __init__(
        self,
        loader: Iterable[Any],
        data: Data,
        task: str,
        seed: int,
        batch_size: int,
        precision: Precision,
        share: slice = slice(None),
    ) -> None:
        self._loader, self._data, self._task, self._precision = loader, data, task, precision
        self._seed, self._batch_size, self._share = seed, batch_size, share
        self._passed, self._taken, self._step = -1, 0, 0
        self._iterator: Iterator[Any] | None = None
        self._upcoming: Pair | None = None
        self._checked_batches = 0
        check_order(loader, data, task)

    def arrange(self, further: ViewFunction | None) -> None:
        """See ``BatchSource``: views of a loader's images are computed later."""

    def batch(self, step: int) -> Batch:
        """See ``BatchSource``.

        Raises:
            DataError: The loader gave something that the task cannot use, or nothing.
        """
        if step != self._step:
            self.resume_at(step)
        if self._upcoming is None:
            self._begin(self._passed + 1)
        if self._upcoming is None:
            raise DataError(
                f"The loader of task {self._task!r} gave no full batch of {self._batch_size} images in a pass. Use a "
                "loader that can be iterated again for each pass, with the trainer's batch_size."
            )
        (images, labels), offset = self._upcoming, (self._taken - 1) * self._batch_size
        self._upcoming = self._fetch()
        self._step = step + 1
        device = torch.device(self._precision.device)
        images, labels = images[self._share], labels[self._share]
        images = images.to(device, non_blocking=True)
        if self._checked_batches < CHECKED_BATCHES and images.is_floating_point():
            self._checked_batches = CHECKED_BATCHES if self._doubts(images) else self._checked_batches + 1
        pixels = normalize(images, self._data) if images.dtype == torch.uint8 else images.to(torch.float32)
        index = torch.arange(offset, offset + self._batch_size, device=device)[self._share]
        return Batch(
            pixels.contiguous(memory_format=self._precision.memory_format),
            labels.to(device, torch.int64, non_blocking=True),
            index,
        )

    def _doubts(self, images: Tensor) -> bool:
        """Warn of images that look wrong; return whether they do.

        Raises:
            DataError: They are not finite.
        """
        wrong = implausible(images, self._data)
        if wrong == NOT_FINITE:
            bad = int((~torch.isfinite(images).flatten(1).all(1)).nonzero()[0])
            raise DataError(
                f"The images of the loader of task {self._task!r} for step {self._step - 1}, counted from 0, {wrong}, "
                f"first in image {bad} of the batch. Fix the loader's data set, or leave such images out.",
                subject=self._task,
            )
        if wrong is not None:
            sides = self._data.mean, self._data.std
            mean, std = (", ".join(f"{value:.3g}" for value in values) for values in sides)
            warnings.warn(
                f"The images of the loader of task {self._task!r} {wrong}. Expected are bytes, or (values from 0 to 1 "
                f"- mean) / std, with mean {mean} and std {std}. Normalize them so, or set Task.normalize to the "
                "loader's values.",
                stacklevel=2,
            )
        return wrong is not None

    def ends_epoch(self, step: int) -> bool:
        """See ``BatchSource``."""
        return self._upcoming is None

    def resume_at(self, step: int) -> None:
        """See ``BatchSource``: restarts the pass and skips the batches already seen.

        Raises:
            TrainingError: The loader cannot be repeated, or has no length.
            DataError: It gives fewer batches than its length.
        """
        if step == 0:
            self.close()
            return
        length = self.batches_per_epoch
        if length is None:
            raise self._cannot_resume(step, "it has no length, so the pass of a step is unknown")
        passed, offset = divmod(step, length)
        reason = self.unrepeatable
        if offset and reason is not None:
            raise self._cannot_resume(step, reason)
        self.close()
        self._passed, self._step = passed - 1, step
        if not offset:
            return
        self._begin(passed)
        for _ in range(offset):
            self._upcoming = self._fetch()
        if self._upcoming is None:
            raise DataError(
                f"The loader of task {self._task!r} has a length of {length} batches and gave only {offset}."
            )

    def _cannot_resume(self, step: int, reason: str) -> TrainingError:
        return TrainingError(
            f"The run cannot resume at step {step} with the loader of task {self._task!r}: {reason}. Start again with "
            "another checkpoint file, or use a torch DataLoader over a data set with a length, without persistent "
            "workers.",
            subject=self._task,
        )

    @property
    def unrepeatable(self) -> str | None:
        """Why a pass cannot be repeated, or None if it can."""
        return unrepeatable(self._loader)

    @property
    def batches_per_epoch(self) -> int | None:
        """Number of full batches of a pass, None if unknown."""
        loader = self._loader
        try:
            if isinstance(loader, DataLoader) and loader.batch_size is not None:
                return len(loader.sampler) // loader.batch_size  # type: ignore[arg-type]
            return len(loader)  # type: ignore[arg-type]
        except TypeError:
            return None

    def _begin(self, number: int) -> None:
        self._passed, self._taken = number, 0
        seed = seed_of(self._seed, "loader", self._task, number)
        for holder in (self._loader, getattr(self._loader, "sampler", None)):
            own = getattr(holder, "generator", None)
            if isinstance(own, torch.Generator):
                own.manual_seed(seed)
        with seeded(seed):
            self._iterator = iter(self._loader)
        self._upcoming = self._fetch()

    def _fetch(self) -> Pair | None:
        """Return the next batch of the pass; None after its last full one."""
        if self._iterator is None:
            return None
        with seeded(seed_of(self._seed, "loader", self._task, self._passed, self._taken)):
            batch = next(self._iterator, None)
        pair = None if batch is None else self._checked(batch)
        if pair is None or len(pair[0]) < self._batch_size:
            self._iterator = None
            return None
        self._taken += 1
        return pair

    def _checked(self, batch: Any) -> Pair:
        """Return images and labels after checking them; reads labels that are on the host."""
        pair = isinstance(batch, list | tuple) and len(batch) == 2
        if not pair or not all(isinstance(tensor, Tensor) for tensor in batch):
            raise self._wrong(f"a batch that is {type_of(batch)}", "Give (images, labels), both tensors.")
        images, labels = batch
        shape = len(self._data.mean), *self._data.size
        if images.dim() != 4 or tuple(images.shape[1:]) != shape:
            last = tuple(images.shape[1:]) == (*shape[1:], shape[0])
            remedy = (
                "move channels first: images.permute(0, 3, 1, 2)."
                if last
                else "set Task.size, or convert them."
            )
            expected = f"The task takes (batch, {str(shape)[1:]}: {remedy}"
            raise self._wrong(f"images of shape {tuple(images.shape)}", expected)
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise self._wrong(
                f"images of type {images.dtype}", "Give bytes, or normalized floating-point numbers."
            )
        if labels.shape != images.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
            what = f"labels of shape {tuple(labels.shape)} and type {labels.dtype} with {len(images)} images"
            raise self._wrong(what, "Give one integer class index for each image.")
        if len(images) > self._batch_size:
            remedy = f"The trainer's batch_size is {self._batch_size}; set both to the same number."
            raise self._wrong(f"{len(images)} images in a batch", remedy)
        if labels.device.type == "cpu" and len(labels):
            low, high, classes = int(labels.min()), int(labels.max()), len(self._data.labels or ())
            if not 0 <= low <= high < classes:
                remedy = f"The task's data has {classes} classes: labels are 0 to {classes - 1}."
                raise self._wrong(f"labels from {low} to {high}", remedy)
        return images.detach(), labels

    def _wrong(self, what: str, remedy: str) -> DataError:
        return DataError(f"The loader of task {self._task!r} gave {what}. {remedy}", subject=self._task)

    def describe(self) -> str:
        """See ``BatchSource``."""
        reason = self.unrepeatable
        resuming = "seeded before each pass, fast-forwarded when a run resumes"
        if reason is not None:
            resuming = f"a run cannot resume in the middle of a pass, because {reason}"
        return f"a {type(self._loader).__name__}, batch by batch: {resuming}"

    def forget(self) -> None:
        """See ``BatchSource``."""
        self.close()

    def get_ready(self) -> None:
        """See ``BatchSource``; nothing to do."""

    def close(self) -> None:
        """See ``BatchSource``."""
        self._iterator = self._upcoming = None
        self._passed, self._taken, self._step = -1, 0, 0


@contextmanager
def name_worker_deaths() -> Iterator[None]:
    """Replace torch's error for a dead worker process, which can occur anywhere in the run, by one with a remedy.

    Raises:
        EnvironmentFailure: A worker process of a loader ended.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        raise EnvironmentFailure(
            f"A process that reads images ended: {error} Memory may have run out: set Trainer(workers=), or "
            "num_workers of your own loader, lower or to 0. A run with a checkpoint resumes from there.",
            subject="workers",
        ) from error


def seed_all(seed: int) -> None:
    """Seed the global generators that loaders, data sets and transforms use."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators that loaders, data sets and transforms use, and restore their states."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        seed_all(seed)
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
