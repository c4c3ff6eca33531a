"""Run a study: carry out the missing runs, record each, and write the results."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compatkit.errors import UsageError, type_of
from compatkit.experiments.folders import created_folder
from compatkit.experiments.studies import records
from compatkit.experiments.studies.finding import InstalledStudy, arms_of, find, settings_of
from compatkit.experiments.studies.records import StudyRecord
from compatkit.experiments.studies.results import Results, StudyDocument, render
from compatkit.experiments.studies.runs import Run, StudyData
from compatkit.experiments.studies.study import CPU, Outcome
from compatkit.foundation.addresses import local
from compatkit.reports.writing import write

Say = Callable[[str], None]
RESULTS, TABLE = "results.json", "table.md"


def carry_out(
    number: str,
    out: str | Path,
    *,
    seeds: int = 5,
    size: str = CPU,
    arms: Sequence[str] = (),
    data: str | None = None,
    changes: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
    say: Say = lambda text: None,
) -> StudyDocument:
    """Carry out the runs of a study that are missing in a folder, and write results, table and figures there.

    Args:
        number: Number of the study.
        out: Folder for records and results; created if missing.
        seeds: Number of seeds, counted from 0.
        size: Name of a size of the study.
        arms: Names of arms; empty for all.
        data: Folder of data sets; None for the search path of ``compatkit.data.load``.
        changes: Settings to use instead of those of the size.
        progress: Callback with the number of finished runs, the number of all runs, and the current step.
        say: Callback with each message.

    Returns:
        Content of ``results.json``, with methods for data frames and CSV.

    Raises:
        UnknownName: The study is unknown.
        UsageError: An arm, a size or a setting is unknown, or the folder has runs with other settings or images.
        DataError: A data set is missing.
        EnvironmentFailure: The folder cannot be written.
    """
    if seeds < 1:
        raise UsageError(f"A study needs at least one seed, got {seeds}.")
    installed = find(number)
    settings, selected_arms = settings_of(installed, size, changes), arms_of(installed, arms)
    folder = Path(local(out, "a folder of results"))
    with created_folder(folder):
        finished = _recorded_runs(folder, {"study": number, "size": size, **settings}, say)
        digests = {split: digest for record in finished.values() for split, digest in record.data.items()}
        study_data = StudyData(number, data, digests, folder)
        runs = [(arm, seed) for seed in range(seeds) for arm in selected_arms]
        for index, (arm, seed) in enumerate(runs):
            if (arm, seed) in finished:
                continue
            progress(index, len(runs), f"{arm}, seed {seed}")
            run = Run(number, arm, seed, settings, study_data)
            finished[arm, seed] = record = _carry_out_run(installed, run, size)
            if record.measured:  # skipped runs are tried again next time
                records.append(folder, record)
                if run.checkpoint is not None:
                    run.checkpoint.unlink(missing_ok=True)
            say(_summary(record))
        progress(len(runs), len(runs), "writing")
        results = Results(
            installed=installed,
            size=size,
            settings=settings,
            arms=selected_arms,
            seeds=tuple(range(seeds)),
            data_given=data is not None,
            records={key: finished[key] for key in runs},
        )
        return _write(results, folder)


def _recorded_runs(folder: Path, plan: Mapping[str, Any], say: Say) -> dict[tuple[str, int], StudyRecord]:
    """Return the recorded runs by arm and seed.

    Raises:
        UsageError: A run has another plan.
    """
    recorded = [record for record in records.read(folder) if record.measured]
    other_plans = [record.plan for record in recorded if record.plan != plan]
    if other_plans:
        other = other_plans[0]
        differences = [
            f"{name}: {other.get(name, 'nothing')} there, {plan.get(name, 'nothing')} here"
            for name in dict.fromkeys((*other, *plan))
            if other.get(name) != plan.get(name)
        ]
        raise UsageError(
            f"{folder} holds {_count(len(other_plans))} with other settings ({'; '.join(differences)}). Name another "
            "folder (--out).",
            subject=folder,
        )
    if recorded:
        say(f"already there: {_count(len(recorded))}")
    return {(record.arm, record.seed): record for record in recorded}


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def _carry_out_run(installed: InstalledStudy, run: Run, size: str) -> StudyRecord:
    """Carry out one run."""
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
        arm=run.arm,
        seed=run.seed,
        settings=dict(run.settings),
        values=dict(outcome.values),
        figure_data=dict(outcome.figure_data),
        notes=list(outcome.notes),
        seconds=seconds,
        versions=versions,
        machine=machine,
        data=run.digests(),
    )


def _write(results: Results, folder: Path) -> StudyDocument:
    """Write figures, table and results.json; return the content of results.json."""
    from compatkit.experiments.studies.figures import draw

    figures = draw(results, folder)
    write(folder / TABLE, render(results, figures))
    document = StudyDocument(results.to_json([TABLE, *figures, records.FILE]))
    write(folder / RESULTS, json.dumps(document, indent=2, allow_nan=False) + "\n")
    return document


def _summary(record: StudyRecord) -> str:
    values = ", ".join(f"{name} {value:.3f}" for name, value in record.values.items() if value is not None)
    return f"seed {record.seed} {record.arm:<12} {record.seconds:7.1f} s  {values}"
