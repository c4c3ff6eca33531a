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
from io import TextIOWrapper
from pathlib import Path
from typing import IO

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, IntegrityError
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.jobs import DataCache, Job, carry_out
from compatkit.experiments.sweeps.records import RunRecord
from compatkit.registry.os_errors import environment

TOLD = 600
"""Characters of a dead process's last output that are quoted."""
THREADS = ("OMP", "MKL", "OPENBLAS")
Each = Callable[[RunRecord], None]


def processes(jobs: Sequence[Job], workers: int, threads: int, each: Each) -> None:
    """Carry out ``jobs`` by ``workers`` fresh processes; nothing is forked, and nothing but text is handed over.

    Args:
        jobs: Runs.
        workers: Processes at a time.
        threads: That each computes with.
        each: Called here, in the caller's thread, with the record of every run as soon as it has ended.

    Raises:
        EnvironmentFailure: No process can be started.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    ended: queue.SimpleQueue[RunRecord | BaseException] = queue.SimpleQueue()
    crew = [_Worker(threads, waiting, ended) for _ in range(min(workers, len(jobs)))]
    try:
        for one in crew:
            one.thread.start()
        for _ in jobs:
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
    """Hands jobs to one process at a time, and starts another where it died."""

    def __init__(
        self,
        threads: int,
        waiting: queue.SimpleQueue[Job],
        ended: queue.SimpleQueue[RunRecord | BaseException],
    ) -> None:
        self.thread = threading.Thread(target=self._work, daemon=True)
        self._threads, self._waiting, self._ended = threads, waiting, ended
        self._child: subprocess.Popen[str] | None = None
        self._printed: IO[bytes] | None = None
        self._stopped = False

    def _work(self) -> None:
        """Work until there is no job left."""
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
                    with suppress(OSError):  # it may be dead, with a job in the pipe
                        pipe.close()
            child.wait()
        if self._printed is not None:
            self._printed.close()
            self._printed = None

    def _done(self, job: Job) -> RunRecord:
        """Return the record of a run that its process carried out, or did not survive."""
        if self._child is None:
            self._child = self._launched(Path(job.folder))
        child = self._child
        if self._stopped:
            child.kill()
        told = ""
        if child.stdin is not None and child.stdout is not None:
            with suppress(OSError):  # a process that is gone is told of below
                print(job.dumps(), file=child.stdin, flush=True)
                told = child.stdout.readline()
        if told.strip() == job.run:
            return _read(job)
        record = attrs.evolve(job.begun(), threads=self._threads).failed(self._death(child.wait()))
        self._leave()
        with suppress(CompatkitError):  # the sweep tells of it all the same
            records.write(Path(job.folder), record)
        return record

    def _launched(self, folder: Path) -> subprocess.Popen[str]:
        paths = os.pathsep.join(one for one in sys.path if one)
        variables = {f"{name}_NUM_THREADS": str(self._threads) for name in THREADS}
        self._printed = tempfile.TemporaryFile()
        with environment("start a process beside", folder):
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "compatkit.experiments.sweeps.processes", str(self._threads)],
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


def _read(job: Job) -> RunRecord:
    try:
        record = records.read(Path(job.folder), job.run)
    except (IntegrityError, EnvironmentFailure) as error:
        return job.begun().failed(error)
    if record is None or record.plan != job.plan:
        return job.begun().failed(
            EnvironmentFailure("Its record was removed by somebody while the sweep ran.")
        )
    return record


def main(words: Sequence[str]) -> None:
    """Carry out runs in this process: a job a line comes in, the run's name goes out when its record is kept.

    It ends when no job comes any more; the one argument is the number of threads.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a plugin prints is no answer
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what was printed before a kill is to be told
    import torch

    torch.set_num_threads(int(words[0]))
    cache = DataCache()
    for line in sys.stdin:
        record = carry_out(Job.loads(line), cache)
        print(record.run, file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
