"""Threads whose every step that changes the disk waits until it is told: two of them meet in any order."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from registry_parts import check

PATIENCE = 60
"""Seconds to wait for a thread that should come to its next step."""


class Actor:
    """A thread that does one step each time it is told to."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.turn, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.finished, self.free = False, False
        self.error: BaseException | None = None
        self.told = ""
        self.thread = threading.Thread(target=self._run, args=(act,))
        self.thread.start()

    def _run(self, act: Callable[[], object]) -> None:
        self._wait()
        try:
            act()
        except BaseException as error:
            self.error, self.told = error, traceback.format_exc()
        self.finished = True
        self.done.release()

    def _wait(self) -> None:
        if not self.turn.acquire(timeout=PATIENCE):
            raise TimeoutError("nobody's turn")

    def reached(self) -> None:
        """Wait before a step until told to do it."""
        if not self.free:
            self.done.release()
            self._wait()

    def step(self) -> None:
        """Let the thread come as far as its next step."""
        if not self.finished:
            self.turn.release()
            check(self.done.acquire(timeout=PATIENCE), "a thread does not come to its next step")

    def finish(self) -> None:
        """Let the thread do all that is left."""
        self.free = True
        if not self.finished:
            self.turn.release()
            check(self.done.acquire(timeout=PATIENCE), "a thread does not end")
        self.thread.join()
