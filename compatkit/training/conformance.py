"""Train with a regularizer to find errors: twice, dry, resumed, in bf16, in micro-batches, at other batch sizes."""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from compatkit.errors import PluginError
from compatkit.hooks import Batch, Training, hookimpl
from compatkit.plugins.implementations import implementations, refuse_class
from compatkit.plugins.isolation import Owner
from compatkit.plugins.selection import RegularizerConfig
from compatkit.training.fit import Fit
from compatkit.training.joint import JointStep
from compatkit.training.prepare import Frozen
from compatkit.training.task import Task
from compatkit.training.task_state import TaskState
from compatkit.training.trainer import Trainer

STEPS, STOP = 4, 2
"""Steps of a run, and the steps that are done when it is interrupted."""
SIZES = (2, 4, 8)
"""Batch sizes whose losses are compared, each twice the one before."""
DOUBLED = (1.6, 2.6)
"""Between these, a loss of twice the images counts as twice the loss."""
CLOSE = 1e-3, 1e-5
"""Relative and absolute: two runs of one seed may differ by the order of float32 sums."""
CHANGES_LOSSES = ("compatkit_sample_losses", "compatkit_joint_losses", "compatkit_combine_gradients")
"""Hooks of losses that a run must have called, or nothing of them was checked."""
BEFORE_STEP = (
    "compatkit_sampler",
    "compatkit_views",
    "compatkit_further_views",
    "compatkit_losses",
    *CHANGES_LOSSES,
)
"""Hooks in which weights stay as they are."""
SETTINGS: dict[str, Any] = {
    "batch_size": SIZES[-1],
    "device": "cpu",
    "precision": "float32",
    "execution": "eager",
    "progress": False,
    "log_every": 1,
    "ema": 0.5,  # for plugins with setup.averaged
    "optimizer": "sgd",  # Adam's first steps turn differences in the last bit into full steps
}


class Companion:
    """Gives steps a second loss, without which there are no gradients to combine."""

    @hookimpl
    def compatkit_losses(self, step: Any) -> Mapping[str, Tensor]:
        """Return the mean square of the features."""
        return {"loss": step.features.square().mean()}


class Interrupter:
    """Interrupts a run after its third step, of which the checkpoint of two knows nothing; unarmed, it does nothing."""

    def __init__(self, armed: bool) -> None:
        self.armed = armed

    @hookimpl
    def compatkit_after_step(self, step: Any) -> None:
        """Interrupt the run."""
        if self.armed and step.number >= STOP:
            raise KeyboardInterrupt


COMPANION, INTERRUPTER = "compatkit-companion", "compatkit-interrupter"


