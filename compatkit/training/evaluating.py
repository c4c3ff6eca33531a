"""Evaluation on held-out images while a run trains, and early stopping by it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from compatkit.data.split import Split
from compatkit.errors import TrainingError
from compatkit.evaluation.batchnorm import evaluation_mode
from compatkit.evaluation.preprocessing import Prepared, normalize, prepare
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.limits import COUNT, FLAG, Number, OneOf
from compatkit.training.distributed import ALONE, World
from compatkit.training.optim import Averages
from compatkit.training.plugin_setup import SetUp
from compatkit.training.precision import Precision
from compatkit.training.randomness import preserved
from compatkit.training.task_state import TaskState

On = Literal["validation", "test", "train"]


@attrs.frozen(eq=False)
class Evaluator:
    """Evaluate the networks of a run without changing modes, buffers or random numbers.

    Attributes:
        on: Images to evaluate on.
        every: Steps between evaluations.
        batch_size: Images of a forward pass.
        examples: Images by task, on the host; a batch at a time goes to the device.
        world: Processes that share the batches.
    """

    on: On
    every: int
    batch_size: int
    examples: Mapping[str, Prepared]
    world: World = ALONE

    @classmethod
    def of(
        cls,
        on: On,
        every: int,
        batch_size: int,
        setup: SetUp,
        held_out: Mapping[str, Split],
        world: World = ALONE,
    ) -> Evaluator:
        """Create an evaluator; arguments as the attributes, with the images held out for validation, by task."""
        examples: dict[str, Prepared] = {}
        for name, state in setup.tasks.items():
            splits = {"validation": held_out.get(name), "test": state.task.data.test, "train": state.examples}
            if split := splits[on]:
                examples[name] = prepare(split, state.data)
        return cls(on, every, batch_size, examples, world)

    def measure(self, setup: SetUp, averages: Averages | None, step: int) -> list[dict[str, Any]]:
        """Return a row for each task, and another for its averages if there are any.

        Args:
            setup: Tasks and networks of the run.
            averages: Moving averages of the weights, or None.
            step: Completed steps.

        Returns:
            ``{"task", "step", "on", "weights": "trained" or "averages", "loss", "accuracy"}``.

        Raises:
            TrainingError: A loss is not finite.
        """
        rows, kinds = [], {"trained": None} | ({"averages": averages} if averages else {})
        with preserved(), torch.no_grad():
            for name, state in setup.tasks.items():
                for weights, values in kinds.items():
                    loss, accuracy = self._loss_and_accuracy(state, setup.precision, values)
                    if not math.isfinite(loss):
                        raise TrainingError(
                            f"The loss of task {name!r} on the {self.on} images after {step} steps is {loss} "
                            f"({weights} weights). Lower the learning rate, add warm-up steps, set clip_norm, or use "
                            "precision='float32'.",
                            subject=name,
                        )
                    row = {"task": name, "step": step, "on": self.on, "weights": weights}
                    rows.append({**row, "loss": loss, "accuracy": accuracy})
        return rows

    def _loss_and_accuracy(
        self, state: TaskState, precision: Precision, averages: Averages | None
    ) -> tuple[float, float]:
        examples, device = self.examples[state.name], precision.device
        loss, correct = torch.zeros((), device=device), torch.zeros((), device=device)
        with ExitStack() as stack:
            for module in (state.extractor, state.head):
                stack.enter_context(evaluation_mode(module))
            # each process takes its share of the batches
            parts = torch.arange(len(examples)).split(self.batch_size)[self.world.rank :: self.world.size]
            for positions, images in zip(parts, examples.each(parts), strict=True):
                labels = examples.labels[positions].to(device)
                pixels = normalize(images, state.data, device=device)
                if precision.channels_last:
                    pixels = pixels.contiguous(memory_format=torch.channels_last)
                with precision.autocast():
                    logits = _logits(state, pixels, averages).float()
                loss += F.cross_entropy(logits, labels, reduction="sum")
                correct += (logits.argmax(1) == labels).sum()
        sums = self.world.gather((float(loss), float(correct)))
        return sum(loss for loss, _ in sums) / len(examples), sum(count for _, count in sums) / len(examples)


def _logits(state: TaskState, pixels: Tensor, averages: Averages | None) -> Tensor:
    """Return logits ``(batch, classes)``, computed with averages instead of the weights."""
    if averages is None:
        return state.head(state.extractor(pixels))

    def call(module: nn.Module, side: str, images: Tensor) -> Any:
        averaged = averages.values.get(f"{state.name}.{side}")  # a frozen extractor has no averages
        return module(images) if averaged is None else functional_call(module, averaged, images)

    return call(state.head, "head", call(state.extractor, "extractor", pixels))


@checks_arguments
@attrs.frozen(kw_only=True)
class EarlyStopping:
    """Rule to end a run when the loss or accuracy on held-out training images stops improving.

    With several tasks the mean over them counts, as they share modules and steps.

    Attributes:
        patience: Number of evaluations in a row without improvement after which the run ends.
        least: Smallest change that counts as improvement.
        on: ``"loss"`` (lower is better) or ``"accuracy"`` (higher is better).
        restore: Whether to restore the weights of the best evaluation; else those of the last step stay.

    Raises:
        UsageError: A value is invalid.
    """

    patience: int = attrs.field(validator=COUNT)
    least: float = attrs.field(default=0.0, validator=Number(least=0))
    on: Literal["loss", "accuracy"] = attrs.field(default="loss", validator=OneOf(("loss", "accuracy")))
    restore: bool = attrs.field(default=True, validator=FLAG)


@attrs.define(eq=False)
class Stopper:
    """State of early stopping, as saved in checkpoints.

    Attributes:
        rule: Rule of early stopping.
        best: Best mean loss or accuracy so far, or None.
        step: Step of the best evaluation.
        waited: Number of evaluations since.
        weights: Modules and averages at ``step``; empty if they are not to be restored.
    """

    rule: EarlyStopping
    best: float | None = None
    step: int = 0
    waited: int = 0
    weights: dict[str, Tensor] = attrs.field(factory=dict)

    @property
    def stopped(self) -> bool:
        """Whether to end the run."""
        return self.waited >= self.rule.patience

    def add(self, step: int, rows: Sequence[Mapping[str, Any]], weights: Mapping[str, Tensor]) -> None:
        """Add an evaluation, that of the averages if there are any.

        Args:
            step: Completed steps.
            rows: Rows of ``Evaluator.measure``, those of averages last.
            weights: Tensors of trained modules and their averages, by name.
        """
        values = [row[self.rule.on] for row in rows if row["weights"] == rows[-1]["weights"]]
        mean = math.fsum(values) / len(values)
        sign = 1 if self.rule.on == "accuracy" else -1
        if self.best is None or sign * (mean - self.best) > self.rule.least:
            self.best, self.step, self.waited = mean, step, 0
            if self.rule.restore:
                self.weights = {name: value.clone() for name, value in weights.items()}
        else:
            self.waited += 1

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Restore the tensors of modules and averages to the best evaluation."""
        for name, value in weights.items() if self.weights else ():
            value.copy_(self.weights[name])

    def values(self) -> dict[str, Any]:
        """Return the JSON values for a checkpoint, without ``weights``."""
        return {"best": self.best, "step": self.step, "waited": self.waited}

    def load(
        self, values: Mapping[str, Any], best: Mapping[str, Tensor], weights: Mapping[str, Tensor]
    ) -> None:
        """Restore the result of ``values`` and the best weights, in the memory layout of the run's weights.

        Args:
            values: Result of ``values``.
            best: Weights of the best step.
            weights: Weights of the run, with equal names.
        """
        self.best, self.step, self.waited = values["best"], values["step"], values["waited"]
        self.weights = {name: torch.empty_like(weights[name]).copy_(value) for name, value in best.items()}

    def summary(self, steps: int) -> dict[str, Any]:
        """Return the number of steps and the step of the final weights, for the run's manifest."""
        return {"steps": steps, "weights_of_step": self.step if self.weights else steps}
