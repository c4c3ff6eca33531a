"""One step of one task, its batch, and its micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from compatkit.evaluation.normalisation import batch_statistics
from compatkit.hooks import Batch
from compatkit.training.loss_history import Measured
from compatkit.training.precision import Precision
from compatkit.training.randomness import generator
from compatkit.training.recording import NOTHING, Layers
from compatkit.training.state import TaskState

NO_LABEL = -1
"""In the place of a label that is not known; no loss takes it for a class."""
UNMEASURED: Measured = {}


@attrs.define(eq=False)
class Step:
    """One step of one task, after the forward pass of the target network.

    Attributes:
        number: Step of this task, from 0.
        piece: Which piece of the step's batch this is, from 0, where the trainer accumulates gradients.
        features: What the extractor gave, ``(batch, ...)``.
        logits: What the head gave, ``(batch, classes)``; None for a task without labels, whose head does not run.
        reports: Whether a row of the history closes after it, or it is the first; False where steps are compiled or
            captured.
        views: What the extractor gave for each further view that the plugin asked for whose losses are computed, as
            ``features``; every view was normalised by its own batch statistics and left no trace in the buffers.
    """

    seed: int
    task: TaskState
    number: int
    batch: Batch
    precision: Precision
    features: Tensor | None = None
    logits: Tensor | None = None
    piece: int = 0
    reports: bool = False
    views: Sequence[Tensor] = ()
    layers: Layers = NOTHING
    _measured: Measured = UNMEASURED

    @property
    def losses(self) -> dict[str, Tensor]:
        """What the step measured, by the names of the history: ``task``, ``<instance>/<loss>``, ``accuracy``, ...

        Float tensors ``()`` on the device, without gradient, that nothing overwrites: keep them, and read them
        (``float``) now and then, since reading waits for the device. There are none before ``compatkit_after_step``;
        with several processes, each has those of its own images.
        """
        return {
            name: one if isinstance(one, Tensor) else (one[0] == one[1]).float().mean()
            for name, one in self._measured.items()
        }

    def extract(self, images: Tensor, *, write_statistics: bool) -> Tensor:
        """Run the task's extractor on further views.

        Args:
            images: Normalised, ``(batch, channels, height, width)``.
            write_statistics: Whether batch normalisation moves its running statistics; where not, the
                batch's own statistics are used all the same and no buffer is written. A frozen extractor writes none,
                and runs as it does for the batch.
        """
        if write_statistics or self.task.freezes_extractor:
            return self.task.extract(images)
        with batch_statistics(self.task.extractor, others="keep"):
            return self.task.extractor(images)

    def classify(self, features: Tensor) -> Tensor:
        """Run the task's head on other features; they are normalised by their own statistics, and move no buffer.

        Args:
            features: ``(batch, ...)``, of the shape of ``self.features``.

        Returns:
            Logits ``(batch, classes)``.
        """
        with batch_statistics(self.task.head, others="keep"):
            return self.task.head(features)

    def rng(self, *key: str | int) -> torch.Generator:
        """Return a CPU generator for this step, and piece; ``key`` starts with the plugin's instance name."""
        turn = f"{self.number}.{self.piece}" if self.piece else self.number
        return generator(self.seed, "plugin", self.task.name, turn, *key)


def pieces(batch: Batch, count: int) -> list[Batch]:
    """Return a batch as ``count`` batches of the same size, in order; they hold the very same images."""
    parts = zip(batch.images.chunk(count), batch.labels.chunk(count), batch.index.chunk(count), strict=True)
    if batch.stacked is None:
        return [Batch(*part) for part in parts]
    views = batch.stacked.unflatten(0, (-1, len(batch.labels))).chunk(count, 1)
    stacks = [one.flatten(0, 1) for one in views]
    return [
        Batch(stack[: len(labels)], labels, index, stack)
        for stack, (_, labels, index) in zip(stacks, parts, strict=True)
    ]


def first(batch: Batch, count: int) -> Batch:
    """Return the first ``count`` images of a batch, in all their views."""
    images, labels, index = batch.images[:count], batch.labels[:count], batch.index[:count]
    if batch.stacked is None:
        return Batch(images, labels, index)
    stack = batch.stacked.unflatten(0, (-1, len(batch.labels)))[:, :count].flatten(0, 1)
    return Batch(stack[:count], labels, index, stack)


def together(measured: Sequence[Measured]) -> Measured:
    """Return what the whole batch measured: the mean of the pieces' losses, and all answers; nothing is read.

    A loss that is absent from a piece added nothing there.
    """
    whole: dict[str, Tensor | tuple[Tensor, Tensor]] = {}
    for name in dict.fromkeys(name for one in measured for name in one):
        found = [one[name] for one in measured if name in one]
        losses = [one for one in found if isinstance(one, Tensor)]
        pairs = [one for one in found if not isinstance(one, Tensor)]
        if losses:
            whole[name] = torch.stack(losses).sum(0) / len(measured)
        else:
            predicted, true = zip(*pairs, strict=True)
            whole[name] = torch.cat(predicted), torch.cat(true)
    return whole
