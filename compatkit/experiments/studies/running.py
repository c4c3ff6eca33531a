"""Run a study: carry out the missing runs, record each one, and write the results."""

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
from compatkit.experiments.studies.runs import Run, Shelf
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
        out: Folder; created if missing.
        seeds: Number of seeds, counted from 0.
        size: One of the study's sizes.
        arms: Some of the study's arms; empty for all.
        data: Folder of data sets; None for the search path of ``compatkit.data.load``.
        changes: Settings that replace those of the size.
        progress: Called with runs done, runs in all, and what is being done.
        say: Called with each line of news.

    Returns:
        The content of ``results.json``, which is a data frame and CSV too.

    Raises:
        UnknownName: The study is unknown.
        UsageError: An arm, a size or a setting is unknown, or the folder holds runs of other settings or images.
        DataError: A data set is missing.
        EnvironmentFailure: The folder cannot be written.
    """
    if seeds < 1:
        raise UsageError(f"A study needs at least one seed, got {seeds}.")
    installed = find(number)
    settings, chosen = settings_of(installed, size, changes), arms_of(installed, arms)
    folder = Path(local(out, "a folder of results"))
    with created_folder(folder):
        done = _kept(folder, {"study": number, "size": size, **settings}, say)
        seen = {split: digest for record in done.values() for split, digest in record.data.items()}
        shelf = Shelf(number, data, seen, folder)
        wanted = [(arm, seed) for seed in range(seeds) for arm in chosen]
        for place, (arm, seed) in enumerate(wanted):
            if (arm, seed) in done:
                continue
            progress(place, len(wanted), f"{arm}, seed {seed}")
            run = Run(number, arm, seed, settings, shelf)
            done[arm, seed] = record = _measured(installed, run, size)
            if record.measured:  # skipped runs are tried again next time
                records.append(folder, record)
                if run.checkpoint is not None:
                    run.checkpoint.unlink(missing_ok=True)
            say(_line(record))
        progress(len(wanted), len(wanted), "writing")
        results = Results(
            installed=installed,
            size=size,
            settings=settings,
            arms=chosen,
            seeds=tuple(range(seeds)),
            data_given=data is not None,
            records={key: done[key] for key in wanted},
        )
        return _write(results, folder)


def _kept(folder: Path, plan: Mapping[str, Any], say: Say) -> dict[tuple[str, int], StudyRecord]:
    """Return the recorded runs, which are all of this plan.

    Raises:
        UsageError: There are others.
    """
    recorded = [record for record in records.read(folder) if record.measured]
    other = [record.plan for record in recorded if record.plan != plan]
    if other:
        differences = [
            f"{name}: {other[0].get(name, 'nothing')} there, {plan.get(name, 'nothing')} here"
            for name in dict.fromkeys((*other[0], *plan))
            if other[0].get(name) != plan.get(name)
        ]
        raise UsageError(
            f"{folder} holds {_runs(len(other))} with other settings ({'; '.join(differences)}). Name another folder "
            "(--out).",
            subject=folder,
        )
    if recorded:
        say(f"already there: {_runs(len(recorded))}")
    return {(record.arm, record.seed): record for record in recorded}


def _runs(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def _measured(installed: InstalledStudy, run: Run, size: str) -> StudyRecord:
    """Carry out one run."""
    import torch

    began = time.perf_counter()
    outcome = installed.study.run(run)
    if not isinstance(outcome, Outcome):
        raise installed.owner.error(f"its run returned {type_of(outcome)}; expected an Outcome.")
    known = {measure.name for measure in installed.study.measures}
    if unknown := sorted(outcome.values.keys() - known):
        raise installed.owner.error(f"its run measures {unknown[0]!r}, which is not one of its measures.")
    seconds = round(time.perf_counter() - began, 2)
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

    pictures = draw(results, folder)
    write(folder / TABLE, render(results, pictures))
    document = StudyDocument(results.to_json([TABLE, *pictures, records.FILE]))
    write(folder / RESULTS, json.dumps(document, indent=2, allow_nan=False) + "\n")
    return document


def _line(record: StudyRecord) -> str:
    figures = ", ".join(f"{name} {value:.3f}" for name, value in record.values.items() if value is not None)
    return f"seed {record.seed} {record.arm:<12} {record.seconds:7.1f} s  {figures}"
