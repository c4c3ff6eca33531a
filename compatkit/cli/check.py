"""``compatkit check``: compare the contracts of a pair in full, or of many pairs as a table."""

from __future__ import annotations

import json
from pathlib import Path

import click

from compatkit.cli.images import NamedDataOptions
from compatkit.cli.options import argument, bn_policy_option, command, option
from compatkit.cli.output import emit, first, next_step, paragraph, print_rich, report_text
from compatkit.cli.roots import SignatureOptions, open_registry
from compatkit.components.bridges.published import BridgeRecord
from compatkit.contracts.labels import label
from compatkit.contracts.report import EQUAL_SHAPES, MEASURED, Report
from compatkit.registry.resolving import is_pattern
from compatkit.reports.verdicts import Verdicts

LEVELS = ("direct", "shared-init", "shared-head", "compatible", "perfect")
NAMED = 3
ANYBODY = (
    "Whoever can write to the registry can record figures; with --require-signature only those signed by a trusted "
    "key count."
)


class CheckOptions(NamedDataOptions, SignatureOptions):
    """Arguments and options of ``check``."""

    extractor: str = argument()
    head: str = argument()
    require: str = option(
        "What every pair must reach for exit code 0: wired directly, promised by what both were trained against, or "
        "measured.",
        choices=LEVELS,
        default="direct",
    )
    name: str | None = option(
        "Compare the heads' classes with those of this data set, by name or path.", "--data"
    )
    bn_policy: str = bn_policy_option
    markdown: Path | None = option("Write the verdicts as Markdown tables.", written=True)


@command("check", CheckOptions)
def check_command(options: CheckOptions) -> int | None:
    """Compare the contracts of EXTRACTOR and HEAD; reads no weights.

    With patterns such as 'digits/*', compare all matching extractors with all matching heads, as a table.
    """
    data = None if options.name is None else tuple(map(label, options.load(options.name).classes))
    registry = open_registry()
    verdicts = registry.check_all(options.extractor, options.head, data=data, bn_policy=options.bn_policy)
    failing = verdicts.unsatisfied(options.require)
    if options.markdown is not None:
        verdicts.to_markdown(options.markdown)
    if is_pattern(options.extractor) or is_pattern(options.head):
        _print_all(verdicts, failing, options)
    else:
        report = verdicts.report(verdicts.extractors[0], verdicts.heads[0])
        bridges = registry.bridges.of(str(report.extractor), str(report.head))
        _print(report, bridges, not failing, options)
    return 1 if failing else 0


def _print(report: Report, bridges: list[BridgeRecord], satisfied: bool, options: CheckOptions) -> None:

    if options.json:
        records = [bridge.to_json() for bridge in bridges]
        facts = {"bridges": records, "required": options.require, "satisfied": satisfied}
        emit({**report.to_json(), **facts, "bn_policy": options.bn_policy})
        return
    click.echo(report_text(report))
    notes = [ANYBODY] if report.evidence != "none" and not options.signed else []
    notes += map(str, bridges)
    if report.unproven and not bridges:
        notes.append(f"{EQUAL_SHAPES} Measure the pair before you rely on it.")
    for note in notes:
        click.echo()
        paragraph(note)
    if report.unproven and not bridges:
        next_step("recombine", report.extractor, report.head)
    if not satisfied:
        click.echo(f"\n--require {options.require}{_under(options)}: no (exit code 1)")


def _print_all(verdicts: Verdicts, failing: list[tuple[str, str]], options: CheckOptions) -> None:
    if options.json:
        unsatisfied = [{"extractor": extractor, "head": head} for extractor, head in failing]
        facts = {"required": options.require, "unsatisfied": unsatisfied, "bn_policy": options.bn_policy}
        emit({**json.loads(verdicts.to_json()), **facts})
        return
    print_rich(verdicts)
    if failing:
        total = len(verdicts.extractors) * len(verdicts.heads)
        some = first([f"{extractor} with {head}" for extractor, head in failing], NAMED)
        click.echo()
        paragraph(
            f"--require {options.require}{_under(options)}: not for {len(failing):,} of {total:,} (exit code 1): {some}"
        )


def _under(options: CheckOptions) -> str:
    """Return the batch-norm policy that a level is required under, for levels that only a measurement reaches."""
    return f" under bn_policy {options.bn_policy}" if options.require in MEASURED else ""
