"""Arguments of training hooks: a batch, and Protocols of what plugins see of a run.

The Protocols keep hooks independent of the classes that implement them: ``compatkit.Step``, ``compatkit.SetUp``,
``compatkit.TaskState`` and ``compatkit.Pretraining``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from compatkit.contracts.contract import Blueprint, Data, Label


@attrs.frozen(eq=False)
class Batch:
    """One mini-batch.

    Attributes:
        images: Normalized, ``(batch, channels, height, width)``.
        labels: Class indices of the task, ``(batch,)``; all -1 where the task has none.
        index: Indices in the training set, ``(batch,)``; for images of a loader, positions in the current pass.
        stacked: ``images`` followed by their extra views, ``(views * batch, ...)``; ``images`` is a view of its
            beginning. None without extra views, or once the images have been changed.
    """

    images: Tensor
    labels: Tensor
    index: Tensor
    stacked: Tensor | None = None

    def copied(self) -> Batch:
        """Return a deep copy."""
        labels, index = self.labels.clone(), self.index.clone()
        if self.stacked is None:
            return Batch(self.images.clone(), labels, index)
        stacked = self.stacked.clone()
        return Batch(stacked[: len(labels)], labels, index, stacked)

    def take(self, other: Batch) -> None:
        """Copy the values of ``other``, a batch of the same shapes, into this batch's memory."""
        self.labels.copy_(other.labels, non_blocking=True)
        self.index.copy_(other.index, non_blocking=True)
        if self.stacked is None:
            self.images.copy_(other.images, non_blocking=True)
        elif other.stacked is not None:
            self.stacked.copy_(other.stacked, non_blocking=True)


@attrs.frozen(kw_only=True)
class RunInfo:
    """The run that a plugin takes part in, as plain values: ``setup.run``.

    Attributes:
        name: ``Trainer(run_name=)``, else the name of the checkpoint's file without suffix; None without either.
        folder: Folder of the checkpoint, an absolute path, which runs of a sweep share; None without a checkpoint.
        dry: Whether nothing is trained: for ``Trainer.explain``, ``Trainer.profile`` and the checks before a sweep. A
            plugin then writes no file and trains nothing.
        seed: Seed of the run.
        steps: Steps of each task.
        batch_size: Images of a step, on all processes together.
        accumulate: Micro-batches of a step.
        evaluate_every: Steps between evaluations; None without evaluations.
        ema: Decay of the moving averages; None without averages.
        device: Device of the run, such as ``"cpu"`` or ``"cuda:0"``.
    """

    name: str | None
    folder: Path | None
    dry: bool
    seed: int
    steps: int
    batch_size: int
    accumulate: int
    evaluate_every: int | None
    ema: float | None
    device: str


class TaskLike(Protocol):
    """A task during a run, as hooks see it: ``compatkit.TaskState``."""

    extractor: nn.Module
    head: nn.Module
    extractor_blueprint: Blueprint
    head_blueprint: Blueprint
    class_layer: tuple[str, ...]
    data: Data
    feature_shape: tuple[int, ...]

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> tuple[Label, ...]: ...
    @property
    def supervised(self) -> bool: ...
    @property
    def runs_head(self) -> bool: ...
    @property
    def freezes_extractor(self) -> bool: ...
    def extract(self, images: Tensor, *, write_statistics: bool = True) -> Tensor: ...
    def stages(self, setting: str) -> Mapping[str, int]: ...


class StepLike(Protocol):
    """One step of one task, as hooks see it: ``compatkit.Step``."""

    number: int
    piece: int
    batch: Batch
    features: Tensor
    logits: Tensor | None
    reports: bool
    views: Sequence[Tensor]

    @property
    def task(self) -> TaskLike: ...
    @property
    def layers(self) -> Mapping[str, Sequence[Any]]: ...
    @property
    def losses(self) -> Mapping[str, Tensor]: ...
    def request_stop(self, reason: str) -> None: ...
    def extract(self, images: Tensor, *, write_statistics: bool) -> Tensor: ...
    def classify(self, features: Tensor) -> Tensor: ...
    def rng(self, *key: str | int) -> torch.Generator: ...


