"""Evaluation while a run trains: loss and accuracy of each task's own network on images that no step sees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Literal

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from compatkit.data.split import Split
from compatkit.errors import TrainingError
from compatkit.evaluation.normalisation import evaluation_mode
from compatkit.evaluation.preprocessing import Prepared, normalise, prepare
from compatkit.training.averaging import Averages
from compatkit.training.distributed import ALONE, World
from compatkit.training.precision import Precision
from compatkit.training.randomness import preserved
from compatkit.training.set_up import SetUp
from compatkit.training.state import TaskState

On = Literal["validation", "test"]


@attrs.frozen(eq=False)
class Evaluator:
    """Measures the networks of a run and changes nothing: no mode, no buffer, no random number.

    Attributes:
        on: What the images are.
        every: Steps between evaluations.
        batch_size: Images of a forward pass.
        examples: By task, on the host; a batch at a time goes to the device.
        world: Whose processes share the batches out.
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
        held: Mapping[str, Split],
        world: World = ALONE,
    ) -> Evaluator:
        """Make an evaluator; ``held`` are the images held out for validation, by task."""
        splits = {
            name: held[name] if on == "validation" else state.task.data.test
            for name, state in setup.tasks.items()
        }
        examples = {name: prepare(split, setup.tasks[name].data) for name, split in splits.items()}
        return cls(on, every, batch_size, examples, world)

    def measure(self, setup: SetUp, averages: Averages | None, step: int) -> list[dict[str, Any]]:
        """Return a row for each task, and one more for its averages where there are any.

        Returns:
            ``{"task", "step", "on", "weights": "trained" or "averages", "loss", "accuracy"}``.

        Raises:
            TrainingError: A loss is not finite.
        """
        rows = []
        with preserved(), torch.no_grad():
            for name, state in setup.tasks.items():
                for weights, kept in (("trained", None), ("averages", averages)):
                    if weights == "averages" and kept is None:
                        continue
                    loss, accuracy = self._figures(state, setup.precision, kept)
                    if not math.isfinite(loss):
                        raise TrainingError(
                            f"The loss of task {name!r} on the {self.on} images after {step} steps is not finite "
                            f"({loss}; weights: {weights}). Lower the learning rate, add warm-up steps, clip the "
                            "gradients with clip_norm, or use precision='float32'.",
                            subject=name,
                        )
                    rows.append(
                        {
                            "task": name,
                            "step": step,
                            "on": self.on,
                            "weights": weights,
                            "loss": loss,
                            "accuracy": accuracy,
                        }
                    )
        return rows

    def _figures(
        self, state: TaskState, precision: Precision, averages: Averages | None
    ) -> tuple[float, float]:
        examples, device = self.examples[state.name], precision.device
        loss, right = torch.zeros((), device=device), torch.zeros((), device=device)
        with ExitStack() as stack:
            for module in (state.extractor, state.head):
                stack.enter_context(evaluation_mode(module))
            for start in range(
                self.world.rank * self.batch_size, len(examples), self.world.size * self.batch_size
            ):  # each of several processes takes its batches
                images = examples.images[start : start + self.batch_size]
                labels = examples.labels[start : start + self.batch_size].to(device)
                pixels = normalise(images, state.data, device=device)
                if precision.channels_last:
                    pixels = pixels.contiguous(memory_format=torch.channels_last)
                with precision.autocast():
                    logits = _logits(state, pixels, averages).float()
                loss += F.cross_entropy(logits, labels, reduction="sum")
                right += (logits.argmax(1) == labels).sum()
        sums = self.world.gather((float(loss), float(right)))
        return sum(one for one, _ in sums) / len(examples), sum(one for _, one in sums) / len(examples)


def _logits(state: TaskState, pixels: Tensor, averages: Averages | None) -> Tensor:
    """Return ``(batch, classes)``; averages are put into the place of the weights, which stay where they are."""
    if averages is None:
        return state.head(state.extractor(pixels))

    def call(module: nn.Module, side: str, given: Tensor) -> Any:
        kept = averages.kept.get(f"{state.name}.{side}")  # a frozen extractor has no averages
        return module(given) if kept is None else functional_call(module, kept, given)

    return call(state.head, "head", call(state.extractor, "extractor", pixels))
