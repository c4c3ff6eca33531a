"""Result of a run: trained parts, auxiliary heads, losses, and the run's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex, overload

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compatkit.adapters.cutting.sideeffects import copied
from compatkit.contracts.contract import Anchor
from compatkit.errors import UnknownName, UsageError
from compatkit.foundation.display import Shown, aligned
from compatkit.reports.tabular import Tabular
from compatkit.training.networks import parameters_digest
from compatkit.training.task_state import AuxiliaryHead, TaskState


class History(Tabular, list[dict[str, Any]]):
    """List of rows ``{"task", "step", "losses": {name: mean}}``, oldest first, that can also be indexed by names.

    ``history["mnist/accuracy"]`` is the accuracy on the training batches, ``history["mnist/dcc/loss"]`` the loss of a
    regularizer: ``<task>/<name in the rows>``. The task's own loss, ``task`` in the rows, is ``history["mnist/loss"]``
    too. Each is a float64 array ``(rows,)`` of the rows with the name: an inactive regularizer has no loss. ``steps``
    returns the steps of the same rows.

    The table has the same rows, with the run's seed and a column for each loss: ``loss`` for the task's own.

    Attributes:
        seed: Seed of the run, or None.
    """

    seed: int | None = None

    _columns = ("seed", "task", "step", "loss")

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {"seed": self.seed, "task": row["task"], "step": row["step"]}
            | {"loss" if name == "task" else name: value for name, value in row["losses"].items()}
            for row in self
        ]

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice, /) -> list[dict[str, Any]]: ...
    @overload
    def __getitem__(self, key: str, /) -> NDArray[np.float64]: ...
    def __getitem__(self, key: str | SupportsIndex | slice, /) -> Any:
        """Return a row, rows, or the values of a name.

        Raises:
            UnknownName: No row has that name.
        """
        if not isinstance(key, str):
            return super().__getitem__(key)
        return np.array([value for _, value in self._points(key)], dtype=np.float64)

    def steps(self, name: str) -> NDArray[np.int64]:
        """Return the number of completed steps at each value of a name.

        Args:
            name: ``<task>/<name in the rows>``.

        Returns:
            int64 ``(rows,)``, in the order of the rows.

        Raises:
            UnknownName: No row has that name.
        """
        return np.array([step for step, _ in self._points(name)], dtype=np.int64)

    @property
    def names(self) -> tuple[str, ...]:
        """Names with values."""
        return tuple(dict.fromkeys(f"{row['task']}/{name}" for row in self for name in row["losses"]))

    def _points(self, name: str) -> list[tuple[int, float]]:
        """Return step and value of each row with the name."""
        points = [
            (row["step"], value)
            for row in self
            for loss, value in row["losses"].items()
            if name == f"{row['task']}/{loss}" or (loss == "task" and name == f"{row['task']}/loss")
        ]
        if not points:
            raise UnknownName(
                f"The history has no {name!r}; it has {', '.join(self.names) or 'no rows'}.", subject=name
            )
        return points


@attrs.frozen(eq=False, repr=False)
class Fit(Shown):
    """Result of ``Trainer.fit``.

    Attributes:
        tasks: Modules, blueprints, preprocessing and anchors by task.
        auxiliary: Auxiliary heads by name, including frozen ones.
        run: Manifest of the run: plan, plugins, data digests, environment; equal runs have equal manifests.
        history: Losses: rows ``{"task", "step", "losses": {name: mean}}``, and ``history["mnist/loss"]`` as an array.
        plan: Digest of the plan.
        evaluations: Rows of evaluations during training: ``{"task", "step", "on", "weights", "loss", "accuracy"}``.
        averages: Exponential moving averages by owner (``<task>.extractor``, ``shared.<head>``), as state dicts; None
            without ``Trainer(ema=...)``.
    """

    tasks: Mapping[str, TaskState]
    auxiliary: Mapping[str, AuxiliaryHead]
    run: Mapping[str, Any]
    history: History = attrs.field(converter=History)
    plan: str
    evaluations: list[dict[str, Any]] = attrs.field(factory=list)
    averages: Mapping[str, Mapping[str, Tensor]] | None = None

    def __attrs_post_init__(self) -> None:
        """Set the seed of the history."""
        self.history.seed = self.run.get("trainer", {}).get("seed")

    def __str__(self) -> str:
        trainer, plugins = self.run["trainer"], [plugin["as"] for plugin in self.run["plugins"]]
        rows = [("task", "network", "trained on", "loss", "evaluated")]
        for name, state in self.tasks.items():
            history = [row["losses"] for row in self.history if row["task"] == name]
            losses = [losses["task"] for losses in history if "task" in losses]
            evaluations = [row for row in self.evaluations if row["task"] == name]
            network = f"{state.task.model} cut at {state.task.cut}"
            images = f"{len(state.examples):,} images of {state.examples.name}"
            loss = f"{losses[0]:.3g} to {losses[-1]:.3g}" if losses else ""
            last = evaluations[-1] if evaluations else None
            evaluated = "" if last is None else f"accuracy {last['accuracy']:.3f} on {last['on']}"
            rows.append((name, network, images, loss, evaluated))
        names = ", ".join(plugins) or "none"
        title = f"{trainer['steps']:,} steps a task, seed {trainer['seed']}; regularizers: {names}"
        shared = [f"shared heads: {', '.join(self.auxiliary)}"] if self.auxiliary else []
        return "\n".join([title, *aligned(rows), *shared])

    def learning_speed(self, name: str) -> float:
        """Return the area under a task's curve of evaluated accuracy, divided by its range of steps: from 0 to 1.

        Computed by the trapezoid rule, from the first to the last evaluation of the trained weights. With
        ``Trainer(evaluate_every=..., evaluate_on="train")`` it measures how fast the network learned its training set
        (Maennel et al. 2020, app. B). Compare runs with equal steps and evaluations.

        Args:
            name: Name of the task.

        Raises:
            UnknownName: The fit has no such task.
            UsageError: The task was evaluated fewer than twice.
        """
        self._task(name)
        rows = [row for row in self.evaluations if row["task"] == name and row["weights"] == "trained"]
        steps = np.array([row["step"] for row in rows], dtype=np.float64)
        if len(steps) < 2:
            raise UsageError(
                f"The task {name!r} was evaluated {len(steps)} times; a curve needs two points. Train with "
                "Trainer(evaluate_every=..., evaluate_on='train')."
            )
        accuracies = np.array([row["accuracy"] for row in rows], dtype=np.float64)
        means = (accuracies[1:] + accuracies[:-1]) / 2
        return float((means * np.diff(steps)).sum() / (steps[-1] - steps[0]))

    def averaged(self) -> Fit:
        """Return a copy of this fit with the averaged weights in its parts.

        Frozen heads are the same objects. The run's manifest has ``"weights": "averages"``.

        Raises:
            UsageError: The run has no averages.
        """
        if self.averages is None:
            raise UsageError("This fit has no averages of its weights. Train with Trainer(ema=0.999).")
        averages = self.averages

        def with_averages(module: nn.Module, owner: str) -> nn.Module:
            copy = copied(module)
            copy.load_state_dict(dict(averages[owner]), strict=True)
            return copy

        tasks = {
            name: attrs.evolve(
                state,
                extractor=state.extractor
                if state.freezes_extractor
                else with_averages(state.extractor, f"{name}.extractor"),
                head=with_averages(state.head, f"{name}.head") if state.runs_head else state.head,
            )
            for name, state in self.tasks.items()
        }
        heads = {
            name: head
            if head.frozen
            else attrs.evolve(head, module=with_averages(head.module, f"shared.{name}"))
            for name, head in self.auxiliary.items()
        }
        set_anchors(tasks, heads)
        run = {**self.run, "weights": "averages"}
        return attrs.evolve(self, tasks=tasks, auxiliary=heads, run=run, averages=None)

    def _task(self, name: str) -> TaskState:
        if name not in self.tasks:
            raise UnknownName(f"This fit has no task {name!r}; its tasks are {', '.join(self.tasks)}.")
        return self.tasks[name]

    def network(self, name: str) -> nn.Sequential:
        """Return extractor and head of one task as one module."""
        state = self._task(name)
        return nn.Sequential(state.extractor, state.head)

    def weights(self, name: str) -> dict[str, Tensor]:
        """Return the state dict of one task's complete network, for ``Task.weights`` of another task.

        Returns:
            Contiguous copies of all parameters and buffers, by the names of the uncut network.
        """
        state = self._task(name)
        return {
            key: value.detach().clone(memory_format=torch.contiguous_format)
            for part in (state.extractor, state.head)
            for key, value in part.state_dict().items()
        }


def set_anchors(tasks: Mapping[str, TaskState], auxiliary: Mapping[str, AuxiliaryHead]) -> None:
    """Set the anchors of every task: shared initial weights and auxiliary heads that it was trained against.

    A head on a frozen extractor also gets the anchors of the extractor's own auxiliary heads.

    Args:
        tasks: States by name; changed in place.
        auxiliary: Heads by name; digests of trained ones are set.
    """
    for head in auxiliary.values():
        if not head.frozen:
            head.digest = parameters_digest(head.module)
            head.initials = tuple(sorted({state.initial for state in tasks.values()}))
    for state in tasks.values():
        state.anchors = [
            Anchor("initial_weights", state.initial, classes=state.labels if state.rows_named else None),
            *(Anchor("auxiliary_head", head.digest, head.name, head.labels) for head in auxiliary.values()),
        ]
        part = state.task.extractor
        if state.freezes_extractor and part is not None:
            digests = {anchor.digest for anchor in state.anchors}
            inherited = part.manifest.contract.protocol.anchors
            heads = (anchor for anchor in inherited if anchor.kind == "auxiliary_head")
            state.anchors += [anchor for anchor in heads if anchor.digest not in digests]
