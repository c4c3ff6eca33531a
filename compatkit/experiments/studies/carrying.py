"""Carry out one run of a study, in whatever process."""

from __future__ import annotations

import platform
import time
from importlib.metadata import version

from compatkit.errors import type_of
from compatkit.experiments.studies.arms import Arm
from compatkit.experiments.studies.finding import InstalledStudy
from compatkit.experiments.studies.records import StudyRecord
from compatkit.experiments.studies.runs import Run
from compatkit.experiments.studies.study import Outcome


def discard_checkpoint(run: Run) -> None:
    """Remove the checkpoint of a run that is recorded."""
    if run.checkpoint is not None:
        run.checkpoint.unlink(missing_ok=True)


def carry_out_run(installed: InstalledStudy, run: Run, arm: Arm, size: str) -> StudyRecord:
    """Carry out one run.

    Args:
        installed: Study.
        run: The run.
        arm: Its arm.
        size: Size of the study.

    Raises:
        PluginError: The study returned something else than an outcome, or an unknown measure.
    """
    import torch

    start = time.perf_counter()
    outcome = installed.study.run(run)
    if not isinstance(outcome, Outcome):
        raise installed.owner.error(f"its run returned {type_of(outcome)}; expected an Outcome.")
    measures = {measure.name for measure in installed.study.measures}
    if unknown := sorted(outcome.values.keys() - measures):
        raise installed.owner.error(f"its run measures {unknown[0]!r}, which is not one of its measures.")
    seconds = round(time.perf_counter() - start, 2)
    owner = installed.owner.distribution or "compatkit"
    versions = {name: version(name) for name in ("compatkit", "torch", "numpy")}
    versions |= {owner: installed.owner.version or "unknown", "python": platform.python_version()}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    machine = {"processor": platform.machine(), "device": device, "threads": torch.get_num_threads()}
    return StudyRecord(
        study=run.study,
        size=size,
        arm=arm.name,
        seed=run.seed,
        settings=dict(run.settings),
        values=dict(outcome.values),
        figure_data=dict(outcome.figure_data),
        notes=list(outcome.notes),
        seconds=seconds,
        versions=versions,
        machine=machine,
        data=run.digests(),
        added=arm.to_json(),
    )
