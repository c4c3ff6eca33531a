"""Where a run is: a bar in a terminal or a notebook, and plain lines now and then wherever else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

EVERY = 10.0
"""Seconds between two lines."""


class Bar:
    """Images per second, time left, and the losses by name; on standard error, and silent where not wanted."""

    def __init__(self, shown: bool, title: str, total: int, start: int, images_per_step: int) -> None:
        self._title, self._total, self._start, self._images = title, total, start, images_per_step
        self._began = self._told = time.perf_counter()
        self._losses: Mapping[str, Mapping[str, float]] = {}
        self._shown, self._live = shown, None
        console = _console() if shown else None
        if console is not None:
            self._live = self._lively(console)

    def _lively(self, console: Console) -> Live:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[speed]}"),
        )
        self._row = self._progress.add_task(self._title, total=self._total, completed=self._start, speed="")
        return Live(get_renderable=self._render, console=console, refresh_per_second=4)

    def __enter__(self) -> Bar:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.refresh()  # in a notebook, stop() does not show the end
            self._live.stop()

    def at(self, step: int, losses: Mapping[str, Mapping[str, float]]) -> None:
        """Move to ``step`` and show ``losses``, by task and name."""
        self._losses = losses
        self.step(step)

    def step(self, step: int) -> None:
        """Move to ``step``; the losses are those that were shown last."""
        if self._live is not None:
            self._progress.update(self._row, completed=step, speed=f"{self._speed(step):,.0f} images/s")
        elif self._shown and (time.perf_counter() - self._told >= EVERY or step == self._total):
            self._told = time.perf_counter()
            print(self._line(step), file=sys.stderr, flush=True)

    def _speed(self, step: int) -> float:
        return (step - self._start) * self._images / max(time.perf_counter() - self._began, 1e-9)

    def _line(self, step: int) -> str:
        """Return where the run is in words."""
        losses = (
            f"{task}: {', '.join(f'{name} {value:.3f}' for name, value in of_task.items())}"
            for task, of_task in self._losses.items()
        )
        speed = self._speed(step)
        left = round((self._total - step) * self._images / speed) if speed else 0
        rate = f"{speed:,.0f} images/s", f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
        return "; ".join((f"{self._title}: step {step:,} of {self._total:,}", *losses, *rate))

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


def _console() -> Console | None:
    """Return where a bar can move: a terminal, or a notebook that has widgets; None where only lines help."""
    from rich.console import Console

    console = Console(stderr=True)
    widgets = console.is_jupyter and find_spec("ipywidgets") is not None
    return console if widgets or (sys.stderr.isatty() and not console.is_dumb_terminal) else None
