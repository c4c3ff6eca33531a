"""Losses by name on the way to the screen and into the history, read from the device only now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from compatkit.errors import TrainingError
from compatkit.training.distributed import ALONE, World

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


Measured = Mapping[str, Tensor | tuple[Tensor, Tensor]]
"""What one step measured: losses, and predicted and true classes, on the device."""


@attrs.define(eq=False)
class Ledger:
    """Collects device scalars and turns them into rows of means, one host read a row.

    Attributes:
        world: Rows are means over its processes.
        rows: ``{"task", "step", "losses": {name: mean}}``, oldest first.
    """

    world: World = ALONE
    rows: list[dict[str, Any]] = attrs.field(factory=list)
    _waiting: dict[str, list[Measured]] = attrs.field(factory=dict)

    def add(self, task: str, measured: Measured) -> None:
        """Keep what one step measured."""
        self._waiting.setdefault(task, []).append(measured)

    def check(self, step: int) -> None:
        """Look at what was collected up to ``step``, and go on collecting.

        Raises:
            TrainingError: A loss is not finite; the first one is named with its task and step.
        """
        self._means(step)

    def close(self, step: int) -> list[dict[str, Any]]:
        """Write one row a task for what was collected up to ``step``, and return these rows.

        Raises:
            TrainingError: A loss is not finite; the first one is named with its task and step.
        """
        new = [{"task": task, "step": step, "losses": means} for task, means in self._means(step).items()]
        self.rows.extend(new)
        self._waiting.clear()
        return new

    def _means(self, step: int) -> dict[str, dict[str, float]]:
        means = {
            task: {
                name: _mean([measured[name] for measured in waiting if name in measured])
                for name in dict.fromkeys(name for measured in waiting for name in measured)
            }
            for task, waiting in self._waiting.items()
        }
        if self.world.size > 1:
            means = {
                task: self._over_processes(means[task], waiting) for task, waiting in self._waiting.items()
            }
        if not all(math.isfinite(one) for of_task in means.values() for one in of_task.values()):
            raise self._first(step)
        return means

    def _first(self, step: int) -> TrainingError:
        """Return the error for the first loss that is not finite; only now each step's is read."""
        faults = [
            (number, task, name, float(value))
            for task, waiting in self._waiting.items()
            for number, measured in enumerate(waiting, step - len(waiting))
            for name, value in measured.items()
            if isinstance(value, Tensor) and not math.isfinite(float(value))
        ]
        if not faults:
            self.world.gather(None)  # never answered: the process that has it raises the error
        number, task, name, value = min(faults, key=lambda fault: fault[0])
        what = "The gradient norm" if name == "gradient_norm" else f"The loss {name!r}"
        plugin, named, _ = name.partition("/")
        cause = (
            f"The plugin {plugin!r} computed it; the loss of the task was finite. Correct the plugin, or lower "
            if (named)
            else "Lower "
        )
        return TrainingError(
            f"{what} of task {task!r} is not finite in step {number}, counted from 0: it is {value}. {cause}the "
            "learning rate, add warm-up steps, clip the gradients with clip_norm, or use precision='float32'.",
            subject=name,
        )

    def _over_processes(self, means: Mapping[str, float], waiting: Sequence[Measured]) -> dict[str, float]:
        """Return the means over all processes; who has no such loss in a step where another has, has 0 of it."""
        places = {name: [at for at, one in enumerate(waiting) if name in one] for name in means}
        everyone = self.world.gather({name: (means[name], places[name]) for name in means})
        whole: dict[str, float] = {}
        for name in dict.fromkeys(name for one in everyone for name in one):
            told = [one[name] for one in everyone if name in one]
            steps = {at for _, places in told for at in places}
            whole[name] = sum(mean * len(at) for mean, at in told) / (self.world.size * len(steps))
        return whole

    def latest(self) -> dict[str, dict[str, float]]:
        """Return the losses of the last row of each task, by task and name."""
        return {row["task"]: row["losses"] for row in self.rows}


def _mean(measured: Sequence[Tensor | tuple[Tensor, Tensor]]) -> float:
    """Return the mean of losses, or the share of predicted classes that are the true ones; reads the device once."""
    pairs = [one for one in measured if isinstance(one, tuple)]
    if pairs:
        predicted, true = (torch.cat(side) for side in zip(*pairs, strict=True))
        return float((predicted == true).float().mean())
    return float(torch.stack([one.float() for one in measured if isinstance(one, Tensor)]).mean())


class Bar:
    """A progress bar with images per second and time left, the losses by name below; silent where not wanted."""

    def __init__(self, shown: bool, title: str, total: int, start: int, images_per_step: int) -> None:
        self._images, self._began, self._start = images_per_step, time.perf_counter(), start
        self._losses: Mapping[str, Mapping[str, float]] = {}
        self._live: Live | None = None
        if not shown:
            return
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[speed]}"),
        )
        self._row = self._progress.add_task(title, total=total, completed=start, speed="")
        self._live = Live(get_renderable=self._render, console=Console(stderr=True), refresh_per_second=4)

    def __enter__(self) -> Bar:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def at(self, step: int, losses: Mapping[str, Mapping[str, float]]) -> None:
        """Move to ``step`` and show ``losses``, by task and name."""
        if self._live is None:
            return
        seconds = max(time.perf_counter() - self._began, 1e-9)
        speed = f"{(step - self._start) * self._images / seconds:,.0f} images/s"
        self._progress.update(self._row, completed=step, speed=speed)
        self._losses = losses

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_edge=False)
        names = list(dict.fromkeys(name for losses in self._losses.values() for name in losses))
        for name in ("", *names):
            table.add_column(name, justify="right" if name else "left", style="dim")
        for task, losses in self._losses.items():
            table.add_row(task, *(f"{losses[name]:.3f}" if name in losses else "" for name in names))
        return Group(self._progress, table) if self._losses else Group(self._progress)
