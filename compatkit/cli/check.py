"""The command that compares contracts: one extractor with one head in full, or two sets of them as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import data_options, given, json_option, registry_option
from compatkit.cli.output import clean, emit, next_step, paragraph, print_rich, report_text
from compatkit.cli.roots import check_outputs, registry

if TYPE_CHECKING:
    from compatkit.components.bridges.recorded import BridgeRecord
    from compatkit.contracts.contract import Data
    from compatkit.contracts.report import Report
    from compatkit.reports.verdicts import Verdicts

LEVELS = ("direct", "shared-init", "shared-head", "compatible", "perfect")
NAMED = 3


@click.command(
    "check",
    help="Compare the contracts of EXTRACTOR and HEAD; reads no weights. Patterns such as 'digits/*' compare every "
    "extractor that the first matches with every head that the second matches, as a table.",
)
@click.argument("extractor")
@click.argument("head")
@click.option(
    "--require",
    type=click.Choice(LEVELS),
    default="direct",
    show_default=True,
    help="What every pair must be for exit code 0: wired directly, promised by what both were trained against, or "
    "measured.",
)
@click.option(
    "--data",
    "name",
    metavar="NAME",
    help="Compare the heads' classes with those of this data set, by name or path.",
)
@click.option("--markdown", type=click.Path(), metavar="FILE", help="Write the verdicts as Markdown tables.")
@data_options
@registry_option
@json_option
@click.pass_context
def check_command(
    context: click.Context,
    extractor: str,
    head: str,
    require: str,
    name: str | None,
    markdown: str | None,
    data_root: str | None,
    download: bool,
    machine: bool,
) -> None:
    """Check whether heads fit extractors; exit code 1 where one does not."""
    from compatkit.registry.resolving import is_pattern

    check_outputs({"--markdown": markdown})
    data = _classes(name, data_root, download) if name is not None else None
    held = registry(context)
    verdicts = held.check_all(extractor, head, data=data)
    failing = verdicts.unsatisfied(require)
    if markdown is not None:
        verdicts.to_markdown(markdown)
    if is_pattern(extractor) or is_pattern(head):
        _tell_all(verdicts, require, failing, machine)
    else:
        report = verdicts.report(verdicts.extractors[0], verdicts.heads[0])
        bridges = held.bridges.of(str(report.extractor), str(report.head))
        _tell(report, bridges, require, not failing, machine)
    if markdown is not None and not machine:
        click.echo(f"wrote {clean(markdown)}")
    context.exit(1 if failing else 0)


def _classes(name: str, root: str | None, download: bool) -> Data:
    """Return the classes of a data set, as what pairs are meant for."""
    from compatkit.contracts.contract import Data
    from compatkit.contracts.labels import label
    from compatkit.data import load
    from compatkit.plugins.discovery import providers

    test = load(name, root=root, download=download, providers=providers()).test
    return Data(test.size, test.channels, (), (), labels=tuple(map(label, test.classes)))


def _tell(report: Report, bridges: list[BridgeRecord], require: str, satisfied: bool, machine: bool) -> None:
    from compatkit.contracts.report import EQUAL_SHAPES

    if machine:
        there = [one.to_json() for one in bridges]
        emit({**report.to_json(), "bridges": there, "required": require, "satisfied": satisfied})
        return
    click.echo(report_text(report))
    for one in bridges:
        click.echo()
        paragraph(str(one))
    if report.unproven and not bridges:
        click.echo()
        paragraph(f"{EQUAL_SHAPES} Measure the pair before you rely on it.")
        where = given(click.get_current_context()).words
        next_step("compatkit", *where, "recombine", str(report.extractor), str(report.head))
    if not satisfied:
        click.echo(f"\n--require {require}: no (exit code 1)")


def _tell_all(verdicts: Verdicts, require: str, failing: list[tuple[str, str]], machine: bool) -> None:
    if machine:
        import json

        named = [{"extractor": extractor, "head": head} for extractor, head in failing]
        emit({**json.loads(verdicts.to_json()), "required": require, "unsatisfied": named})
        return
    print_rich(verdicts)
    if failing:
        total = len(verdicts.extractors) * len(verdicts.heads)
        some = ", ".join(f"{extractor} with {head}" for extractor, head in failing[:NAMED])
        more = f" and {len(failing) - NAMED:,} more" if len(failing) > NAMED else ""
        click.echo()
        paragraph(f"--require {require}: not for {len(failing):,} of {total:,} (exit code 1): {some}{more}")
