"""Averaged weights of a task's network for plugins: the teacher of methods with an exponential moving average."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

import attrs
import torch
from torch import Tensor, nn
from torch.func import functional_call

from compatkit.errors import UsageError
from compatkit.evaluation.batchnorm import batch_statistics, evaluation_mode
from compatkit.training.task_state import TaskState


@attrs.frozen(eq=False, repr=False)
class AveragedNetwork:
    """Moving averages of a task's network, ``Trainer(ema=)``, run without gradients and without changing anything.

    In a step they have the averages after the step before; in the first step, the initial weights.

    Attributes:
        task: State of the task.
        statistics: Batch normalization: ``"batch"`` uses the statistics of the images that are passed, and leaves
            dropout on, as in training; ``"stored"`` uses the averaged running statistics, in eval mode.
    """

    task: TaskState
    statistics: Literal["batch", "stored"]
    _averages: Callable[[], Mapping[str, Mapping[str, Tensor]]]

    def __repr__(self) -> str:
        return f"AveragedNetwork({self.task.name!r}, statistics={self.statistics!r})"

    def __call__(self, images: Tensor) -> Tensor:
        """Return logits ``(batch, classes)`` of normalized images ``(batch, channels, height, width)``.

        Raises:
            UsageError: The task's own head does not run.
        """
        return self.classify(self.extract(images))

    def extract(self, images: Tensor) -> Tensor:
        """Return features ``(batch, ...)`` of normalized images; those of a frozen extractor are its own.

        Args:
            images: ``(batch, channels, height, width)``.
        """
        if self.task.freezes_extractor:
            with torch.no_grad():
                return self.task.extract(images)
        return self._run("extractor", images)

    def classify(self, features: Tensor) -> Tensor:
        """Return logits ``(batch, classes)`` of features.

        Args:
            features: ``(batch, ...)``, as ``extract`` returns them.

        Raises:
            UsageError: The task's own head does not run.
        """
        if not self.task.runs_head:
            raise UsageError(
                f"The head of task {self.task.name!r} does not run, so it has no averages. Call extract(images).",
                subject=self.task.name,
            )
        return self._run("head", features)

    @torch.no_grad()
    def _run(self, side: str, value: Tensor) -> Any:
        module = getattr(self.task, side)
        with self._mode(module):
            return functional_call(module, dict(self._averages()[f"{self.task.name}.{side}"]), value)

    def _mode(self, module: nn.Module) -> AbstractContextManager[None]:
        if self.statistics == "stored":
            return evaluation_mode(module)
        return batch_statistics(module, others="keep", besides=self.task.frozen_norms)