class EvaluationLike(Protocol):
    """An evaluation during training, as hooks see it: ``compatkit.Evaluation``."""

    @property
    def step(self) -> int: ...
    @property
    def on(self) -> str: ...
    @property
    def metrics(self) -> Mapping[str, Mapping[str, float]]: ...
    @property
    def averages(self) -> Mapping[str, Mapping[str, float]]: ...
    def request_stop(self, reason: str) -> None: ...


class JointStepLike(Protocol):
    """Steps of all tasks in a round, as hooks see them: ``compatkit.JointStep``."""

    @property
    def number(self) -> int: ...
    @property
    def piece(self) -> int: ...
    @property
    def steps(self) -> Mapping[str, StepLike]: ...
    def extract(self, task: str, images: Tensor, *, source: str) -> Tensor: ...
    def rng(self, *key: str | int) -> torch.Generator: ...


class SetUpLike(Protocol):
    """The set-up of a run, as hooks see it: ``compatkit.SetUp``."""

    @property
    def run(self) -> RunInfo: ...
    @property
    def tasks(self) -> Mapping[str, TaskLike]: ...
    @property
    def auxiliary(self) -> Mapping[str, Callable[[Tensor], Tensor]]: ...
    def rng(self, *key: str | int) -> torch.Generator: ...
    def own(
        self,
        name: str,
        module: nn.Module,
        *,
        optimizer: str | None = None,
        lr: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        optimizer_options: Mapping[str, Any] | None = None,
        schedule: Any = None,
    ) -> nn.Module: ...
    def averaged(self, task: Any, *, statistics: Any = "batch") -> Callable[[Tensor], Tensor]: ...
    def build(self, blueprint: Blueprint, *key: str | int) -> nn.Module: ...
    def initialize(
        self, task: Any, *stream: str | int, seed: int | None = None, class_layer: bool = True
    ) -> None: ...
    def record_layers(self, task: Any, names: Iterable[str]) -> None: ...
    def tell(self, facts: Mapping[str, Any]) -> None: ...
    def compare_gradients(self, *, balance: bool = False) -> None: ...
    def shared_classes(self) -> tuple[Label, ...]: ...
    def add_auxiliary_head(
        self,
        name: str,
        *,
        classes: Sequence[Label] | None = None,
        outputs: int | None = None,
        like: str | None = None,
    ) -> Callable[[Tensor], Tensor]: ...
    def released_head(self) -> Callable[[Tensor], Tensor]: ...
    def released_extractor(self, task: Any) -> Callable[[Tensor], Tensor]: ...


class PretrainingLike(Protocol):
    """Batches and progress bars for training before the first step: ``compatkit.Pretraining``."""

    def batches(self, task: Any, *key: str | int, steps: int, batch_size: int) -> Iterator[Batch]: ...
    def bar(self, title: str, steps: int, batch_size: int) -> Any: ...


class LoggerLike(Protocol):
    """Logs losses and accuracies of a run; only the first process calls its loggers.

    A method takes those of its arguments that it needs, by name.
    """

    begin: Callable[..., None]
    """Opens the log: ``begin(step, run, manifest)``, with the completed steps, ``RunInfo`` and plain JSON.

    A killed run may have logged steps after its last checkpoint; the resumed run repeats them, so later values are to
    be dropped.
    """
    log_metrics: Callable[..., None]
    """Logs values such as ``<task>/losses/<name>`` or ``<task>/accuracy``, after ``step`` steps of each task:
    ``log_metrics(metrics, step)``."""
    flush: Callable[..., None]
    """Writes everything to disk: a checkpoint was saved, and these values are not logged again."""
    close: Callable[..., None]
    """Closes what ``begin`` opened, after any end of the run: ``close(failed)``."""
