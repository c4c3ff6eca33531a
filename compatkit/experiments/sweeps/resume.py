"""Go on with a sweep: which of its runs are done, and which are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from compatkit.components.registry import Registry
from compatkit.errors import FormatError, NotFound
from compatkit.experiments.sweeps.jobs import Job
from compatkit.experiments.sweeps.records import RunRecord, checkpoint, read


@attrs.frozen
class Resumed:
    """What an earlier call left.

    Attributes:
        taken: Records of runs that are done and of the same plan, by name.
        todo: Runs that have to be made, or made to their end.
        notes: Why something is done again.
    """

    taken: Mapping[str, RunRecord]
    todo: Sequence[Job]
    notes: Sequence[str]


def sort(jobs: Sequence[Job], folder: Path, registry: Registry | None) -> Resumed:
    """Separate the runs that are done from those to make; runs of another plan are made again.

    Args:
        jobs: All runs with their plans.
        folder: Of the sweep.
        registry: Where the parts of finished runs must be; None where there is none yet.
    """
    taken: dict[str, RunRecord] = {}
    todo: list[Job] = []
    notes: list[str] = []
    for job in jobs:
        record, why = _held(job, folder, registry)
        if record is not None and not why:
            taken[job.run] = record
            continue
        todo.append(job)
        if why:
            notes.append(f"{job.run} {why}")
        if record is None or record.plan != job.plan:
            checkpoint(folder, job.run).unlink(missing_ok=True)
    return Resumed(taken, todo, notes)


def _held(job: Job, folder: Path, registry: Registry | None) -> tuple[RunRecord | None, str]:
    """Return the record of a run, and why it is made again; no reason where it is taken, or was never made."""
    try:
        record = read(folder, job.run)
    except FormatError as error:
        return None, f"is done again: its record is damaged ({error})"
    if record is None:
        return None, ""
    if record.plan != job.plan:
        return (
            record,
            "is done again: its record is of another plan (recipe, data, plugins or versions changed)",
        )
    if record.state != "done":
        kept = checkpoint(folder, job.run).exists()
        before = f"failed before ({record.reason})" if record.state == "failed" else "was interrupted"
        return record, f"{before}, and {'goes on from its checkpoint' if kept else 'is done again'}"
    try:
        for name in record.parts.values():
            if registry is None:
                raise NotFound(name)
            registry.store.resolve(name)
    except NotFound:
        return record, "is done again: the registry does not hold its parts"
    return record, ""
