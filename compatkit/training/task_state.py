"""State of a task, a shared head and a released extractor during a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.cutting.sideeffects import copied
from compatkit.contracts.contract import Anchor, Blueprint, Data, Label
from compatkit.data.dataset import Split
from compatkit.errors import UsageError
from compatkit.evaluation.batchnorm import batch_statistics
from compatkit.training.precision import Precision
from compatkit.training.task import Task

EXTRACTOR = "released.extractor"
"""Name of a released extractor among the frozen parts of a run."""
HEAD = "released"
"""Name of a released target head among them."""


@attrs.define(eq=False)
class ReleasedExtractor:
    """Published extractor that new parts are trained against.

    Attributes:
        blueprint: Blueprint of the extractor.
        module: Module with the weights.
        data: Preprocessing of the extractor.
        digest: Tensor digest of its weights and statistics.
        reference: Reference ``name@version``.
    """

    blueprint: Blueprint
    module: nn.Module
    data: Data
    digest: str
    reference: str

    def copy_to_device(self, precision: Precision) -> ReleasedExtractor:
        """Return a frozen copy on the run's device, in eval mode."""
        module = copied(self.module).eval().requires_grad_(False)
        return attrs.evolve(self, module=precision.place(module))

    def on(self, data: Data, shape: tuple[int, ...], task: str, device: str) -> Callable[[Tensor], Tensor]:
        """Return a function from a task's normalized images to features of this extractor, without gradients.

        Args:
            data: Preprocessing of the task.
            shape: Shape of the task's features, without the batch axis.
            task: Name of the task, for messages.
            device: Device of the run.

        Returns:
            Function ``(N, C, H, W) -> (N, *shape)``.

        Raises:
            UsageError: The extractor takes other images, or returns features of another shape.
        """
        for field in ("size", "channels"):
            expected, actual = getattr(self.data, field), getattr(data, field)
            if expected != actual:
                raise UsageError(
                    f"The released extractor {self.reference} takes images of {field} {expected}; those of task "
                    f"{task!r} have {actual}. Give the task size={self.data.size} and {self.data.channels} images, or "
                    "start it from the extractor."
                )
        statistics = self.data.mean, self.data.std, data.mean, data.std
        mean, std, task_mean, task_std = (
            torch.tensor(values, device=device).view(1, -1, 1, 1) for values in statistics
        )
        scale, shift = task_std / std, (task_mean - mean) / std
        same = (self.data.mean, self.data.std) == (data.mean, data.std)

        @torch.no_grad()
        def features(images: Tensor) -> Tensor:
            return self.module(images if same else images * scale + shift)

        features_shape = tuple(features(torch.zeros(2, len(data.mean), *data.size, device=device)).shape[1:])
        if features_shape != shape:
            raise UsageError(
                f"The released extractor {self.reference} has features {features_shape}; task {task!r} has {shape}. "
                "Cut the task's network where both have the same shape."
            )
        return features


_NO_CHANGE = nullcontext()


