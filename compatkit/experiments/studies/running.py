"""Run a study: carry out the missing runs, record each, and write the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compatkit.errors import UsageError
from compatkit.experiments.folders import created_folder
from compatkit.experiments.studies import records
from compatkit.experiments.studies.arms import Arm, ArmArgument, arms_of
from compatkit.experiments.studies.carrying import carry_out_run, discard_checkpoint
from compatkit.experiments.studies.finding import find, settings_of
from compatkit.experiments.studies.jobs import run_in_workers
from compatkit.experiments.studies.records import StudyRecord
from compatkit.experiments.studies.results import RESULTS, Results, StudyDocument, render
from compatkit.experiments.studies.runs import Run, RunPlan, StudyData
from compatkit.experiments.studies.study import CPU
from compatkit.foundation.addresses import local
from compatkit.plugins.launching import AUTO, Launcher
from compatkit.reports.writing import write

Say = Callable[[str], None]
Progress = Callable[[int, int, str], None]
TABLE = "table.md"


def carry_out(
    number: str,
    out: str | Path,
    *,
    seeds: int = 5,
    size: str = CPU,
    arms: Sequence[ArmArgument] = (),
    data: str | None = None,
    changes: Mapping[str, Any] | None = None,
    workers: int | None = None,
    launcher: str = AUTO,
    cluster: str | None = None,
    progress: Progress = lambda done, total, what: None,
    say: Say = lambda text: None,
) -> StudyDocument:
    """Carry out the runs of a study that are missing in a folder, and write results, table and figures there.

    Args:
        number: Number of the study.
        out: Folder for records and results; created if missing.
        seeds: Number of seeds, counted from 0.
        size: Name of a size of the study.
        arms: Names of arms; empty for all of the study's. ``"mine=dcc+cross_barlow:weight=.01"``, or the mapping
            ``{"mine": ["dcc", ck.use("cross_barlow", weight=0.01)]}``, is an arm of the user: the study's baseline
            with these regularizers.
        data: Folder of data sets; None for the search path of ``compatkit.data.load``.
        changes: Settings to use instead of those of the size.
        workers: Number of runs at a time, each in a process of its own with the threads of this one; None carries out
            one after the other here.
        launcher: ``"process"`` (on this machine), ``"ray"`` (on a cluster), ``"sequential"``, a plugin's, or
            ``"auto"``: ``ray`` if ``cluster`` is given, processes if ``workers`` is.
        cluster: Address of a cluster, whose machines must see ``out`` and the data sets at the same paths.
        progress: Callback with the number of finished runs, the number of all runs, and the current step.
        say: Callback with each message.

    Returns:
        Content of ``results.json``, with methods for data frames and CSV.

    Raises:
        UnknownName: The study is unknown.
        UsageError: An arm, a size or a setting is unknown, or the folder has runs with other settings or images.
        PluginError: A plugin of an arm is broken, or refuses a setting.
        Incomplete: Processes of runs died twice, or their runs failed; all others are recorded.
        DataError: A data set is missing.
        EnvironmentFailure: The folder cannot be written.
    """
    if seeds < 1:
        raise UsageError(f"A study needs at least one seed, got {seeds}.")
    installed = find(number)
    settings, selected_arms = settings_of(installed, size, changes), arms_of(installed, arms)
    launch = Launcher(launcher, workers, cluster)
    folder = Path(local(out, "a folder of results"))
    with created_folder(folder):
        finished = _recorded_runs(folder, {"study": number, "size": size, **settings}, selected_arms, say)
        digests = {split: digest for record in finished.values() for split, digest in record.data.items()}
        wanted = [(arm, seed) for seed in range(seeds) for arm in selected_arms]
        runs = [(arm.name, seed) for arm, seed in wanted]
        missing = [(arm, seed) for arm, seed in wanted if (arm.name, seed) not in finished]

        def finish(record: StudyRecord) -> None:
            finished[record.arm, record.seed] = record
            if record.measured:  # skipped runs are tried again next time
                records.append(folder, record)
            say(_summary(record))

        if launch.here:
            study_data = StudyData(number, data, digests, folder)
            for arm, seed in missing:
                progress(
                    len(runs) - len(missing) + missing.index((arm, seed)),
                    len(runs),
                    f"{arm.name}, seed {seed}",
                )
                run = Run(number, arm.base, seed, settings, study_data, added=arm.added, name=arm.name)
                finish(carry_out_run(installed, run, arm, size))
                discard_checkpoint(run)
        else:
            planned = RunPlan(number, size, settings, data, digests, folder)
            run_in_workers(launch, planned, missing, len(runs), finish, progress)
        progress(len(runs), len(runs), "writing")
        results = Results(
            installed=installed,
            size=size,
            settings=settings,
            arms=tuple(arm.name for arm in selected_arms),
            own_arms={arm.name: arm for arm in selected_arms if arm.added},
            seeds=tuple(range(seeds)),
            data_given=data is not None,
            records={key: finished[key] for key in runs},
        )
        return _write(results, folder)


def _recorded_runs(
    folder: Path, plan: Mapping[str, Any], arms: Sequence[Arm], say: Say
) -> dict[tuple[str, int], StudyRecord]:
    """Return the recorded runs by arm and seed.

    Raises:
        UsageError: A run has another plan, or its arm other regularizers.
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
    for arm in arms:
        others = [
            record.added
            for record in recorded
            if record.arm == arm.name and list(record.added) != arm.to_json()
        ]
        if others:
            raise UsageError(
                f"{folder} holds runs of an arm {arm.name!r} with other regularizers: {others[0]} there, "
                f"{arm.to_json()} here. Give the arm another name, or name another folder (--out).",
                subject=arm.name,
            )
    if recorded:
        say(f"already there: {_count(len(recorded))}")
    return {(record.arm, record.seed): record for record in recorded}


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


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
