"""Launchers carry out the runs of a sweep: in this process, or in those that a plugin starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from compatkit.errors import CompatkitError, UsageError
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.jobs import DataCache, Job, carry_out, work
from compatkit.experiments.sweeps.records import RunRecord
from compatkit.foundation.codec import loads
from compatkit.plugins import Offer, find
from compatkit.plugins.isolation import described

SEQUENTIAL, AUTO, PROCESS = "sequential", "auto", "process"


def choose(name: str, workers: int | None) -> str:
    """Return the launcher for ``name``; ``"auto"`` means processes if a number of workers is given.

    Args:
        name: ``"auto"``, ``"sequential"``, or that of a plugin.
        workers: Runs at a time, or None.

    Raises:
        UsageError: There cannot be so many workers.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}.")
    if workers is not None and name == SEQUENTIAL:
        raise UsageError(f"The launcher {SEQUENTIAL} takes no workers.")
    if name == AUTO:
        return SEQUENTIAL if workers is None else PROCESS
    return name


class Launcher:
    """Carries out runs with a plugin, or one after the other in this process."""

    def __init__(self, name: str) -> None:
        """Make the plugin's launcher, before any work is done.

        Args:
            name: As ``choose`` returned it.

        Raises:
            PluginError: The plugin cannot be used.
            MissingDependency: A library that it needs is not installed.
        """
        self.name = name
        self._offer: Offer | None = None if name == SEQUENTIAL else find("launchers", name)
        self._launch = None if self._offer is None else self._offer.make({})

    def records(self, jobs: Sequence[Job], cache: DataCache, workers: int | None) -> Iterator[RunRecord]:
        """Yield the record of every run as soon as it has ended.

        Args:
            jobs: Runs.
            cache: Data sets for runs in this process.
            workers: Runs at a time, or None.

        Raises:
            PluginError: The launcher fails, or does not give an answer for each job.
        """
        if self._offer is None or self._launch is None:
            for job in jobs:
                yield carry_out(job, cache)
            return
        waiting = dict(enumerate(jobs))
        if not waiting:
            return
        answers = self._launch(work, [job.dumps() for job in jobs], workers)
        try:
            for position, answer in answers:
                if position not in waiting or not isinstance(answer, str | Exception):
                    raise self._offer.owner.error(f"it gave {answer!r:.80} for the job {position!r:.80}.")
                yield _record(waiting.pop(position), answer)
        except CompatkitError:
            raise
        except Exception as error:
            raise self._offer.owner.error(f"it failed: {described(error)}") from error
        finally:
            answers.close()
        if waiting:
            left = ", ".join(job.run for job in waiting.values())
            raise self._offer.owner.error(f"it gave no answer for {left}.")


def _record(job: Job, answer: str | Exception) -> RunRecord:
    """Return the record of a run, or of the failure of its process; write it in case its process could not."""
    folder = Path(job.folder)
    if isinstance(answer, str):
        record = RunRecord.from_json(loads(answer.encode(), what=job.run), job.run)
    else:
        begun = None
        with suppress(CompatkitError):  # the process may have died while it wrote this
            begun = records.read(folder, job.run)
        record = (job.begun() if begun is None or begun.plan != job.plan else begun).failed(answer)
    try:
        records.write(folder, record)
    except CompatkitError as error:
        return record if record.state == "failed" else record.failed(error)
    return record
