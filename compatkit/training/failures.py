"""Failures of one process among several: one process reports the error, and none waits forever.

A process that fails writes its reason into the store that torchrun keeps for all. The first one to write raises the
error. The others stay silent until torchrun terminates them, which it does as soon as one process has ended. A process
that loses the connection to another finds the reason there.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import attrs

from compatkit.errors import TrainingError

_KEY = "failure"
HEAD_START = 0.3
"""Seconds by which process 0 goes first, where all fail alike."""
GRACE = 30.0
"""Seconds in which torchrun terminates the others."""


class ProcessLost(Exception):
    """Another process did not answer."""


class Ended(BaseException):
    """This process received SIGTERM; not an Exception, so that no plugin catches it."""


@contextmanager
def detect_lost_processes() -> Iterator[None]:
    """Turn errors of the connection into ``ProcessLost``."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLost(str(error).splitlines()[0]) from error


@attrs.define(eq=False)
class Failures:
    """Reports the failure of any process of a run once.

    Attributes:
        rank: Rank of this process.
        size: Count of processes.
        store: Shared by the processes; outlives each of them under torchrun.
        addresses: Host and process id, by rank.
        checkpoint: File to resume from, for messages.
    """

    rank: int
    size: int
    store: Any
    addresses: Sequence[Sequence[Any]]
    checkpoint: str | os.PathLike[str] | None
    _over: bool = False
    _terminating: bool = False

    @property
    def _own(self) -> str:
        return f"process {self.rank} of {self.size}"

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Let one process raise the error of the body; end the others silently.

        Raises:
            TrainingError: Another process failed or is gone, or this one received SIGTERM.
        """
        before = None
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGTERM, self._end)
        try:
            yield
        except (ProcessLost, Ended) as error:
            self._over = True
            self._give_up(error)
        except Exception as error:
            self._over = True
            if self.rank:
                time.sleep(HEAD_START)
            self._claim(f"{type(error).__name__}: {error}")
            error.add_note(f"Raised in {self._own}.")
            raise
        finally:
            if before is not None and not self._over:
                signal.signal(signal.SIGTERM, before)

    def _end(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM: torchrun sends it when another process is gone, a cluster when time is up."""
        self._terminating = True
        if not self._over:
            raise Ended

    def _give_up(self, error: ProcessLost | Ended) -> NoReturn:
        """Raise the error of a run that another process ended."""
        gone = self._gone()
        if gone:
            what = f"{gone} is gone: killed, or out of memory"
        elif isinstance(error, Ended):
            what = f"{self._own} was asked to end (SIGTERM)"
        else:
            what = f"another process than {self.rank} of {self.size} is gone or does not answer ({error})"
        self._claim(what)
        remedy = "Start it again; a run with a checkpoint resumes from there."
        if self.checkpoint is not None and (path := Path(self.checkpoint)).exists():
            remedy = f"Start it again: it resumes from the checkpoint {path}."
        raise TrainingError(f"The run cannot continue: {what}. {remedy}") from None

    def _claim(self, message: str) -> None:
        """Record the failure of this process; if another was first, wait to be ended, then raise its error."""
        own = json.dumps([self.rank, message])
        try:
            recorded = self.store.compare_set(_KEY, "", own).decode()
        except RuntimeError:  # the store went with process 0: any process that is left reports
            return
        if recorded == own:
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if self._terminating:
                os.kill(os.getpid(), signal.SIGTERM)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            time.sleep(GRACE)
        rank, reason = json.loads(recorded)
        raise TrainingError(
            f"The run cannot continue: process {rank} of {self.size} failed first: {reason}"
        ) from None

    def _gone(self) -> str:
        """Name the processes of this machine that have ended."""
        time.sleep(HEAD_START)  # a process that is ending is not gone yet
        names = [
            f"process {rank} of {self.size} (id {number})"
            for rank, (host, number) in enumerate(self.addresses)
            if rank != self.rank and host == socket.gethostname() and _dead(number)
        ]
        return " and ".join(names)


def _dead(number: int) -> bool:
    """Return whether a process of this machine has ended, waited for or not."""
    try:
        state = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
        return state.rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return Path("/proc/self").exists()  # only Linux can tell
