"""Progress of slow work on standard error: a bar in a terminal after a second, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from compatkit.foundation.display import visible

Progress = Callable[[int, int, str], None]
"""Called with what is done, all (0 where that is not known), and what it is."""

PATIENCE = 1.0
"""Seconds before there is a bar."""
OFTEN = 0.1
"""Seconds between two looks of a bar."""
EVERY = 10.0
"""Seconds between two lines where there is no terminal, in the first minute; later there are fewer."""

_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silent(on: bool = True) -> Iterator[None]:
    """Show no bars inside: another one is shown, or none is wanted.

    Args:
        on: False leaves it as it is.
    """
    before = _silent.set(on or _silent.get())
    try:
        yield
    finally:
        _silent.reset(before)


def is_silent() -> bool:
    """Return whether no progress is wanted, or another one is shown."""
    return _silent.get()


def pause(elapsed: float, every: float = EVERY) -> float:
    """Return the seconds between two lines of progress: ``every``, three times it after a minute, six after ten.

    Args:
        elapsed: Seconds since the work began.
        every: In the first minute.
    """
    return every * (1 if elapsed < 60 else 3 if elapsed < 600 else 6)


class Lines:
    """Progress as plain lines, for where there is no terminal; work of less than ``EVERY`` seconds has none.

    Args:
        title: Begins each line.
        unit: What is counted, behind the counts.
    """

    def __init__(self, title: str, unit: str = "") -> None:
        self._title, self._unit = title, f" {unit}" if unit else ""
        self._began = self._reported = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        """Print a line if one is due; see ``Progress``."""
        now = time.monotonic()
        if now - self._reported < pause(now - self._began):
            return
        self._reported = now
        count = f"{done:,} of {total:,}" if total else f"{done:,}"
        print(
            f"{self._title}: {count}{self._unit}{f'; {visible(what)}' if what else ''}",
            file=sys.stderr,
            flush=True,
        )


@contextmanager
def bar(progress: Progress | None = None) -> Iterator[Progress]:
    """Give what is to be called with progress: ``progress``, or what shows it in a bar, or in lines."""
    if progress is not None:
        yield progress
        return
    if _silent.get():
        yield lambda done, total, what: None
        return
    if not sys.stderr.isatty():
        with silent():
            yield Lines("images")
        return
    shown = _Bar()
    try:
        with silent():
            yield shown
    finally:
        shown.stop()


def rich_bar(*, bytes: bool = False) -> Any:
    """Return a ``rich.progress.Progress`` on standard error, not yet started; its tasks have a field ``what``.

    Args:
        bytes: Whether bytes are counted, and shown with their rate.
    """
    from rich import progress
    from rich.console import Console

    counts = (
        (progress.DownloadColumn(), progress.TransferSpeedColumn())
        if bytes
        else (progress.MofNCompleteColumn(),)
    )
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
    """A bar that begins when it is called after some patience."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PATIENCE
        self._bars: Any = None
        self._row: Any = None

    def __call__(self, done: int, total: int, what: str) -> None:
        """Move the bar, not too often."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + OFTEN
        if self._bars is None:
            self._bars = self._begun()
        self._bars.update(self._row, completed=done, total=total or None, what=what)

    def _begun(self) -> Any:
        made = rich_bar()
        self._row = made.add_task("images", total=None, what="")
        made.start()
        return made

    def stop(self) -> None:
        """Take the bar away."""
        if self._bars is not None:
            self._bars.stop()
