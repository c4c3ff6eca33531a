"""Carry out the runs of a sweep where its launcher says, and write the records of those that died."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from compatkit.errors import CompatkitError
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.jobs import DataCache, Job, carry_out, work
from compatkit.experiments.sweeps.records import RunRecord
from compatkit.foundation.codec import loads
from compatkit.plugins.launching import Launcher


def run_records(launcher: Launcher, jobs: Sequence[Job], cache: DataCache) -> Iterator[RunRecord]:
    """Yield the record of every run when it ends.

    Args:
        launcher: Where runs are carried out.
        jobs: Runs to carry out.
        cache: Data sets for runs in this process.

    Raises:
        PluginError: The launcher fails, or returns no answer for a job.
    """
    if launcher.here:
        for job in jobs:
            yield carry_out(job, cache)
        return
    names = [job.run for job in jobs]
    for position, answer in launcher.answers(work, [job.dumps() for job in jobs], names):
        yield _record(jobs[position], answer)


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
