"""Worker processes on this machine, which divide its threads; a killed process fails its own run only.

A pool of ``concurrent.futures`` ends all of its processes when one is killed, does not say by what, and imports the
caller's program again in each of them; so each process is started here, and exchanges only text.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import IO

from compatkit import hookimpl
from compatkit.errors import EnvironmentFailure
from compatkit.hooks import Register

compatkit_api = 1

QUOTED = 600
"""Most characters quoted of a dead process's last output."""
THREADS = ("OMP", "MKL", "OPENBLAS")


@hookimpl
def compatkit_launchers(register: Register) -> None:
    """Offer ``process``."""
    register("process", Processes)


class Processes:
    """Fresh processes (not forked), each with its share of the threads."""

    def __call__(
        self, work: Callable[[str], str], jobs: Sequence[str], workers: int | None
    ) -> Iterator[tuple[int, str | Exception]]:
        """Yield the position and answer of each job, or the error that ended its process, as soon as it has ended.

        Args:
            work: Function of an importable module.
            jobs: Items to call it with.
            workers: Processes at a time; None for as many as there are processors.

        Raises:
            EnvironmentFailure: No process can be started.
        """
        import torch

        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        count = min(workers or available, len(jobs))
        crew = [Worker(work, max(1, torch.get_num_threads() // count)) for _ in range(count)]
        idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in crew:
            idle.put(worker)

        def run(job: str) -> str | Exception:
            worker = idle.get()
            try:
                return worker.answer(job)
            finally:
                idle.put(worker)

        pool = ThreadPoolExecutor(count)
        try:
            positions = {pool.submit(run, job): position for position, job in enumerate(jobs)}
            for future in as_completed(positions):
                yield positions[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in crew:
                worker.kill()
            raise
        finally:
            pool.shutdown()
            for worker in crew:
                worker.close()


class Worker:
    """Sends jobs to one process, and replaces it if it dies."""

    def __init__(self, work: Callable[[str], str], threads: int) -> None:
        """Start no process yet.

        Args:
            work: Function of an importable module.
            threads: Computing threads.
        """
        self._work = work
        self._threads = threads
        self._process: subprocess.Popen[str] | None = None
        self._printed: IO[bytes] | None = None
        self._killed = False

    def answer(self, job: str) -> str | Exception:
        """Return the answer of the process, or the error that ended it."""
        process = self._process = self._process or self._start()
        if self._killed:
            process.kill()
        line = ""
        if process.stdin is not None and process.stdout is not None:
            with suppress(OSError):  # a dead process is reported below
                print(job, file=process.stdin, flush=True)
                line = process.stdout.readline()
        if line.endswith("\n"):
            return line
        death = self._death(process.wait())
        self.close()
        return death

    def kill(self) -> None:
        """Kill the process in the middle of a job."""
        self._killed = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Close the input of the process, which ends it, and wait for it."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # it may have died with a job in the pipe
                        pipe.close()
            process.wait()
        if self._printed is not None:
            self._printed.close()
            self._printed = None

    def _start(self) -> subprocess.Popen[str]:
        paths = os.pathsep.join(path for path in sys.path if path)
        variables = {f"{name}_NUM_THREADS": str(self._threads) for name in THREADS}
        words = (self._work.__module__, self._work.__qualname__, str(self._threads))
        try:
            self._printed = tempfile.TemporaryFile()
            return subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                text=True,
                env={**os.environ, **variables, "PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C reaches only the sweep, which ends its processes
            )
        except OSError as error:
            raise EnvironmentFailure(f"No process can be started: {error}.") from error

    def _death(self, code: int) -> EnvironmentFailure:
        last = ""
        if self._printed is not None:
            self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - QUOTED))
            last = self._printed.read().decode("utf-8", "replace").strip()
        cause = f"exit code {code}"
        if code < 0:
            with suppress(ValueError):
                cause = signal.Signals(-code).name
        hint = " The system kills what uses up the memory: take fewer workers." if cause == "SIGKILL" else ""
        return EnvironmentFailure(
            f"The process of this run ended by {cause} before the run did.{hint}"
            + (f" Its last output: {last}" if last else "")
        )


def main(module: str, function: str, threads: str) -> None:
    """Call a function with each line of standard input, and write its answers, one a line, until end of input.

    Args:
        module: Module of the function.
        function: Its name.
        threads: Computing threads.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keep the output of plugins apart from the answers
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that output before a kill can be quoted
    import torch

    torch.set_num_threads(int(threads))
    work = getattr(import_module(module), function)
    for line in sys.stdin:
        print(work(line), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