class Trial:
    """A regularizer under test.

    Args:
        factory: Factory of the regularizer.
        used: Settings of the regularizer.
        tasks: Tasks to train.
        frozen: See ``Trainer.fit``.
    """

    def __init__(
        self, factory: Callable[..., Any], used: RegularizerConfig, tasks: Sequence[Task], frozen: Frozen
    ) -> None:
        self.factory, self.used, self.tasks, self.frozen = factory, used, list(tasks), frozen
        self._called: set[str] = set()
        self._implemented: set[str] = set()

    def run(self) -> None:
        """Train in all ways.

        Raises:
            PluginError: A requirement is not met; the message has the remedy.
            TrainingError: A loss is not finite.
        """
        watched = self._replaced(self._checked)
        try:
            complete = self._fit(self.factory, steps=STEPS)
        except RuntimeError:  # of autograd, after a hook wrote into a weight: watched, it says so itself
            self._fit(watched, steps=STEPS)
            raise
        self._same(complete, self._fit(watched, steps=STEPS), "run again with the same seed", _AGAIN)
        for hook in CHANGES_LOSSES:
            if hook in self._implemented - self._called:
                raise self._broken(
                    f"{hook} was not called in {STEPS} steps of {len(self.tasks)} tasks, so nothing of it was checked. "
                    "Give tasks= in which it is."
                )
        trainer, arguments = self._arguments(self.factory, steps=STEPS)
        trainer.explain(**arguments)  # no step
        trainer.profile(**arguments, steps=1)  # steps without compatkit_pretrain
        self._same(complete, self._resumed(), f"interrupted after {STOP} steps and resumed", _RESUMED)
        self._fit(self.factory, steps=1, precision="bf16", accumulate=2)
        self._check_scale(complete)

    def _fit(
        self, factory: Callable[..., Any], interrupter: Interrupter | None = None, **settings: Any
    ) -> Fit:
        trainer, arguments = self._arguments(factory, interrupter, **settings)
        return trainer.fit(**arguments)

    def _arguments(
        self, factory: Callable[..., Any], interrupter: Interrupter | None = None, **settings: Any
    ) -> tuple[Trainer, dict[str, Any]]:
        """Return a trainer, and what it is called with: the plugin, and companions that its hooks need."""
        factories: dict[str, Callable[..., Any]] = {self.used.name: factory}
        instance = self.factory(**self.used.settings)
        if hasattr(instance, "compatkit_combine_gradients"):
            factories[COMPANION] = Companion
        if hasattr(instance, "compatkit_after_evaluation"):
            settings = {"evaluate_every": 1, "evaluate_on": "train", **settings}
        if interrupter is not None:
            factories[INTERRUPTER] = lambda: interrupter
        uses = [self.used, *(RegularizerConfig(name) for name in factories if name != self.used.name)]
        arguments = {"tasks": self.tasks, "regularizers": uses, "frozen": self.frozen, "factories": factories}
        return Trainer(**{**SETTINGS, **settings}), arguments

    def _resumed(self) -> Fit:
        with tempfile.TemporaryDirectory(prefix="compatkit-") as folder:
            state = {"checkpoint": Path(folder) / "state", "checkpoint_every": STOP}
            try:
                self._fit(self.factory, Interrupter(armed=True), steps=STEPS, **state)
            except KeyboardInterrupt as stop:
                if notes := getattr(stop, "__notes__", []):  # errors of the teardown
                    raise self._broken(
                        f"interrupted after {STOP} steps: {' '.join(notes)}. compatkit_teardown follows errors and "
                        "interruptions too, without compatkit_finish."
                    ) from stop
            return self._fit(self.factory, Interrupter(armed=False), steps=STEPS, **state)

    def _same(self, fit: Fit, other: Fit, how: str, remedy: str) -> None:
        """Raise where two runs differ in a loss or a weight."""
        for left, right in zip(fit.history, other.history, strict=True):
            for name, value in left["losses"].items():
                other_value = right["losses"].get(name, math.nan)
                if not math.isclose(value, other_value, rel_tol=CLOSE[0], abs_tol=CLOSE[1]):
                    step = f"step {left['step']} of {left['task']}"
                    raise self._broken(
                        f"{how}, the loss {name!r} of {step} is {other_value}, not {value}. {remedy}"
                    )
        for name, task in fit.tasks.items():
            for key, value in _weights(task):
                if not torch.allclose(value, dict(_weights(other.tasks[name]))[key], *CLOSE):
                    raise self._broken(f"{how}, the weights {key!r} of {name} differ. {remedy}")

    def _check_scale(self, complete: Fit) -> None:
        """Raise for a loss that is a sum over the images of a batch; ``complete`` has the largest batch."""
        rows: list[Sequence[Mapping[str, Any]]] = [
            self._fit(self.factory, steps=1, batch_size=size).history for size in SIZES[:-1]
        ]
        rows.append(complete.history[: len(rows[0])])
        names = {name for row in rows[0] for name in row["losses"] if name.startswith(f"{self.used.as_}/")}
        for name in sorted(names):
            values = [[abs(row["losses"].get(name, 0.0)) for row in history] for history in rows]
            if all(_doubles(*three) for three in zip(*values, strict=True)):
                means = [f"{sum(some) / len(some):.4g}" for some in values]
                raise self._broken(
                    f"the loss {name!r} grows with the number of images: {', '.join(means)} for "
                    f"{', '.join(map(str, SIZES))} images. Use the mean over the batch, not the sum, so that its "
                    "weight does not depend on batch_size or accumulate."
                )

    def _replaced(self, change: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
        """Return a factory of the same settings, of regularizers each of whose hooks is changed."""

        @functools.wraps(self.factory)
        def create(**settings: Any) -> Any:
            instance, owner = self.factory(**settings), Owner(self.used.as_)
            refuse_class(instance, owner, argument_name="what its factory returns")
            self._implemented |= {hook.hook for hook in implementations(instance, Training, owner)}
            return SimpleNamespace(
                **{
                    hook.hook: change(hook.hook, hook.effect, getattr(instance, hook.hook), instance)
                    for hook in implementations(instance, Training, owner)
                }
            )

        return create

    def _checked(self, hook: str, effect: str, call: Callable[..., Any], instance: Any) -> Callable[..., Any]:
        """Return a hook that is checked when it is called."""

        @functools.wraps(call)
        def called(*arguments: Any, **keywords: Any) -> Any:
            self._called.add(hook)
            steps = _steps_of(arguments, keywords) if hook in BEFORE_STEP else []
            if not steps:
                return call(*arguments, **keywords)
            weights = [[(key, weight.clone()) for key, weight in _weights(step.task)] for step in steps]
            data = [{name: tensor.detach().clone() for name, tensor in _data(step)} for step in steps]
            attributes = _attributes(instance)
            result = call(*arguments, **keywords)
            for step, before, kept in zip(steps, data, weights, strict=True):
                for name, now in _data(step):
                    if not torch.equal(before[name], now.detach()):
                        raise self._broken(
                            f"{hook} wrote into the {name} of the step, which the task and other plugins use. Create a "
                            "new tensor instead."
                        )
                for (key, value), (_, now) in zip(kept, _weights(step.task), strict=True):
                    if not torch.equal(value, now):
                        raise self._broken(
                            f"{hook} changed the weights {key!r} of {step.task.name}. Return losses that train them, "
                            "or change them in compatkit_after_step."
                        )
            if effect == "pure":
                again = call(*arguments, **keywords)
                alike = all(map(_equal, _tensors(result), _tensors(again)))
                if _attributes(instance) != attributes or not alike:
                    what = "changes its attributes" if alike else "gives other values when it is called again"
                    raise self._broken(
                        f"{hook} is declared @effect('pure') and {what}. Drop the declaration, or draw from "
                        "step.rng(...) and keep state in compatkit_after_step."
                    )
            return result

        return called

    def _broken(self, message: str) -> PluginError:
        return PluginError(f"Plugin {self.used.as_!r}: {message}", plugin=self.used.name)


_AGAIN = (
    "Draw random numbers from step.rng(...) or setup.rng(...), not from Python's or numpy's random state, and use no "
    "time and no global state."
)
_RESUMED = (
    "Return everything that later steps depend on in compatkit_state, and restore it in compatkit_load_state; "
    "register modules with setup.own."
)


def _steps_of(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """Return the steps among the arguments of a hook: one, those of all tasks in a joint step, or one of a task."""
    steps: list[Any] = []
    for each in (*arguments, *keywords.values()):
        if isinstance(each, JointStep):
            steps += each.steps.values()
        elif isinstance(each, TaskState):  # of a sampler
            steps.append(SimpleNamespace(task=each, batch=None))
        elif hasattr(each, "batch") and hasattr(each, "number"):
            steps.append(each)
    return steps


def _weights(task: Any) -> Iterator[tuple[str, Tensor]]:
    for part in ("extractor", "head"):
        for name, parameter in getattr(task, part).named_parameters():
            yield f"{part}.{name}", parameter.detach()


def _data(step: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a step that all plugins share."""
    tensors = {name: getattr(step.batch, name, None) for name in ("images", "labels")}
    tensors |= {name: getattr(step, name, None) for name in ("features", "logits")}
    tensors |= {f"view {number}": view for number, view in enumerate(getattr(step, "views", ()), 1)}
    yield from ((name, tensor) for name, tensor in tensors.items() if isinstance(tensor, Tensor))


def _doubles(small: float, middle: float, large: float) -> bool:
    low, high = DOUBLED
    return min(small, middle) > 1e-6 and all(low < ratio < high for ratio in (middle / small, large / middle))


def _attributes(instance: Any) -> dict[str, Any]:
    """Return the plain attributes of an object, and the identity and version of its tensors."""
    return {
        name: (id(value), value._version) if isinstance(value, Tensor) else value
        for name, value in getattr(instance, "__dict__", {}).items()
        if isinstance(value, Tensor | bool | int | float | str)
    }


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors that a hook returned: losses by name, views, or a batch."""
    if isinstance(value, Tensor):
        yield value.detach()
    elif isinstance(value, Batch):
        yield from (value.images, value.labels)
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def _equal(value: Tensor, other: Tensor) -> bool:
    return value.shape == other.shape and torch.allclose(value, other, *CLOSE, equal_nan=True)
