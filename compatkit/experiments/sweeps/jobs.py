"""Runs of a sweep as JSON values for any process: find the unfinished ones, and carry them out."""

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
from compatkit.plugins.discovery import find
from compatkit.training.settings import logger_settings

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet
    from compatkit.experiments.recipes import Recipe


@attrs.frozen
class Job:
    """Run of a sweep; all values are JSON values.

    Attributes:
        run: Name of the run, valid in a component's name; equal values have equal names.
        values: Varied values, by path.
        tables: Recipe of this run alone.
        file: Path of the sweep's recipe; paths in the recipe start at its folder.
        data_root: Folder of data sets, or None.
        download: Whether torchvision may download missing data sets.
        plan: Digest of the plan, as in ``RunRecord``.
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

    def start_record(self) -> RunRecord:
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
    """Cache of data sets for the runs of a process."""

    def __init__(self) -> None:
        """Create an empty cache."""
        self._sets: dict[bytes, DataSet] = {}

    def data(self, job: Job) -> Callable[[Any], DataSet]:
        """Return a function that loads each data set of a run once."""
        load = loader(Path(job.file), job.data_root, job.download)

        def load_once(spec: Any) -> DataSet:
            key = dumps([spec, job.file, job.data_root])
            if key not in self._sets:
                self._sets[key] = load(spec)
            return self._sets[key]

        return load_once

    def recipe(self, job: Job) -> Recipe:
        """Return the recipe of a run with its data sets."""
        checkpoint = records.checkpoint(Path(job.folder), job.run)
        loggers = logger_settings(job.tables.get("loggers", job.tables["trainer"].get("loggers")))
        for name, settings in loggers.items():
            folder = Path(settings.get("folder", job.folder))
            shared = getattr(find("loggers", name).factory, "one_folder", False)
            settings["folder"] = str(folder if shared else folder / job.run)
        own = {"checkpoint": str(checkpoint), "run_name": job.run}
        recipe = check(job.tables, Path(job.file), **own, progress=False, loggers=loggers)
        return recipe.load(self.data(job))


def carry_out(job: Job, cache: DataCache) -> RunRecord:
    """Train, publish and measure a run, and write its record.

    Args:
        job: Run to carry out.
        cache: Data sets of earlier jobs of the process.

    Returns:
        Record with the state ``"done"``, or ``"failed"`` after an error.
    """
    folder, start = Path(job.folder), time.perf_counter()
    record = job.start_record()
    try:
        records.write(folder, record)
        record = _train(job, record, cache.recipe(job))
    except Exception as error:  # reported at the end of the sweep; other runs continue
        record = record.failed(error)
    record = attrs.evolve(record, seconds=round(time.perf_counter() - start, 3))
    if not folder.is_dir():  # for example on another machine: the calling process writes the record
        return record.failed(
            UsageError(
                f"This process does not see the sweep's folder {folder}; use a path that all machines share."
            )
        )
    records.write(folder, record)
    if record.state == "done":
        records.checkpoint(folder, job.run).unlink(missing_ok=True)
    return record


def _train(job: Job, record: RunRecord, recipe: Recipe) -> RunRecord:
    """Train a run, publish its parts, measure its extractors with its heads; return the finished record."""
    registry = Registry.open(job.registry)
    fit = recipe.trainer.fit(
        recipe.tasks,
        recipe.regularizers,
        frozen=registry.frozen(**recipe.frozen_references),
        frozen_statistics=recipe.frozen.statistics,
    )
    parts = registry.publish(fit, prefix=job.prefix, about=recipe.about)
    sides = {
        side: [name for key, name in parts.items() if key.endswith(side)] for side in (".extractor", ".head")
    }
    tests = {f"{job.prefix}/{task.name}.extractor": task.data.test for task in recipe.tasks}
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
    """Carry out a job in a launcher's process, with data sets cached for the next jobs.

    Args:
        line: Job as one line of JSON.

    Returns:
        Record as one line of JSON.
    """
    return dumps(carry_out(Job(**json.loads(line)), _cache()).to_json()).decode().strip()


@functools.cache
def _cache() -> DataCache:
    return DataCache()


def separate_finished(
    jobs: Sequence[Job], folder: Path, registry: Registry | None
) -> tuple[dict[str, RunRecord], list[Job], list[str]]:
    """Separate finished runs from the remaining ones; checkpoints of other plans are deleted.

    Args:
        jobs: All runs with their plans.
        folder: Folder of the sweep.
        registry: Registry with the parts of finished runs; None if there is none yet.

    Returns:
        Records of finished runs by name, the remaining jobs, and a note for each repeated run.
    """
    finished: dict[str, RunRecord] = {}
    remaining: list[Job] = []
    notes: list[str] = []
    for job in jobs:
        record, reason = _saved_record(job, folder, registry)
        if record is not None and not reason:
            finished[job.run] = record
            continue
        remaining.append(job)
        if reason:
            notes.append(f"{job.run} {reason}")
        if record is None or record.plan != job.plan:
            records.checkpoint(folder, job.run).unlink(missing_ok=True)
    return finished, remaining, notes


def _saved_record(job: Job, folder: Path, registry: Registry | None) -> tuple[RunRecord | None, str]:
    """Return the record of a run, and the reason to repeat it; no reason for finished and new runs."""
    try:
        record = records.read(folder, job.run)
    except FormatError as error:
        return None, f"is done again: its record is damaged ({error})"
    if record is None:
        return None, ""
    if record.plan != job.plan:
        return record, f"is done again: its record is {records.OTHER_PLAN}"
    if record.state != "done":
        outcome = f"failed before ({record.reason})" if record.state == "failed" else "was interrupted"
        resumable = records.checkpoint(folder, job.run).exists()
        return record, f"{outcome}, and {'resumes from its checkpoint' if resumable else 'is done again'}"
    try:
        for name in record.parts.values():
            if registry is None:
                raise NotFound(name)
            registry.store.resolve(name)
    except NotFound:
        return record, "is done again: the registry does not hold its parts"
    return record, ""
