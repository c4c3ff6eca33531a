"""``compatkit sweep RECIPE``: many runs of one recipe, on whatever there is to run them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from compatkit.cli.images import named_options, offline
from compatkit.cli.options import Asked, command, data_options, given
from compatkit.cli.output import columns, counted, emit, news, next_step, paragraph, progress, warn
from compatkit.cli.roots import destination

if TYPE_CHECKING:
    from compatkit.experiments.sweeps.records import RunRecord
    from compatkit.experiments.sweeps.results import SweepResult

BACKENDS = ("auto", "sequential", "process", "ray")


@command(
    "sweep",
    help="Carry out all runs of RECIPE, a TOML file whose table [sweep] lists what varies: train, publish, measure. "
    "A run that fails does not end the others; exit code 1 says that one did.",
)
@click.argument("recipe", type=click.Path())
@click.option("--resume", is_flag=True, help="Take the runs that are done, and go on with the others.")
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="auto",
    show_default=True,
    help="One run after the other, in processes of this machine, or on a Ray cluster; auto takes processes where "
    "--workers are given.",
)
@click.option("--workers", type=click.IntRange(1), help="Runs at a time, in processes or on a cluster.")
@click.option(
    "--out",
    type=click.Path(),
    metavar="DIR",
    help="Folder of records and checkpoints; else ROOT-sweeps/RECIPE next to the registry.",
)
@click.option("--prefix", help="Publish under this prefix in place of the recipe's.")
@data_options
def sweep_command(context: click.Context, asked: Asked) -> None:
    """Check everything, carry out the runs, show means and spreads over seeds."""
    from compatkit.experiments.sweeps.sweep import Sweep

    root = destination(context)
    sweep = Sweep.read(asked.recipe, root=asked.data_root, download=asked.download, prefix=asked.prefix)
    varies = ", ".join(f"{axis.path} ({len(axis.values)})" for axis in sweep.axes)
    news(f"{counted(len(sweep.runs), 'run')} of {sweep.file.name}: {varies}")
    try:
        with named_options(), offline(unless=asked.download), progress("sweep") as report:
            outcome = sweep.run(
                root, progress=report, say=news, **asked.only("out", "backend", "workers", "resume")
            )
    except KeyboardInterrupt:
        news("The same command with --resume goes on from here.")
        raise
    if asked.machine:
        emit({"registry": str(root), **to_json(outcome)})
    else:
        _show(outcome)
        next_step("compatkit", *given(context).words, "ls", f"{sweep.runs[0].tables['prefix']}/*")
    context.exit(1 if outcome.failed else 0)


def to_json(outcome: SweepResult) -> dict[str, Any]:
    """Return a sweep as JSON values."""
    return {
        "folder": str(outcome.folder),
        "choice": dict(outcome.choice),
        "notes": list(outcome.notes),
        "runs": {one.run: _brief(one) for one in outcome.records},
        "groups": [one.to_json() for one in outcome.groups()],
        "failed": {one.run: one.reason for one in outcome.failed},
    }


def _brief(record: RunRecord) -> dict[str, Any]:
    """Return a record without its matrix, which its file and the registry hold."""
    from compatkit.experiments.sweeps.results import accuracies

    pairs = [
        {"extractor": left, "head": right, "accuracy": value}
        for (left, right), value in accuracies(record).items()
    ]
    kept = attrs.asdict(record, recurse=False, filter=lambda field, _: field.name not in ("run", "matrix"))
    return kept | {"pairs": pairs}


def _show(outcome: SweepResult) -> None:
    """Print a line for the runs that differ in the seed only, and then what failed."""
    groups = outcome.groups()
    paths = list(dict.fromkeys(path for group in groups for path in group.values))
    table: list[tuple[str, ...]] = [(*paths, "runs", "failed", "as trained", "recombined")]
    for group in groups:
        said = (_said(group.values[path]) for path in paths)
        figures = (str(one) if one is not None else "" for one in (group.own, group.cross))
        table.append((*said, str(group.runs), str(group.failed or ""), *figures))
    columns(table, right=range(len(paths), len(table[0])))
    if any(group.runs > 1 for group in groups):
        paragraph("Mean accuracy and standard deviation over seeds.")
    for record in outcome.failed:
        warn(f"{record.run} failed [{record.code}]: {record.reason}")
    click.echo(f"records are in {outcome.folder}")


def _said(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_said, value)) or "none"
    if isinstance(value, Mapping):
        rest = ", ".join(f"{key} {one}" for key, one in value.items() if key != "name")
        return f"{value.get('name', '')} ({rest})" if rest else str(value.get("name", ""))
    return str(value)
