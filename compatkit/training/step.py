"""Step of a task, its batch, and its micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor

from compatkit.evaluation.batchnorm import batch_statistics
from compatkit.hooks import Batch
from compatkit.training.ending import StopRequest
from compatkit.training.layer_recording import NOTHING, Layers
from compatkit.training.precision import Precision
from compatkit.training.randomness import generator
from compatkit.training.task_state import TaskState

NO_LABEL = -1
"""Label of images without a label, which is no class in any loss."""


@attrs.frozen(eq=False)
class StepResult:
    """Losses and predictions of a step or a micro-batch, on the device and without gradients.

    Attributes:
        losses: Scalars by their names in the history.
        predicted: Predicted classes ``(batch,)``; None if the task's own head does not run.
        true: True classes ``(batch,)``; None without ``predicted``.
        images: Sum of the images ``()``, not finite if an image is not; None for bytes that no plugin changed.
    """

    losses: Mapping[str, Tensor]
    predicted: Tensor | None = None
    true: Tensor | None = None
    images: Tensor | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the losses, and ``accuracy`` if the head runs."""
        return (*self.losses, "accuracy") if self.predicted is not None else (*self.losses,)


@attrs.define(eq=False)
class Step:
    """Step of a task, after the forward pass of the target network.

    Attributes:
        seed: Seed of the run.
        task: State of the task.
        number: Step of this task, from 0.
        batch: Batch of the step or micro-batch.
        precision: Precision of the run.
        features: Output of the extractor, ``(batch, ...)``; None before ``compatkit_losses`` and in captured steps.
        logits: Output of the head, ``(batch, classes)``; None for a task without labels, whose head does not run.
        piece: Number of the micro-batch in the step, from 0.
        reports: Whether it is the first step, or the last of a row of the history; False if steps are compiled or
            captured.
        views: Features of each extra view of the current plugin, shaped as ``features``; every view is normalized by
            its own batch statistics and updates no buffer.
        mixed_images: Images ``(batch, channels, height, width)`` for the head under mixup or CutMix, if regularizers
            use the images of the batch; else None.
        mixed_labels: Shares of the classes ``(batch, classes)`` in mixed images; None without mixup and CutMix.
        layers: Recorded calls of the layers that the current plugin requested.
        images_changed: Whether a plugin changed the images of the batch.
        result: Losses and predictions after the update of the weights, or None.
    """

    seed: int
    task: TaskState
    number: int
    batch: Batch
    precision: Precision
    features: Tensor = attrs.field(default=None)  # the objective sets it before any plugin sees the step
    logits: Tensor | None = None
    piece: int = 0
    reports: bool = False
    views: Sequence[Tensor] = ()
    mixed_images: Tensor | None = None
    mixed_labels: Tensor | None = None
    layers: Layers = NOTHING
    images_changed: bool = False
    result: StepResult | None = None
    _stop: StopRequest = attrs.field(factory=StopRequest, alias="stop")

    def __repr__(self) -> str:
        """Return the step's numbers and shapes, without reading a tensor from the device."""
        features = None if self.features is None else tuple(self.features.shape)
        return (
            f"Step({self.number} of {self.task.name!r}: {len(self.batch.labels)} images, features {features})"
        )

    @property
    def losses(self) -> dict[str, Tensor]:
        """Losses of the step by their names in the history: ``task``, ``<instance>/<loss>``, ``accuracy``, ...

        Float tensors ``()`` on the device, without gradients; they are never overwritten. Reading them (``float``)
        waits for the device. Empty before ``compatkit_after_step``; with several processes, each has the losses of its
        own images.
        """
        result = self.result
        if result is None:
            return {}
        if result.predicted is None:
            return dict(result.losses)
        return {**result.losses, "accuracy": (result.predicted == result.true).float().mean()}

    def request_stop(self, reason: str) -> None:
        """End the run after this step of every task, as after its last one: rows, checkpoint, finish.

        Several processes end at the next row of the history or evaluation, if one of them asks. The reason is recorded
        in ``Fit.run["stopped"]``, in the manifests of the parts and in the checkpoint.

        Args:
            reason: Reason for people; the first one of a run counts.

        Raises:
            UsageError: There is no reason.
        """
        self._stop.ask(reason)

    def extract(self, images: Tensor, *, write_statistics: bool) -> Tensor:
        """Run the task's extractor on extra views.

        Args:
            images: Normalized images, ``(batch, channels, height, width)``.
            write_statistics: Whether batch normalization updates its running statistics; it normalizes by the
                statistics of the batch in any case. A frozen extractor never updates them, and runs as for the batch.

        Returns:
            Features, ``(batch, *feature_shape)``.
        """
        return self.task.extract(images, write_statistics=write_statistics)

    def classify(self, features: Tensor) -> Tensor:
        """Run the task's head on other features, normalized by their own statistics, without updating buffers.

        Args:
            features: Features ``(batch, ...)`` with the shape of ``self.features``.

        Returns:
            Logits ``(batch, classes)``.
        """
        with batch_statistics(self.task.head, others="keep", besides=self.task.frozen_norms):
            return self.task.head(features)

    def rng(self, *key: str | int) -> torch.Generator:
        """Return a CPU generator for this step and micro-batch; ``key`` starts with the plugin's instance name."""
        index = f"{self.number}.{self.piece}" if self.piece else self.number
        return generator(self.seed, "plugin", self.task.name, index, *key)


def split_batch(batch: Batch, count: int) -> list[Batch]:
    """Return micro-batches of equal size, in order; they share the memory of the batch.

    Args:
        batch: Batch of a step; its length is a multiple of ``count``.
        count: Number of micro-batches.
    """
    parts = zip(batch.images.chunk(count), batch.labels.chunk(count), batch.index.chunk(count), strict=True)
    if batch.stacked is None:
        return [Batch(*part) for part in parts]
    views = batch.stacked.unflatten(0, (-1, len(batch.labels))).chunk(count, 1)
    stacks = [view.flatten(0, 1) for view in views]
    return [
        Batch(stack[: len(labels)], labels, index, stack)
        for stack, (_, labels, index) in zip(stacks, parts, strict=True)
    ]


def combine_results(results: Sequence[StepResult]) -> StepResult:
    """Return mean losses and all predictions of micro-batches, without reading values on the host.

    A loss that a micro-batch does not have counts as 0.
    """
    names = dict.fromkeys(name for result in results for name in result.losses)
    losses = {
        name: torch.stack([result.losses[name] for result in results if name in result.losses]).sum(0)
        / len(results)
        for name in names
    }
    predicted = [result.predicted for result in results if result.predicted is not None]
    true = [result.true for result in results if result.true is not None]
    sums = [result.images for result in results if result.images is not None]
    images = torch.stack(sums).sum() if sums else None
    if not predicted:
        return StepResult(losses, images=images)
    return StepResult(losses, torch.cat(predicted), torch.cat(true), images)
