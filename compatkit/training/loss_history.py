"""History of losses: results of steps are collected on the device and read once per row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit.errors import TrainingError
from compatkit.training.distributed import ALONE, World
from compatkit.training.step import StepResult


@attrs.define(eq=False)
class LossHistory:
    """Collect scalars on the device and compute rows of means, with one read per row.

    Attributes:
        world: Processes to average over.
        rows: ``{"task", "step", "losses": {name: mean}}``, oldest first.
    """

    world: World = ALONE
    rows: list[dict[str, Any]] = attrs.field(factory=list)
    _waiting: dict[str, list[StepResult]] = attrs.field(factory=dict)

    def add(self, task: str, result: StepResult) -> None:
        """Add the result of one step.

        Args:
            task: Name of the task.
            result: Losses and predictions, on the device.
        """
        self._waiting.setdefault(task, []).append(result)

    def check(self, step: int) -> None:
        """Check the results collected up to ``step``, without removing them.

        Raises:
            TrainingError: A loss is not finite; the message names the first one with its task and step.
        """
        self._means(step)

    def close(self, step: int) -> list[dict[str, Any]]:
        """Add a row for each task from the results collected up to ``step``, and return these rows.

        Raises:
            TrainingError: A loss is not finite; the message names the first one with its task and step.
        """
        new = [{"task": task, "step": step, "losses": means} for task, means in self._means(step).items()]
        self.rows.extend(new)
        self._waiting.clear()
        return new

    def _means(self, step: int) -> dict[str, dict[str, float]]:
        means = {task: _means(results) for task, results in self._waiting.items()}
        if self.world.size > 1:
            pairs = self._waiting.items()
            means = {task: self._over_processes(means[task], results) for task, results in pairs}
        if not all(math.isfinite(mean) for task_means in means.values() for mean in task_means.values()):
            raise self._not_finite_error(step)
        return means

    def _not_finite_error(self, step: int) -> TrainingError:
        """Return the error for the first loss that is not finite; reads the losses of each step."""
        faults = [
            (number, task, name, float(value))
            for task, waiting in self._waiting.items()
            for number, result in enumerate(waiting, step - len(waiting))
            for name, value in result.losses.items()
            if not math.isfinite(float(value))
        ]
        if not faults:
            self.world.gather(None)  # never returns: the process that has the loss raises the error
        number, task, name, value = min(faults, key=lambda fault: fault[0])
        images = self._waiting[task][number - step].images
        if images is not None and not math.isfinite(float(images)):
            return TrainingError(
                f"The images of task {task!r} are not finite in step {number}, counted from 0, nor are its losses. "
                "Check the task's loader, or plugins with compatkit_views.",
                subject=task,
            )
        quantity = "The gradient norm" if name == "gradient_norm" else f"The loss {name!r}"
        plugin, slash, _ = name.partition("/")
        origin = f" The plugin {plugin!r} computed it; the task's own loss was finite." if slash else ""
        plain = self._waiting[task][number - step].losses.get("cross_entropy")
        if name == "task" and plain is not None and math.isfinite(float(plain)):
            origin = " A plugin with compatkit_sample_losses changed it; the cross-entropy was finite."
        return TrainingError(
            f"{quantity} of task {task!r} is {value} in step {number}, counted from 0.{origin} Lower the learning "
            "rate, add warm-up steps, set clip_norm, or use precision='float32'.",
            subject=name,
        )

    def _over_processes(self, means: Mapping[str, float], results: Sequence[StepResult]) -> dict[str, float]:
        """Return the means over all processes; a process without a loss that another has counts as 0."""
        steps_with = {
            name: [step for step, result in enumerate(results) if name in result.names] for name in means
        }
        gathered = self.world.gather({name: (means[name], steps_with[name]) for name in means})
        overall: dict[str, float] = {}
        for name in dict.fromkeys(name for reports in gathered for name in reports):
            with_loss = [reports[name] for reports in gathered if name in reports]
            steps = {step for _, steps in with_loss for step in steps}
            total = sum(mean * len(steps_of) for mean, steps_of in with_loss)
            overall[name] = total / (self.world.size * len(steps))
        return overall

    def waiting(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the results that are in no row yet, for a checkpoint between two rows.

        Returns:
            Tensors by name on the run's device, and JSON values with the step and loss of each.
        """
        tensors: dict[str, Tensor] = {}
        note: dict[str, Any] = {}
        for task, steps in self._waiting.items():
            names = note[task] = {"steps": len(steps), "names": {}}
            for name in dict.fromkeys(name for step in steps for name in step.losses):
                at = [number for number, step in enumerate(steps) if name in step.losses]
                tensors[f"loss/{task}/{name}"] = torch.stack([steps[number].losses[name] for number in at])
                names["names"][name] = {"at": at, "sizes": []}
            if sides := _predictions(steps):
                for side, parts in zip(("predicted", "true"), sides, strict=True):
                    tensors[f"{side}/{task}/accuracy"] = torch.cat(parts)
                at = [number for number, step in enumerate(steps) if step.predicted is not None]
                names["names"]["accuracy"] = {"at": at, "sizes": [len(part) for part in sides[0]]}
        return tensors, note

    def restore(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any], device: str) -> None:
        """Restore the result of ``waiting`` on the run's device.

        Args:
            tensors: First value of ``waiting``.
            note: Second value of ``waiting``.
            device: Device of the run.
        """
        for task, entry in note.items():
            losses: list[dict[str, Tensor]] = [{} for _ in range(entry["steps"])]
            predictions: list[tuple[Tensor, ...]] = [() for _ in losses]
            for name, stored in entry["names"].items():
                if stored["sizes"]:
                    sides = (tensors[f"{side}/{task}/{name}"].to(device) for side in ("predicted", "true"))
                    parts = (side.split(stored["sizes"]) for side in sides)
                    for number, *pair in zip(stored["at"], *parts, strict=True):
                        predictions[number] = tuple(pair)
                else:
                    values = tensors[f"loss/{task}/{name}"].to(device).unbind()
                    for number, value in zip(stored["at"], values, strict=True):
                        losses[number][name] = value
            pairs = zip(losses, predictions, strict=True)
            self._waiting[task] = [StepResult(step_losses, *pair) for step_losses, pair in pairs]

    def current(self) -> dict[str, dict[str, float]]:
        """Return this process's mean losses of the steps that are in no row yet, or those of the last row.

        Waits for the device.

        Returns:
            Values by task and name.
        """
        return self.latest() | {task: _means(steps) for task, steps in self._waiting.items() if steps}

    def latest(self) -> dict[str, dict[str, float]]:
        """Return the losses of the last row of each task, by task and name."""
        rows = takewhile(lambda row: row["step"] == self.rows[-1]["step"], reversed(self.rows))
        return {row["task"]: row["losses"] for row in reversed(list(rows))}


def _means(steps: Sequence[StepResult]) -> dict[str, float]:
    """Return the mean of each loss, and the accuracy, with one read each."""
    names = dict.fromkeys(name for step in steps for name in step.losses)
    means = {
        name: float(torch.stack([step.losses[name].float() for step in steps if name in step.losses]).mean())
        for name in names
    }
    if sides := _predictions(steps):
        predicted, true = map(torch.cat, sides)
        means["accuracy"] = float((predicted == true).float().mean())
    if "gradient_norm" in means:
        means["gradient_norm"] = means.pop("gradient_norm")  # rows name it last
    return means


def _predictions(steps: Sequence[StepResult]) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return predicted and true classes of the steps with predictions; None if there are none."""
    predicted = [step.predicted for step in steps if step.predicted is not None]
    return (predicted, [step.true for step in steps if step.true is not None]) if predicted else None
