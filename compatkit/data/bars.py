"""Progress bars of slow work on image files: in a terminal, on standard error, once the work has taken a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Progress = Callable[[int, int, str], None]
"""Called with what is done, all (0 where that is not known), and what it is."""

PATIENCE = 1.0
"""Seconds before there is a bar."""
OFTEN = 0.1
"""Seconds between two looks of a bar."""

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


@contextmanager
def bar(given: Progress | None = None) -> Iterator[Progress]:
    """Give what is to be called with progress: ``given``, or what moves a bar in a terminal."""
    if given is not None:
        yield given
        return
    if _silent.get() or not sys.stderr.isatty():
        yield lambda done, total, what: None
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
