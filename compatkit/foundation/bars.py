"""Show progress of slow work on standard error: a bar in a terminal, else a line every ten seconds or more."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from compatkit.foundation.credentials import redacted
from compatkit.foundation.display import visible

Progress = Callable[[int, int, str], None]
"""Called with the count done, the total (0 if unknown), and a description of the current item."""

BAR_DELAY = 1.0
"""Seconds before a bar appears."""
BAR_INTERVAL = 0.1
"""Seconds between two updates of a bar."""
LINE_INTERVAL = 10.0
"""Seconds between two lines during the first minute, without a terminal; later they are longer."""

_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silent(on: bool = True) -> Iterator[None]:
    """Show no progress inside the context; used while another bar is shown, or if the user wants none.

    Args:
        on: Whether to silence progress; False keeps the current state.
    """
    before = _silent.set(on or _silent.get())
    try:
        yield
    finally:
        _silent.reset(before)


def is_silent() -> bool:
    """Return whether progress is silenced."""
    return _silent.get()


def line_interval(elapsed: float, every: float = LINE_INTERVAL) -> float:
    """Return the seconds between two lines of progress: ``every``, three times that after 1 minute, six after 10.

    Args:
        elapsed: Seconds since the work began.
        every: Seconds between two lines during the first minute.
    """
    return every * (1 if elapsed < 60 else 3 if elapsed < 600 else 6)


def remaining(elapsed: float, done: int, left: int) -> str | None:
    """Return the expected time of the rest, such as ``"3:20"`` or ``"1:04:00"``; None before anything is done.

    Args:
        elapsed: Seconds that ``done`` took.
        done: Amount done in that time.
        left: Amount left.
    """
    if done <= 0 or left < 0:
        return None
    minutes, seconds = divmod(round(elapsed * left / done), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Lines:
    """Progress as plain lines, without a terminal; work of less than ``LINE_INTERVAL`` seconds prints none.

    Args:
        title: First words of each line.
        unit: Unit after the counts, such as ``images``.
    """

    def __init__(self, title: str, unit: str = "") -> None:
        self._title, self._unit = title, f" {unit}" if unit else ""
        self._began = self._reported = self._stage = time.monotonic()
        self._state: tuple[int, int, str] | None = None
        self._first = 0
        self._lock = threading.Lock()

    def __call__(self, done: int, total: int, what: str) -> None:
        """Print a line if one is due; see ``Progress``."""
        with self._lock:
            if self._state is None or total != self._state[1]:  # what was done before took none of this time
                self._first, self._stage = done, time.monotonic()
            self._state = done, total, what
            self._print()

    @contextmanager
    def repeated(self) -> Iterator[Lines]:
        """Print the last state again inside the context while a long step brings no news."""
        ended = threading.Event()

        def repeat() -> None:
            while not ended.wait(LINE_INTERVAL / 2):
                with self._lock:
                    self._print()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()

    def _print(self) -> None:
        now = time.monotonic()
        if self._state is None or now - self._reported < line_interval(now - self._began):
            return
        self._reported = now
        done, total, what = self._state
        count = f"{done:,} of {total:,}" if total else f"{done:,}"
        left = remaining(now - self._stage, done - self._first, total - done)
        rest = f", {left} left" if left else ""
        item = f"; {visible(redacted(what))}" if what else ""
        print(f"{self._title}: {count}{self._unit}{rest}{item}", file=sys.stderr, flush=True)


@contextmanager
def bar(progress: Progress | None = None) -> Iterator[Progress]:
    """Yield ``progress``, or else a function that shows progress as a bar or as lines."""
    if progress is not None:
        yield progress
        return
    if _silent.get():
        yield lambda done, total, what: None
        return
    if not sys.stderr.isatty():
        with silent(), Lines("images").repeated() as lines:
            yield lines
        return
    shown = _Bar()
    try:
        with silent():
            yield shown
    finally:
        shown.stop()


def rich_bar(*, bytes: bool = False) -> Any:
    """Return a ``rich.progress.Progress`` on standard error, not yet started.

    Pass ``what=`` to ``add_task`` and ``update``: text shown after the bar.

    Args:
        bytes: Whether the counts are bytes, shown with their rate.
    """
    from rich import progress
    from rich.console import Console

    counts: tuple[progress.ProgressColumn, ...] = (progress.MofNCompleteColumn(),)
    if bytes:
        counts = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    return progress.Progress(
        progress.TextColumn("[bold]{task.description}"),
        progress.BarColumn(bar_width=24),
        *counts,
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[what]}", markup=False),
        console=Console(file=sys.stderr),
        transient=True,
    )


class _Bar:
    """A bar that appears at the first call after ``BAR_DELAY`` seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + BAR_DELAY
        self._bars: Any = None
        self._row: Any = None

    def __call__(self, done: int, total: int, what: str) -> None:
        """Update the bar, at most every ``BAR_INTERVAL`` seconds."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + BAR_INTERVAL
        if self._bars is None:
            self._bars = rich_bar()
            self._row = self._bars.add_task("images", total=None, what="")
            self._bars.start()
        self._bars.update(self._row, completed=done, total=total or None, what=what)

    def stop(self) -> None:
        """Remove the bar."""
        if self._bars is not None:
            self._bars.stop()
