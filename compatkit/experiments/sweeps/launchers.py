"""Launchers: carry out the runs of a sweep in this process, or in processes of a plugin."""

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
    """Return the launcher's name; ``"auto"`` is ``"process"`` if a number of workers is given, else ``"sequential"``.

    Args:
        name: ``"auto"``, ``"sequential"``, or the name of a plugin.
        workers: Number of parallel runs, or None.

    Raises:
        UsageError: The number of workers is below 1, or the launcher takes none.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}.")
    if workers is not None and name == SEQUENTIAL:
        raise UsageError(f"The launcher {SEQUENTIAL} takes no workers.")
    if name == AUTO:
        return SEQUENTIAL if workers is None else PROCESS
    return name


class Launcher:
    """Launcher of a plugin, or of this process for runs in sequence."""

    def __init__(self, name: str) -> None:
        """Create the plugin's launcher.

        Args:
            name: Result of ``choose``.

        Raises:
            PluginError: The plugin cannot be used.
            MissingDependency: A library that it needs is not installed.
        """
        self.name = name
        self._offer: Offer | None = None if name == SEQUENTIAL else find("launchers", name)
        self._launch = None if self._offer is None else self._offer.make({})

    def records(self, jobs: Sequence[Job], cache: DataCache, workers: int | None) -> Iterator[RunRecord]:
        """Yield the record of every run when it ends.

        Args:
            jobs: Runs to carry out.
            cache: Data sets for runs in this process.
            workers: Number of parallel runs, or None.

        Raises:
            PluginError: The launcher fails, or returns no answer for a job.
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
            names = ", ".join(job.run for job in waiting.values())
            raise self._offer.owner.error(f"it gave no answer for {names}.")


def _record(job: Job, answer: str | Exception) -> RunRecord:
    """Return the record of a run, or of its failure, and write it, as the run's process may have failed to."""
    folder = Path(job.folder)
    if isinstance(answer, str):
        record = RunRecord.from_json(loads(answer.encode(), what=job.run), job.run)
    else:
        saved = None
        with suppress(CompatkitError):  # the process may have died while it wrote this
            saved = records.read(folder, job.run)
        record = (job.start_record() if saved is None or saved.plan != job.plan else saved).failed(answer)
    try:
        records.write(folder, record)
    except CompatkitError as error:
        return record if record.state == "failed" else record.failed(error)
    return record
