"""One run as plain values that any process can be handed, and carrying it out: train, publish, measure, record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from compatkit.components.registry import Registry
from compatkit.contracts.codec import dumps
from compatkit.errors import UsageError
from compatkit.experiments.recipes import check, loader
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.records import RunRecord

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet
    from compatkit.experiments.recipes import Recipe
    from compatkit.training.fit import Fit


@attrs.frozen(kw_only=True)
class Job:
    """One run; every value is a JSON value.

    Attributes:
        run: Its name.
        values: By path, the values that vary.
        plan: See ``RunRecord``.
        tables: Its recipe.
        file: Where the sweep's recipe stands; paths in it are relative to its folder.
        data_root: Folder of data sets, or None.
        download: Whether torchvision may fetch what is missing.
        registry: Where parts and results go.
        folder: Where records and checkpoints go.
        backend: What runs it, for the record.
    """

    run: str
    values: Mapping[str, Any]
    plan: str
    tables: Mapping[str, Any]
    file: str
    data_root: str | None
    download: bool
    registry: str
    folder: str
    backend: str = "sequential"

    def dumps(self) -> str:
        """Return the order as one line."""
        return json.dumps(attrs.asdict(self, recurse=False))

    @classmethod
    def loads(cls, line: str) -> Job:
        """Read what ``dumps`` wrote."""
        return cls(**json.loads(line))

    @property
    def prefix(self) -> str:
        """Where the parts of this run are published."""
        return f"{self.tables['prefix']}/{self.run}"

    def begun(self) -> RunRecord:
        """Return the record of this run before it has come to anything."""
        return RunRecord(
            run=self.run,
            values=self.values,
            plan=self.plan,
            state="begun",
            backend=self.backend,
            threads=torch.get_num_threads(),
        )


class DataCache:
    """What one process hands from run to run. A compiled step is not in it: torch knows its form again by itself."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._sets: dict[bytes, DataSet] = {}

    def data(self, job: Job) -> Callable[[Any], DataSet]:
        """Return what loads the data sets of a run, each of them once."""
        load = loader(Path(job.file), job.data_root, job.download)

        def once(spec: Any) -> DataSet:
            key = dumps([spec, job.file, job.data_root])
            if key not in self._sets:
                self._sets[key] = load(spec)
            return self._sets[key]

        return once

    def recipe(self, job: Job) -> Recipe:
        """Return the recipe of a run with its data sets."""
        kept = records.checkpoint(Path(job.folder), job.run)
        scalars = job.tables["trainer"].get("scalars")
        own = None if scalars is None else str(Path(scalars) / job.run)
        written = check(job.tables, Path(job.file), checkpoint=str(kept), progress=False, scalars=own)
        return written.load(self.data(job))


def carry_out(job: Job, cache: DataCache) -> RunRecord:
    """Train, publish and measure one run, whatever becomes of it.

    Returns:
        Its record, which is kept; of state ``"failed"`` where anything but an interruption ended it.
    """
    folder, began = Path(job.folder), time.perf_counter()
    record = job.begun()
    try:
        records.write(folder, record)
        plan = cache.recipe(job)
        registry = Registry.open(job.registry)
        fit = plan.trainer.fit(
            plan.tasks,
            plan.regularizers,
            frozen=registry.frozen(**plan.against),
            frozen_statistics=plan.frozen_statistics,
        )
        record = concluded(job, record, plan, fit, registry)
    except Exception as error:  # reported at the end of the sweep: the other runs go on
        record = record.failed(error)
    return kept(job, record, began)


def concluded(job: Job, record: RunRecord, plan: Recipe, fit: Fit, registry: Registry) -> RunRecord:
    """Publish the parts of a fit, measure its own and its cross pairs, and return its record.

    Raises:
        CompatkitError: They cannot be published or measured.
    """
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


def kept(job: Job, record: RunRecord, began: float) -> RunRecord:
    """Keep the record of a run that has ended; its checkpoint goes once it is done."""
    folder = Path(job.folder)
    record = attrs.evolve(record, seconds=round(time.perf_counter() - began, 3))
    if not folder.is_dir():  # told by a process that does not see it; the one that asked keeps the record
        gone = UsageError(
            f"This process does not see the sweep's folder {folder}; give all of them the same paths."
        )
        return record.failed(gone)
    records.write(folder, record)
    if record.state == "done":
        records.checkpoint(folder, job.run).unlink(missing_ok=True)
    return record
