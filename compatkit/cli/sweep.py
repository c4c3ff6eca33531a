"""``compatkit sweep RECIPE``: many runs of one recipe, in sequence, in processes or on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.images import DataOptions, named_options, offline
from compatkit.cli.options import argument, command, logger_option, option
from compatkit.cli.output import clean, counted, emit, news, next_step, progress, warn
from compatkit.cli.roots import destination
from compatkit.cli.tables import TableOptions
from compatkit.cli.workers import WorkerOptions

if TYPE_CHECKING:
    from compatkit.experiments.sweeps.records import RunRecord
    from compatkit.experiments.sweeps.results import SweepResult


class SweepOptions(WorkerOptions, TableOptions, DataOptions):
    """Arguments and options of ``sweep``."""

    recipe: Path = argument()
    resume: bool = option("Keep finished runs, and resume the others.")
    out: Path | None = option(
        "Folder of records; default: REGISTRY-sweeps/RECIPE in the current folder.", metavar="DIR"
    )
    prefix: str | None = option("Prefix of the parts' names, instead of the recipe's.")
    loggers: dict[str, dict[str, Any]] = logger_option


@command("sweep", SweepOptions)
def sweep_command(options: SweepOptions) -> int | None:
    """Train, publish and measure all variants of RECIPE, a TOML file whose table [sweep] lists what varies.

    A failed run does not stop the others; the exit code is then 1.

    Examples:
        # two runs at a time
        compatkit sweep examples/digits_sweep.toml --workers 2
        # go on after an interruption
        compatkit sweep examples/digits_sweep.toml --workers 2 --resume
    """
    from compatkit.experiments.sweeps.sweep import Sweep

    root = destination()
    sweep = Sweep.read(
        options.recipe, **options.load_arguments, prefix=options.prefix, loggers=options.loggers or None
    )
    varies = ", ".join(f"{axis.path} ({len(axis.values)})" for axis in sweep.axes)
    news(f"{counted(len(sweep.runs), 'run')} of {sweep.file.name}: {varies}")
    try:
        with named_options(), offline(unless=options.download), progress("sweep") as report:
            settings = options.only("out", "resume") | options.values_of(WorkerOptions)
            outcome = sweep.run(root, progress=report, say=news, **settings)
    except KeyboardInterrupt:
        news("The same command with --resume goes on from here.")
        raise
    options.write_tables(outcome)
    code = 1 if outcome.failed else 0
    if options.json:
        return emit({"registry": root, **to_json(outcome)}, code)
    click.echo(clean(str(outcome)))
    for record in outcome.failed:
        warn(f"{record.run} failed [{record.code}]: {record.reason}")
    next_step("ls", f"{sweep.runs[0].tables['prefix']}/*")
    return code


def to_json(outcome: SweepResult) -> dict[str, Any]:
    """Return a sweep as JSON values."""
    return {
        "folder": str(outcome.folder),
        "choice": dict(outcome.choice),
        "notes": list(outcome.notes),
        "runs": {record.run: _brief(record) for record in outcome.records},
        "groups": [record.to_json() for record in outcome.groups()],
        "failed": {record.run: record.reason for record in outcome.failed},
    }


def _brief(record: RunRecord) -> dict[str, Any]:
    """Return a record without its matrix, which is in its file and in the registry."""
    from compatkit.experiments.sweeps.results import accuracies

    pairs = [
        {"extractor": left, "head": right, "accuracy": value}
        for (left, right), value in accuracies(record).items()
    ]
    left_out = ("schema", "kind", "run", "matrix")
    return {key: value for key, value in record.to_json().items() if key not in left_out} | {"pairs": pairs}
