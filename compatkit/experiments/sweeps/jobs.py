"""One run as plain values, for any process: check whether it is done, or carry it out."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from compatkit.components.registry import Registry
from compatkit.errors import FormatError, NotFound, UsageError
from compatkit.experiments.recipes import check, loader
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.records import RunRecord
from compatkit.foundation.codec import dumps
from compatkit.training.settings import logger_settings

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet
    from compatkit.experiments.recipes import Recipe


@attrs.frozen
class Job:
    """One run; all values are JSON values.

    Attributes:
        run: Its name: short and valid in a component's name; the same values give the same name.
        values: The varied values, by path.
        tables: The recipe of this run alone.
        file: Path of the sweep's recipe; paths inside are relative to its folder.
        data_root: Folder of data sets, or None.
        download: Whether torchvision may download missing data sets.
        plan: As in ``RunRecord``.
        registry: Registry for parts and results.
        folder: Folder for records and checkpoints.
        launcher: Name of the launcher, for the record.
    """

    run: str
    values: Mapping[str, Any]
    tables: Mapping[str, Any]
    file: str
    data_root: str | None
    download: bool
    plan: str = ""
    registry: str = ""
    folder: str = ""
    launcher: str = ""

    def dumps(self) -> str:
        """Return the job as one line."""
        return json.dumps(attrs.asdict(self, recurse=False))

    @property
    def seed(self) -> int:
        """Seed of the trainer."""
        return self.tables["trainer"].get("seed", 0)

    @property
    def prefix(self) -> str:
        """Prefix of the published parts of this run."""
        return f"{self.tables['prefix']}/{self.run}"

    def begun(self) -> RunRecord:
        """Return the record of this run at its start."""
        return RunRecord(
            run=self.run,
            values=self.values,
            plan=self.plan,
            state="begun",
            launcher=self.launcher,
            threads=torch.get_num_threads(),
        )


class DataCache:
    """Data sets cached by a process across runs."""

    def __init__(self) -> None:
        """Start empty."""
        self._sets: dict[bytes, DataSet] = {}

    def data(self, job: Job) -> Callable[[Any], DataSet]:
        """Return a function that loads the data sets of a run, each of them once."""
        load = loader(Path(job.file), job.data_root, job.download)

        def once(spec: Any) -> DataSet:
            key = dumps([spec, job.file, job.data_root])
            if key not in self._sets:
                self._sets[key] = load(spec)
            return self._sets[key]

        return once

    def recipe(self, job: Job) -> Recipe:
        """Return the recipe of a run with its data sets."""
        checkpoint = records.checkpoint(Path(job.folder), job.run)
        loggers = logger_settings(job.tables["trainer"].get("loggers"))
        for settings in loggers.values():
            settings["folder"] = str(Path(settings["folder"]) / job.run)
        written = check(
            job.tables, Path(job.file), checkpoint=str(checkpoint), progress=False, loggers=loggers
        )
        return written.load(self.data(job))


def carry_out(job: Job, cache: DataCache) -> RunRecord:
    """Train, publish and measure one run.

    Args:
        job: What to run, and where.
        cache: Data sets that earlier jobs of the process loaded.

    Returns:
        Its record, which is also written; its state is ``"failed"`` if anything but an interruption ended the run.
    """
    folder, began = Path(job.folder), time.perf_counter()
    record = job.begun()
    try:
        records.write(folder, record)
        record = _made(job, record, cache.recipe(job))
    except Exception as error:  # reported at the end of the sweep; other runs continue
        record = record.failed(error)
    record = attrs.evolve(record, seconds=round(time.perf_counter() - began, 3))
    if not folder.is_dir():  # for example on another machine: the calling process writes the record
        gone = UsageError(
            f"This process does not see the sweep's folder {folder}; use a path that all machines share."
        )
        return record.failed(gone)
    records.write(folder, record)
    if record.state == "done":
        records.checkpoint(folder, job.run).unlink(missing_ok=True)
    return record


def _made(job: Job, record: RunRecord, plan: Recipe) -> RunRecord:
    """Train a run, publish its parts, measure its extractors with its heads; return the finished record."""
    registry = Registry.open(job.registry)
    fit = plan.trainer.fit(
        plan.tasks,
        plan.regularizers,
        frozen=registry.frozen(**plan.frozen_references),
        frozen_statistics=plan.frozen.statistics,
    )
    parts = registry.publish(fit, prefix=job.prefix, about=plan.about)
    sides = {
        side: [name for key, name in parts.items() if key.endswith(side)] for side in (".extractor", ".head")
    }
    tests = {f"{job.prefix}/{task.name}.extractor": task.data.test for task in plan.tasks}
    device = fit.run["environment"]["device"]
    matrix = registry.matrix(sides[".extractor"], sides[".head"], tests, device=device)
    return attrs.evolve(
        record,
        state="done",
        fit=fit.plan,
        parts=parts,
        losses={row["task"]: row["losses"] for row in fit.history},
        matrix=json.loads(matrix.to_json()),
    )


def work(line: str) -> str:
    """Carry out a job in a launcher's process; data sets stay loaded for its next jobs.

    Args:
        line: A job as one line of JSON.

    Returns:
        Its record, as one line of JSON.
    """
    return dumps(carry_out(Job(**json.loads(line)), _cache()).to_json()).decode().strip()


@functools.cache
def _cache() -> DataCache:
    return DataCache()


def sort(
    jobs: Sequence[Job], folder: Path, registry: Registry | None
) -> tuple[dict[str, RunRecord], list[Job], list[str]]:
    """Separate finished runs from the remaining ones; checkpoints of other plans are deleted.

    Args:
        jobs: All runs with their plans.
        folder: Folder of the sweep.
        registry: Registry that must hold the parts of finished runs; None if there is none yet.

    Returns:
        Records of finished runs by name, the remaining jobs, and a note for each run that is repeated.
    """
    done: dict[str, RunRecord] = {}
    left: list[Job] = []
    notes: list[str] = []
    for job in jobs:
        record, why = _held(job, folder, registry)
        if record is not None and not why:
            done[job.run] = record
            continue
        left.append(job)
        if why:
            notes.append(f"{job.run} {why}")
        if record is None or record.plan != job.plan:
            records.checkpoint(folder, job.run).unlink(missing_ok=True)
    return done, left, notes


def _held(job: Job, folder: Path, registry: Registry | None) -> tuple[RunRecord | None, str]:
    """Return the record of a run, and why it is repeated: empty if it is done, or was never begun."""
    try:
        record = records.read(folder, job.run)
    except FormatError as error:
        return None, f"is done again: its record is damaged ({error})"
    if record is None:
        return None, ""
    if record.plan != job.plan:
        return record, f"is done again: its record is {records.OTHER_PLAN}"
    if record.state != "done":
        before = f"failed before ({record.reason})" if record.state == "failed" else "was interrupted"
        saved = records.checkpoint(folder, job.run).exists()
        return record, f"{before}, and {'goes on from its checkpoint' if saved else 'is done again'}"
    try:
        for name in record.parts.values():
            if registry is None:
                raise NotFound(name)
            registry.store.resolve(name)
    except NotFound:
        return record, "is done again: the registry does not hold its parts"
    return record, ""
