"""Losses by name on the way to the screen and into the history, read from the device only now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit.errors import TrainingError


@attrs.define(eq=False)
class Ledger:
    """Collects device scalars and turns them into rows of means, one host read a row.

    Attributes:
        rows: ``{"task", "step", "losses": {name: mean}}``, oldest first.
    """

    rows: list[dict[str, Any]] = attrs.field(factory=list)
    _waiting: dict[str, list[Mapping[str, Tensor]]] = attrs.field(factory=dict)

    def add(self, task: str, measured: Mapping[str, Tensor]) -> None:
        """Keep the scalars of one step."""
        self._waiting.setdefault(task, []).append(measured)

    def close(self, step: int) -> None:
        """Write one row a task for what was collected up to ``step``.

        Raises:
            TrainingError: A loss is not finite; the loss, task and steps are named.
        """
        for task, waiting in self._waiting.items():
            means: dict[str, float] = {}
            for name in dict.fromkeys(name for measured in waiting for name in measured):
                values = torch.stack([measured[name].float() for measured in waiting if name in measured])
                means[name] = float(values.mean())
                if not math.isfinite(means[name]):
                    raise TrainingError(
                        f"The loss {name!r} of task {task!r} is not finite between steps {step - len(waiting)} and "
                        f"{step}. Lower the learning rate, add warm-up steps, or use precision='float32'.",
                        subject=name,
                    )
            self.rows.append({"task": task, "step": step, "losses": means})
        self._waiting.clear()

    def latest(self) -> str:
        """Return the last row of each task as one line."""
        last = {row["task"]: row["losses"] for row in self.rows}
        return "  ".join(
            f"{task}: " + " ".join(f"{name} {value:.3f}" for name, value in losses.items())
            for task, losses in last.items()
        )


class Bar:
    """A rich progress bar with losses, images per second and time left; silent where not wanted."""

    def __init__(self, shown: bool, title: str, total: int, start: int, images_per_step: int) -> None:
        self._images, self._began, self._start = images_per_step, time.perf_counter(), start
        self._progress = None
        if not shown:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[losses]}", markup=False),
            console=Console(stderr=True),
        )
        self._row = self._progress.add_task(title, total=total, completed=start, speed="", losses="")

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def at(self, step: int, losses: str | None = None) -> None:
        """Move to ``step``; ``losses`` replaces the text behind the bar."""
        if self._progress is None:
            return
        fields: dict[str, str] = {}
        if losses is not None:
            seconds = max(time.perf_counter() - self._began, 1e-9)
            fields = {
                "losses": losses,
                "speed": f"{(step - self._start) * self._images / seconds:,.0f} images/s",
            }
        self._progress.update(self._row, completed=step, **fields)
