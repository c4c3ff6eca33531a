"""Runs in processes of their own on this machine: one that is killed takes its run with it, and no other."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, IntegrityError
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.orders import Order
from compatkit.experiments.sweeps.records import Record
from compatkit.registry.os_errors import environment

TOLD = 600
"""Characters of what a process printed last that are told when it dies."""
THREADS = ("OMP", "MKL", "OPENBLAS")
Each = Callable[[Record], None]


def processes(orders: Sequence[Order], workers: int, threads: int, each: Each) -> None:
    """Carry out ``orders`` by ``workers`` fresh processes; nothing is forked, and nothing but text is handed over.

    Args:
        orders: Runs.
        workers: Processes at a time.
        threads: That each computes with.
        each: Called here, in the caller's thread, with the record of every run as soon as it has ended.

    Raises:
        EnvironmentFailure: No process can be started.
    """
    waiting: queue.SimpleQueue[Order] = queue.SimpleQueue()
    for order in orders:
        waiting.put(order)
    ended: queue.SimpleQueue[Record | BaseException] = queue.SimpleQueue()
    crew = [_Worker(threads, waiting, ended) for _ in range(min(workers, len(orders)))]
    try:
        for one in crew:
            one.thread.start()
        for _ in orders:
            record = ended.get()
            if isinstance(record, BaseException):
                raise record
            each(record)
    finally:
        for one in crew:
            one.stop()
            if one.thread.is_alive():
                one.thread.join()


class _Worker:
    """Hands orders to one process at a time, and starts another where it died."""

    def __init__(
        self,
        threads: int,
        waiting: queue.SimpleQueue[Order],
        ended: queue.SimpleQueue[Record | BaseException],
    ) -> None:
        self.thread = threading.Thread(target=self._work, daemon=True)
        self._threads, self._waiting, self._ended = threads, waiting, ended
        self._child: subprocess.Popen[str] | None = None
        self._printed: IO[bytes] | None = None
        self._stopped = False

    def _work(self) -> None:
        """Work until there is no order left."""
        try:
            while not self._stopped:
                self._ended.put(self._done(self._waiting.get_nowait()))
        except queue.Empty:
            self._stopped = True
        except Exception as error:  # raised again by the thread that waits for records
            self._ended.put(error)
        finally:
            self._leave()

    def stop(self) -> None:
        """Kill the process in the middle of a run; it has nothing left to do otherwise."""
        self._stopped = True
        if self._child is not None:
            self._child.kill()

    def _leave(self) -> None:
        """Let go of the process: at the end of its input it ends."""
        child, self._child = self._child, None
        if child is not None:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):  # it may be dead, with an order in the pipe
                        pipe.close()
            child.wait()
        if self._printed is not None:
            self._printed.close()
            self._printed = None

    def _done(self, order: Order) -> Record:
        """Return the record of a run that its process carried out, or did not survive."""
        if self._child is None:
            self._child = self._launched(Path(order.folder))
        child = self._child
        if self._stopped:
            child.kill()
        told = ""
        if child.stdin is not None and child.stdout is not None:
            with suppress(OSError):  # a process that is gone is told of below
                print(order.dumps(), file=child.stdin, flush=True)
                told = child.stdout.readline()
        if told.strip() == order.run:
            return _read(order)
        record = attrs.evolve(order.begun(), threads=self._threads).failed(self._death(child.wait()))
        self._leave()
        with suppress(CompatkitError):  # the sweep tells of it all the same
            records.write(Path(order.folder), record)
        return record

    def _launched(self, folder: Path) -> subprocess.Popen[str]:
        paths = os.pathsep.join(one for one in sys.path if one)
        variables = {f"{name}_NUM_THREADS": str(self._threads) for name in THREADS}
        self._printed = tempfile.TemporaryFile()
        with environment("start a process beside", folder):
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "compatkit.experiments.sweeps.child", str(self._threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                text=True,
                env={**os.environ, **variables, "PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C goes to the sweep alone, which ends its processes
            )

    def _death(self, code: int) -> EnvironmentFailure:
        said = ""
        if self._printed is not None:
            self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - TOLD))
            said = self._printed.read().decode("utf-8", "replace").strip()
        how = f"exit code {code}"
        if code < 0:
            with suppress(ValueError):
                how = signal.Signals(-code).name
        hint = " The system kills what uses up the memory: take fewer workers." if how == "SIGKILL" else ""
        last = f" It said last: {said}" if said else ""
        return EnvironmentFailure(f"The process of this run ended by {how} before the run did.{hint}{last}")


def _read(order: Order) -> Record:
    try:
        record = records.read(Path(order.folder), order.run)
    except (IntegrityError, EnvironmentFailure) as error:
        return order.begun().failed(error)
    if record is None or record.plan != order.plan:
        return order.begun().failed(
            EnvironmentFailure("Its record was removed by somebody while the sweep ran.")
        )
    return record
