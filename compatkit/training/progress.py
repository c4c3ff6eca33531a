"""Progress of a run: a bar or plain lines on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING

from compatkit.foundation.bars import LINE_INTERVAL, line_interval

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

Losses = Mapping[str, Mapping[str, float]]
"""Values by task and name."""


class Bar:
    """Progress bar on standard error with images per second, remaining time, and losses.

    Without a terminal it prints lines instead, at first every ``LINE_INTERVAL`` seconds and then less often.

    Args:
        shown: Whether to show anything.
        title: Text before the bar.
        total: Number of all steps.
        start: Number of completed steps.
        images_per_step: Images of a step.
    """

    def __init__(self, shown: bool, title: str, total: int, start: int, images_per_step: int) -> None:
        self._title, self._total, self._start, self._images = title, total, start, images_per_step
        self._start_time = time.perf_counter()
        self._due_at = self._start_time + LINE_INTERVAL
        self._losses: Losses = {}
        console = _console() if shown else None
        self._shown, self._live = shown, None if console is None else self._live_display(console)

    def _live_display(self, console: Console) -> Live:
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

    def at(self, step: int, losses: Losses) -> None:
        """Set the number of completed steps and show losses.

        Args:
            step: Number of completed steps.
            losses: Values by task and name.
        """
        self._losses = losses
        self.step(step)

    def step(self, step: int, losses: Callable[[], Losses] | None = None) -> None:
        """Set the number of completed steps.

        Args:
            step: Number of completed steps.
            losses: Function that returns the current losses, called only if they are shown; None to keep the last ones.
        """
        if not self._shown:
            return
        now = time.perf_counter()
        due = now >= self._due_at
        if losses is not None and (due or (self._live is not None and not self._losses)):
            self._losses = losses()
        if due:
            self._due_at = now + line_interval(now - self._start_time, LINE_INTERVAL)
        if self._live is not None:
            self._progress.update(self._row, completed=step, speed=f"{self._speed(step):,.0f} images/s")
        elif due or step == self._total:
            self._print(self._line(step))

    def evaluated(self, step: int, figures: Losses) -> None:
        """Print the results of an evaluation in a line.

        Args:
            step: Number of completed steps.
            figures: Values by task and name.
        """
        self.say(step, "; ".join(_loss_texts(figures)))

    def say(self, step: int, text: str) -> None:
        """Print a line.

        Args:
            step: Number of completed steps.
            text: What to tell.
        """
        if self._shown:
            self._print(f"{self._position(step)}; {text}")

    def _print(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def _position(self, step: int) -> str:
        return f"{self._title}: step {step:,} of {self._total:,}"

    def _speed(self, step: int) -> float:
        return (step - self._start) * self._images / max(time.perf_counter() - self._start_time, 1e-9)

    def _line(self, step: int) -> str:
        """Return the progress as a line of text."""
        speed = self._speed(step)
        seconds = round((self._total - step) * self._images / speed) if speed else 0
        remaining = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"
        rate = f"{speed:,.0f} images/s", remaining
        return "; ".join((self._position(step), *_loss_texts(self._losses), *rate))

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


def _loss_texts(losses: Losses) -> Iterator[str]:
    for task, values in losses.items():
        yield f"{task}: {', '.join(f'{name} {value:.3f}' for name, value in values.items())}"


def _console() -> Console | None:
    """Return a console for a live bar: a terminal, or a notebook with widgets; None if only lines can be shown."""
    from rich.console import Console

    console = Console(stderr=True)
    widgets = console.is_jupyter and find_spec("ipywidgets") is not None
    return console if widgets or (sys.stderr.isatty() and not console.is_dumb_terminal) else None
