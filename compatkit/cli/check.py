"""``compatkit check``: compare the contracts of a pair in full, or of many pairs as a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from compatkit.cli.images import load_data_set
from compatkit.cli.options import (
    NamedDataAsked,
    PathType,
    bn_policy_option,
    command,
    given,
    named_data_options,
    signature_options,
)
from compatkit.cli.output import clean, emit, first, next_step, paragraph, print_rich, report_text
from compatkit.cli.roots import check_outputs, registry

if TYPE_CHECKING:
    from compatkit.components.bridges.published import BridgeRecord
    from compatkit.contracts.check import Classes
    from compatkit.contracts.report import Report
    from compatkit.reports.verdicts import Verdicts

LEVELS = ("direct", "shared-init", "shared-head", "compatible", "perfect")
NAMED = 3
ANYBODY = (
    "Measured figures are the word of whoever may write to the registry; with --require-signature only those count "
    "that a trusted key signed."
)


class CheckAsked(NamedDataAsked):
    """Arguments and options of ``check``."""

    extractor: str
    head: str
    require: str
    name: str | None
    bn_policy: str
    markdown: str | None


@command(
    "check",
    CheckAsked,
    help="Compare the contracts of EXTRACTOR and HEAD; reads no weights. With patterns such as 'digits/*', compare all "
    "matching extractors with all matching heads, as a table.",
)
@click.argument("extractor")
@click.argument("head")
@click.option(
    "--require",
    type=click.Choice(LEVELS),
    default="direct",
    show_default=True,
    help="What every pair must reach for exit code 0: wired directly, promised by what both were trained against, or "
    "measured.",
)
@click.option(
    "--data",
    "name",
    metavar="NAME",
    help="Compare the heads' classes with those of this data set, by name or path.",
)
@bn_policy_option
@click.option("--markdown", type=PathType(), metavar="FILE", help="Write the verdicts as Markdown tables.")
@named_data_options
@signature_options
def check_command(context: click.Context, asked: CheckAsked) -> None:
    """Check whether heads fit extractors; exit code 1 if one does not."""
    from compatkit.registry.resolving import is_pattern

    check_outputs({"--markdown": asked.markdown})
    data = None if asked.name is None else _classes(asked.name, asked)
    held = registry(context)
    verdicts = held.check_all(asked.extractor, asked.head, data=data, bn_policy=asked.bn_policy)
    failing = verdicts.unsatisfied(asked.require)
    if asked.markdown is not None:
        verdicts.to_markdown(asked.markdown)
    if is_pattern(asked.extractor) or is_pattern(asked.head):
        _tell_all(verdicts, failing, asked)
    else:
        report = verdicts.report(verdicts.extractors[0], verdicts.heads[0])
        bridges = held.bridges.of(str(report.extractor), str(report.head))
        _tell(context, report, bridges, not failing, asked)
    if asked.markdown is not None and not asked.machine:
        click.echo(f"wrote {clean(asked.markdown)}")
    context.exit(1 if failing else 0)


def _classes(name: str, asked: NamedDataAsked) -> Classes:
    """Return the classes of a data set, for comparison with those of heads."""
    from compatkit.contracts.labels import label

    return tuple(map(label, load_data_set(name, asked.data_root, asked.download, asked.damaged).classes))


def _tell(
    context: click.Context, report: Report, bridges: list[BridgeRecord], satisfied: bool, asked: CheckAsked
) -> None:
    from compatkit.contracts.report import EQUAL_SHAPES

    if asked.machine:
        there = [one.to_json() for one in bridges]
        told = {"bridges": there, "required": asked.require, "satisfied": satisfied}
        emit({**report.to_json(), **told, "bn_policy": asked.bn_policy})
        return
    click.echo(report_text(report))
    if report.evidence != "none" and not (given(context).signed or given(context).trusted):
        click.echo()
        paragraph(ANYBODY)
    for one in bridges:
        click.echo()
        paragraph(str(one))
    if report.unproven and not bridges:
        click.echo()
        paragraph(f"{EQUAL_SHAPES} Measure the pair before you rely on it.")
        where = given(context).words
        next_step("compatkit", *where, "recombine", str(report.extractor), str(report.head))
    if not satisfied:
        click.echo(f"\n--require {asked.require}{_under(asked)}: no (exit code 1)")


def _tell_all(verdicts: Verdicts, failing: list[tuple[str, str]], asked: CheckAsked) -> None:
    if asked.machine:
        unsatisfied = [{"extractor": extractor, "head": head} for extractor, head in failing]
        told = {"required": asked.require, "unsatisfied": unsatisfied, "bn_policy": asked.bn_policy}
        emit({**json.loads(verdicts.to_json()), **told})
        return
    print_rich(verdicts)
    if failing:
        total = len(verdicts.extractors) * len(verdicts.heads)
        some = first([f"{extractor} with {head}" for extractor, head in failing], NAMED)
        click.echo()
        paragraph(
            f"--require {asked.require}{_under(asked)}: not for {len(failing):,} of {total:,} (exit code 1): {some}"
        )


def _under(asked: CheckAsked) -> str:
    """Return the normalization that a level is required under, for levels that only a measurement reaches."""
    from compatkit.contracts.report import MEASURED

    return f" under normalization {asked.bn_policy}" if asked.require in MEASURED else ""
