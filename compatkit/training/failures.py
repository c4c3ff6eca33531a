"""When one process of several fails or is lost: one of them says so, once; none is left waiting.

Whoever fails leaves a word in the store that torchrun keeps for the processes. Who then finds a partner gone looks
there. The first to write is the one that raises the error; the others hold their tongue and wait for torchrun to end
them, which it does as soon as one has ended.
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

from compatkit.errors import CompatkitError, TrainingError

_KEY = "failure"
HEAD_START = 0.3
"""Seconds by which process 0 goes first, where all fail alike."""
GRACE = 30.0
"""Seconds in which torchrun ends the others."""


class Lost(Exception):
    """Another process did not answer."""


class Ended(BaseException):
    """This process was asked to end; no plugin may catch it."""


@contextmanager
def losing() -> Iterator[None]:
    """Tell errors of the connection from all others."""
    try:
        yield
    except RuntimeError as error:
        raise Lost(str(error).splitlines()[0]) from error


@attrs.define(eq=False)
class Failures:
    """What becomes of a failure in one of the processes.

    Attributes:
        rank: Of this process.
        size: Count of processes.
        store: Survives each of them, under torchrun.
        places: Host and process id, by rank.
        checkpoint: To go on from.
    """

    rank: int
    size: int
    store: Any
    places: Sequence[Sequence[Any]]
    checkpoint: str | os.PathLike[str] | None
    _over: bool = False
    _asked: bool = False

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Let one process raise what happened inside to any of them; end the others without a word.

        Raises:
            TrainingError: Another process failed or is gone, or this one was asked to end.
        """
        before = self._listen()
        try:
            yield
        except (Lost, Ended) as error:
            self._over = True
            self._give_up(error)
        except Exception as error:
            self._over = True
            self._fail(error)
            raise
        finally:
            if before is not None and not self._over:
                signal.signal(signal.SIGTERM, before)

    def _listen(self) -> Any:
        """Take SIGTERM as a word: torchrun sends it when another process is gone, a cluster when time is up."""
        if threading.current_thread() is not threading.main_thread():
            return None

        def end(number: int, frame: FrameType | None) -> None:
            self._asked = True
            if not self._over:
                raise Ended

        return signal.signal(signal.SIGTERM, end)

    def _fail(self, error: Exception) -> None:
        """Say whose an error is; return where this process is the one to raise it."""
        if self.rank:
            time.sleep(HEAD_START)
        who = f"process {self.rank} of {self.size}"
        told = self._claim(f"{type(error).__name__}: {error}")
        if told is not None:
            self._fall_silent(told)
        if isinstance(error, CompatkitError):
            error.args = (f"{error} (In {who}.)", *error.args[1:])
        else:
            error.add_note(f"Raised in {who}.")

    def _give_up(self, error: Lost | Ended) -> NoReturn:
        """Raise the one error of a run that another process ended."""
        gone = self._gone()
        if gone:
            what = f"{gone} is gone: killed, or out of memory"
        elif isinstance(error, Ended):
            what = f"process {self.rank} of {self.size} was asked to end (SIGTERM)"
        else:
            what = f"another process than {self.rank} of {self.size} is gone or does not answer ({error})"
        told = self._claim(what)
        if told is not None:
            self._fall_silent(told)
        raise TrainingError(f"The run cannot go on: {what}. {self._remedy()}") from None

    def _claim(self, message: str) -> str | None:
        """Leave the word of this process; return another's, where that was first."""
        own = json.dumps([self.rank, message])
        try:
            held = self.store.compare_set(_KEY, "", own).decode()
        except RuntimeError:  # the store went with process 0: whoever is left speaks
            return None
        rank, told = json.loads(held)
        return None if held == own else f"process {rank} of {self.size} failed first: {told}"

    def _fall_silent(self, told: str) -> NoReturn:
        """Wait to be ended, unless that was asked already; without torchrun raise what the other said."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if self._asked:
                os.kill(os.getpid(), signal.SIGTERM)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            time.sleep(GRACE)
        raise TrainingError(f"The run cannot go on: {told}") from None

    def _gone(self) -> str:
        """Name the processes of this machine that are no more."""
        time.sleep(HEAD_START)  # a process that is ending is not gone yet
        names = [
            f"process {rank} of {self.size} (id {number})"
            for rank, (host, number) in enumerate(self.places)
            if rank != self.rank and host == socket.gethostname() and _dead(number)
        ]
        return " and ".join(names)

    def _remedy(self) -> str:
        path = None if self.checkpoint is None else Path(self.checkpoint)
        if path is not None and path.exists():
            return f"Start it again: it goes on from the checkpoint {path}."
        return "Start it again; a run that keeps a checkpoint goes on from there."


def _dead(number: int) -> bool:
    """Return whether a process of this machine has ended, waited for or not."""
    try:
        state = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
        return state.rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return Path("/proc/self").exists()  # elsewhere than on Linux nobody knows