@attrs.define(eq=False)
class TaskState:
    """Modules and data of a task during a run.

    Attributes:
        task: Task of the user.
        extractor_blueprint: Blueprint of the extractor.
        head_blueprint: Blueprint of the head.
        class_layer: State-dict prefixes of the class layer in the head.
        extractor: Module of the extractor.
        head: Module of the head.
        data: Preprocessing and labels, as in the contracts.
        examples: Training images and labels in the size and channels of the task, in host memory.
        feature_shape: Shape of the tensor that crosses the cut, for a batch of two.
        anchors: Shared parts that this task's parts were trained against; written at the end of a run.
        initial: Tensor digest of the initial weights without the class layer.
        rows_named: Whether the rows of the class layer were drawn with the initial weights too.
        statistics: For a frozen extractor: ``"stored"`` uses its running statistics, ``"batch"`` those of the batch
            without writing its buffers.
        frozen_norms: Batch normalization in frozen stages, which stays in eval mode.
        name: Name of the task.
        supervised: Whether the head learns classes; else batches have ``NO_LABEL`` in the place of labels.
        runs_head: Whether the network's own head runs and learns; else the extractor learns through regularizers alone.
        freezes_extractor: Whether the extractor is not trained.
    """

    task: Task
    extractor_blueprint: Blueprint
    head_blueprint: Blueprint
    class_layer: tuple[str, ...]
    extractor: nn.Module
    head: nn.Module
    data: Data
    examples: Split
    feature_shape: tuple[int, ...]
    initial: str = ""
    rows_named: bool = False
    anchors: list[Anchor] = attrs.field(factory=list)
    statistics: Literal["stored", "batch"] = "stored"
    frozen_norms: tuple[nn.Module, ...] = ()
    name: str = attrs.field(init=False)
    supervised: bool = attrs.field(init=False)
    runs_head: bool = attrs.field(init=False)
    freezes_extractor: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        task = self.task
        self.name, self.supervised, self.freezes_extractor = task.name, task.supervised, task.freeze_extractor
        self.runs_head = task.supervised and task.own_head

    def __repr__(self) -> str:
        size = "x".join(map(str, self.data.size))
        return (
            f"TaskState({self.name!r}: {self.task.model} cut at {self.task.cut}, {len(self.labels)} classes, "
            f"{len(self.examples):,} images at {size})"
        )

    def extract(self, images: Tensor, *, write_statistics: bool = True) -> Tensor:
        """Run the extractor as in a step, a frozen one with the statistics of the run's settings.

        Args:
            images: Normalized images, ``(N, channels, height, width)``.
            write_statistics: Whether batch normalization updates its running statistics; it normalizes by the
                statistics of the batch in any case. A frozen extractor never updates them.

        Returns:
            Features, ``(N, *feature_shape)``.
        """
        if write_statistics or self.freezes_extractor:
            with self.extracting():
                return self.extractor(images)
        with batch_statistics(self.extractor, others="keep", besides=self.frozen_norms):
            return self.extractor(images)

    def stages(self, setting: str) -> dict[str, int]:
        """Return the number of the stage of each tensor of the uncut network, by timm's coarse ``group_matcher``.

        Args:
            setting: Name of the setting that needs stages, for messages.

        Returns:
            Stages by tensor name, from 0 at the image; the last stage has the class layer.

        Raises:
            UsageError: The network has no ``group_matcher``.
        """
        from compatkit.adapters.optimizers import grouped

        return grouped(self.extractor_blueprint, "stage", setting)

    def extracting(self) -> AbstractContextManager[None]:
        """Return the context for running the extractor in a step."""
        if self.freezes_extractor and self.statistics == "batch":
            return batch_statistics(self.extractor, others="keep")
        return _NO_CHANGE

    @property
    def labels(self) -> tuple[Label, ...]:
        """Classes in the order of the head's outputs."""
        return self.data.labels or ()


def trained_parameters(state: TaskState) -> list[nn.Parameter]:
    """Return the trained parameters of a task's network."""
    parts = (state.extractor, state.head)
    return [parameter for part in parts for parameter in part.parameters() if parameter.requires_grad]


@attrs.define(eq=False)
class AuxiliaryHead:
    """Head that several tasks are trained against.

    Attributes:
        name: Purpose of the head: ``"dcc"``, ``"rotation"``.
        blueprint: Blueprint of the head.
        module: Module of the head.
        labels: Classes of its outputs; None if the outputs are not classes of images.
        frozen: Whether its parameters stay fixed in this run.
        statistics: For a frozen head: ``"stored"`` uses its running statistics, ``"batch"`` those of the
            batch without writing its buffers (the regime of Gygli et al.).
        digest: Tensor digest of the parameters; set when it is frozen or the run has ended.
        origin: Manifest digest of the component, if it was loaded from a registry.
        initials: Digests of the initial weights of the networks it was trained with; set with ``digest``.
        plugin: Instance name of the regularizer that added it.
    """

    name: str
    blueprint: Blueprint
    module: nn.Module
    labels: tuple[Label, ...] | None
    frozen: bool = False
    statistics: Literal["stored", "batch"] = "stored"
    digest: str = ""
    origin: str | None = None
    initials: tuple[str, ...] = ()
    plugin: str = ""

    def __repr__(self) -> str:
        outputs = "" if self.labels is None else f", {len(self.labels)} classes"
        return f"AuxiliaryHead({self.name!r}: {self.blueprint.model}{outputs}{', frozen' if self.frozen else ''})"

    def __call__(self, features: Tensor) -> Tensor:
        """Return logits ``(batch, outputs)``, with batch normalization according to ``statistics``."""
        if self.frozen and self.statistics == "batch":
            with batch_statistics(self.module, others="keep"):
                return self.module(features)
        return self.module(features)
