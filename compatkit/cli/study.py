"""``compatkit study``: list the studies of the papers, and run one by number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import Options, argument, command, group, option
from compatkit.cli.output import columns, emit, news, next_step, paragraph, progress, rows, warn
from compatkit.cli.tables import TableOptions
from compatkit.cli.workers import WorkerOptions
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.experiments.studies.finding import InstalledStudy
    from compatkit.experiments.studies.results import StudyDocument

study_command = group(
    "study",
    """List the studies of the papers, and run one by its number.

    Examples:
        # numbers and titles
        compatkit study list
        # run one
        compatkit study run 0.1 --seeds 1
    """,
)


@command("list", Options, group=study_command, registry=False)
def list_command(options: Options) -> int | None:
    """List the installed studies: number, what each shows, arms, sizes, data, expected time.

    The time is what the runs took on the machine that is named; a size that was never measured is said to be unknown.

    Examples:
        # numbers, arms, sizes and data
        compatkit study list
    """
    from compatkit.experiments.studies.finding import find_all

    studies, broken = find_all()
    if options.json:
        faults = [{"study": number, "error": str(error)} for number, error in broken.items()]
        return emit([*map(_described, studies), *faults])
    for index, installed in enumerate(studies):
        if index:
            click.echo()
        paragraph(f"{installed.number}  {installed.study.title}")
        rows(_shown(installed))
    for number, error in broken.items():
        warn(f"study {number}: {error}")
    if studies:
        next_step("study", "run", studies[0].number, registry=False)


def _shown(installed: InstalledStudy) -> dict[str, str]:
    from compatkit.experiments.studies.durations import expected

    study = installed.study
    times = {size: expected(installed, size) for size in study.sizes}
    return {
        "shows": study.question,
        "paper": study.reference,
        "arms": ", ".join(study.arms),
        "own arms": ""
        if study.extends is None
        else f"yes, they extend {study.extends}: --arms mine=PLUGIN:KEY=VALUE",
        "sizes": ", ".join(study.sizes),
        "data": ", ".join(study.data),
        **{f"time, {size}": str(time or "unknown: not measured") for size, time in times.items()},
    }


def _described(installed: InstalledStudy) -> dict[str, Any]:
    from compatkit.experiments.studies.durations import expected

    study, owner = installed.study, installed.owner
    names = ("title", "question", "reference", "arms", "data")
    measures = [
        {"metric": measure.name, "unit": measure.unit, "better": measure.better} for measure in study.measures
    ]
    sizes = {name: dict(settings) for name, settings in study.sizes.items()}
    return {
        "study": installed.number,
        **{name: getattr(study, name) for name in names},
        **{"measures": measures, "sizes": sizes, "scale": dict(study.scale), "extends": study.extends},
        "expected": {
            size: None if (time := expected(installed, size)) is None else time.to_json()
            for size in study.sizes
        },
        **{"distribution": owner.distribution, "version": owner.version},
    }


class StudyShowOptions(TableOptions):
    """Arguments and options of ``study show``."""

    study: str = argument()


@command("show", StudyShowOptions, group=study_command, registry=False)
def show_command(options: StudyShowOptions) -> int | None:
    """Show a study by its number, or the results that one left in a folder.

    Examples:
        # arms, sizes and expected time
        compatkit study show 3.1
        # results of a folder, for other programs
        compatkit study show out/3.1 --csv figures.csv --latex table.tex
    """
    from compatkit.experiments.studies.finding import find, numbers
    from compatkit.experiments.studies.results import read as read_results

    if options.study in numbers():
        if options.csv or options.latex:
            raise UsageError("--csv and --latex need the folder of results, not the number of a study.")
        installed = find(options.study)
        if options.json:
            return emit(_described(installed))
        paragraph(f"{installed.number}  {installed.study.title}")
        return rows(_shown(installed))
    if not Path(options.study).exists():
        find(options.study)  # raises, with the numbers that are similar
    document = read_results(options.study)
    options.write_tables(document)
    if options.json:
        return emit(document)
    _print_results(document)


class StudyRunOptions(TableOptions, WorkerOptions):
    """Arguments and options of ``study run``."""

    number: str = argument()
    seeds: int = option("Number of seeds, from 0.", min=1, default=5)
    size: str = option("cpu (minutes on two cores) or paper.", default="cpu", metavar="SIZE")
    arms: str = option(
        "Arms to run; default: all of the study's. NAME=PLUGIN:KEY=VALUE+PLUGIN is one of your own.",
        metavar="A,B",
        default="",
    )
    data: Path | None = option(
        "Folder of data sets; default: COMPATKIT_DATA, else torchvision's root.", metavar="PATH"
    )
    changes: tuple[str, ...] = option("Override a setting of the size.", "--set", metavar="NAME=VALUE")
    threads: int = option("Threads of a run's operations.", min=1, default=1)
    out: Path | None = option("Folder to write to; default: study-NUMBER.", metavar="DIR")


@command("run", StudyRunOptions, group=study_command, registry=False)
def run_command(options: StudyRunOptions) -> int | None:
    """Run study NUMBER and write results.json, table.md and figures to DIR.

    Runs recorded in DIR are not repeated, so the same command continues an interrupted study.

    Examples:
        # the first experiment with five seeds
        compatkit study run 0.1 --seeds 5 --out peaks
        # two of its methods
        compatkit study run 3.1 --arms none,dcc --data packs
        # one of them beside your own
        compatkit study run 3.1 --arms none,mine=dcc+l2_sp:weight=.01 --data packs
    """
    import torch

    from compatkit.experiments.studies.finding import read_changes
    from compatkit.experiments.studies.running import carry_out

    out = options.out or Path(f"study-{options.number}")
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        with progress(f"study {options.number}") as report:
            document = carry_out(
                options.number,
                out,
                arms=[options.arms] if options.arms else (),
                changes=read_changes(options.changes),
                progress=report,
                say=news,
                **options.only("seeds", "size", "data"),
                **options.values_of(WorkerOptions),
            )
    except KeyboardInterrupt:
        news("Runs that are done are kept; the same command goes on from here.")
        raise
    finally:
        torch.set_num_threads(before)
    options.write_tables(document)
    if options.json:
        return emit({**document, "folder": out})
    _print_results(document)
    click.echo(f"written to {out}: results.json, {', '.join(document['files'])}")


def _print_results(document: StudyDocument) -> None:
    """Print means and deviations by arm, the scale and the notes."""
    from compatkit.experiments.spread import Spread

    by_arm: dict[str, dict[str, str]] = {}
    for row in document["results"]:
        known = [value for value in row["values"] if value is not None]
        by_arm.setdefault(row["arm"], {})[row["metric"]] = str(Spread.of(known) or "")
    metrics = list(dict.fromkeys(row["metric"] for row in document["results"]))
    table = [("arm", *metrics)]
    table += [(arm, *(cells.get(metric, "") for metric in metrics)) for arm, cells in by_arm.items()]
    if len(metrics) > len(by_arm):
        table = list(zip(*[("", *metrics), *table[1:]], strict=True))
    columns(table, right=range(1, len(table[0])))
    count = len(document["seeds"])
    paragraph(f"Mean and standard deviation over {count} seeds." if count > 1 else "One seed: no spread.")
    if document["scale"]:
        paragraph(f"Not the paper's scale: {document['scale']}")
    for note in document["notes"]:
        paragraph(f"Note: {note}")
