"""Back end ``process``: runs in worker processes on this machine; a killed process loses only its own run."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.jobs import DataCache, Job, answer
from compatkit.experiments.sweeps.records import RunRecord
from compatkit.foundation.codec import loads
from compatkit.registry.os_errors import environment

QUOTED = 600
"""Most characters quoted of a dead process's last output."""
THREADS = ("OMP", "MKL", "OPENBLAS")


def processes(jobs: Sequence[Job], workers: int, threads: int, each: Callable[[RunRecord], None]) -> None:
    """Carry out jobs in fresh worker processes (not forked), which exchange only text.

    Args:
        jobs: Runs.
        workers: Processes at a time.
        threads: Computing threads of each.
        each: Called in the caller's thread with the record of each run as soon as it has ended.

    Raises:
        EnvironmentFailure: No process can be started.
    """
    crew = [_Worker(threads) for _ in range(workers)]
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in crew:
        idle.put(worker)

    def run(job: Job) -> RunRecord:
        worker = idle.get()
        try:
            return worker.carry_out(job)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(workers)
    try:
        for ended in as_completed([pool.submit(run, job) for job in jobs]):
            each(ended.result())
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in crew:
            worker.stop()
        raise
    finally:
        pool.shutdown()
        for worker in crew:
            worker.leave()


class _Worker:
    """Sends jobs to one process, and replaces it if it dies."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._child: subprocess.Popen[str] | None = None
        self._printed: IO[bytes] | None = None
        self._stopped = False

    def carry_out(self, job: Job) -> RunRecord:
        """Return the record of a run, also if the process did not survive it."""
        child = self._child = self._child or self._launched(Path(job.folder))
        if self._stopped:
            child.kill()
        line = ""
        if child.stdin is not None and child.stdout is not None:
            with suppress(OSError):  # a dead process is reported below
                print(job.dumps(), file=child.stdin, flush=True)
                line = child.stdout.readline()
        if line.endswith("\n"):
            what = f"the record of {job.run}"
            return RunRecord.from_json(loads(line.encode(), what=what), what)
        record = attrs.evolve(job.begun(), threads=self._threads).failed(self._death(child.wait()))
        self.leave()
        with suppress(CompatkitError):  # the sweep reports the failure anyway
            records.write(Path(job.folder), record)
        return record

    def stop(self) -> None:
        """Kill the process in the middle of a run."""
        self._stopped = True
        if self._child is not None:
            self._child.kill()

    def leave(self) -> None:
        """Close the input of the process, which ends it, and wait for it."""
        child, self._child = self._child, None
        if child is not None:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):  # it may have died with a job in the pipe
                        pipe.close()
            child.wait()
        if self._printed is not None:
            self._printed.close()
            self._printed = None

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
                start_new_session=True,  # Ctrl-C reaches only the sweep, which ends its processes
            )

    def _death(self, code: int) -> EnvironmentFailure:
        said = ""
        if self._printed is not None:
            self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - QUOTED))
            said = self._printed.read().decode("utf-8", "replace").strip()
        cause = f"exit code {code}"
        if code < 0:
            with suppress(ValueError):
                cause = signal.Signals(-code).name
        hint = " The system kills what uses up the memory: take fewer workers." if cause == "SIGKILL" else ""
        last = f" It said last: {said}" if said else ""
        return EnvironmentFailure(f"The process of this run ended by {cause} before the run did.{hint}{last}")


def main(words: Sequence[str]) -> None:
    """Carry out runs in this process: reads one job per line, writes one record per line, until end of input.

    The only argument is the number of threads.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keep the output of plugins apart from the records
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that output before a kill can be quoted
    import torch

    torch.set_num_threads(int(words[0]))
    cache = DataCache()
    for line in sys.stdin:
        print(answer(line, cache), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
