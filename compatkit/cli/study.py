"""``compatkit study``: list the studies of the papers, and run one by number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from compatkit.cli.options import Options, argument, command, group, option
from compatkit.cli.output import columns, emit, news, next_step, paragraph, progress, rows, warn
from compatkit.experiments.spread import Spread
from compatkit.experiments.studies.finding import InstalledStudy, find_all, read_changes
from compatkit.experiments.studies.running import carry_out

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
    """List the installed studies: number, what each shows, arms, sizes, data.

    Examples:
        # numbers, arms, sizes and data
        compatkit study list
    """
    studies, broken = find_all()
    if options.json:
        faults = [{"study": number, "error": str(error)} for number, error in broken.items()]
        return emit([*map(_described, studies), *faults])
    for index, installed in enumerate(studies):
        if index:
            click.echo()
        paragraph(f"{installed.number}  {installed.study.title}")
        result = {
            "shows": installed.study.question,
            "paper": installed.study.reference,
            "arms": ", ".join(installed.study.arms),
            "sizes": ", ".join(installed.study.sizes),
            "data": ", ".join(installed.study.data),
        }
        rows(result)
    for number, error in broken.items():
        warn(f"study {number}: {error}")
    if studies:
        next_step("study", "run", studies[0].number, registry=False)


def _described(installed: InstalledStudy) -> dict[str, Any]:
    study, owner = installed.study, installed.owner
    names = ("title", "question", "reference", "arms", "data")
    measures = [
        {"metric": measure.name, "unit": measure.unit, "better": measure.better} for measure in study.measures
    ]
    sizes = {name: dict(settings) for name, settings in study.sizes.items()}
    return {
        "study": installed.number,
        **{name: getattr(study, name) for name in names},
        **{"measures": measures, "sizes": sizes, "scale": dict(study.scale)},
        **{"distribution": owner.distribution, "version": owner.version},
    }


class StudyRunOptions(Options):
    """Arguments and options of ``study run``."""

    number: str = argument()
    seeds: int = option("Number of seeds, from 0.", min=1, default=5)
    size: str = option("cpu (minutes on two cores) or paper.", default="cpu", metavar="SIZE")
    arms: str = option("Arms of the study to run; default: all.", metavar="A,B", default="")
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
    """
    import torch

    out = options.out or Path(f"study-{options.number}")
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        with progress(f"study {options.number}") as report:
            document = carry_out(
                options.number,
                out,
                arms=options.arms.split(",") if options.arms else (),
                changes=read_changes(options.changes),
                progress=report,
                say=news,
                **options.only("seeds", "size", "data"),
            )
    except KeyboardInterrupt:
        news("Runs that are done are kept; the same command goes on from here.")
        raise
    finally:
        torch.set_num_threads(before)
    if options.json:
        return emit({**document, "folder": out})
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
    click.echo(f"written to {out}: results.json, {', '.join(document['files'])}")
