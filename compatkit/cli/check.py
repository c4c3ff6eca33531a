"""``compatkit check``: compare the contracts of a pair, or of many pairs as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compatkit.cli.images import NamedDataOptions
from compatkit.cli.options import Options, argument, bn_policy_option, command, option
from compatkit.cli.output import emit, first, next_step, paragraph, print_rich, report_text
from compatkit.cli.roots import SignatureOptions, open_store
from compatkit.cli.tables import TableOptions
from compatkit.contracts.report import EQUAL_SHAPES, MEASURED, REQUIREMENTS, Report, Word

if TYPE_CHECKING:
    from compatkit.components.bridges.records import BridgeRecord
    from compatkit.reports.verdicts import Verdicts

MAX_NAMED = 3
"""Pairs named in the message about --require."""
UNSIGNED = (
    "Anyone who can write to the registry can record figures; --require-signature counts only signed ones."
)
MEASURE: dict[Word, tuple[str, ...]] = {
    "unproven": (),
    "promised": (),
    "undecided": (),
    "adaptable": ("--insert-adapters",),
}
"""Words after which ``compatkit recombine`` is the next step, with its options."""


class VerboseOptions(Options):
    """How much of a check is printed."""

    verbose: bool = option("Show every finding in full, not only those that decide.")


class CheckOptions(VerboseOptions, NamedDataOptions, TableOptions, SignatureOptions):
    """Arguments and options of ``check``."""

    extractor: str = argument()
    head: str = argument()
    require: str = option(
        "What every pair must reach for exit code 0: direct wiring; a promise (shared-init, shared-head); or a "
        "measured grade (compatible, perfect).",
        choices=REQUIREMENTS,
        default="direct",
    )
    name: str | None = option("Compare the heads' classes with those of this data set.", "--data")
    bn_policy: str = bn_policy_option
    markdown: Path | None = option("Write the verdicts as Markdown tables.", is_output=True)


@command("check", CheckOptions)
def check_command(options: CheckOptions) -> int | None:
    """Tell whether HEAD fits EXTRACTOR, from their contracts and recorded measurements; reads no weights.

    With patterns such as 'digits/*', compare all matching extractors with all matching heads, as a table.

    Examples:
        # will this head fit that extractor?
        compatkit check digits/mnist.extractor digits/usps.head
        # all pairs, as a table
        compatkit check 'digits/*' '*.head' --markdown verdicts.md
        # fail unless the pair was measured to be compatible
        compatkit check digits/mnist.extractor digits/usps.head --require compatible
    """
    from compatkit.components.bridges.records import recorded
    from compatkit.components.pairs import check_pairs
    from compatkit.contracts.labels import label
    from compatkit.registry.resolving import is_pattern

    data = None if options.name is None else tuple(map(label, options.load(options.name).classes))
    store = open_store()  # the public Registry imports all that measures and bridges
    verdicts = check_pairs(store, options.extractor, options.head, data=data, bn_policy=options.bn_policy)
    failing = verdicts.unsatisfied(options.require)
    if options.markdown is not None:
        verdicts.to_markdown(options.markdown)
    options.write_tables(verdicts)
    if is_pattern(options.extractor) or is_pattern(options.head):
        _print_all(verdicts, failing, options)
    else:
        report = verdicts.report(verdicts.extractors[0], verdicts.heads[0])
        bridges = list(recorded(store, *map(store.resolve, (str(report.extractor), str(report.head)))))
        _print(report, bridges, not failing, options)
    return 1 if failing else 0


def _print(report: Report, bridges: list[BridgeRecord], satisfied: bool, options: CheckOptions) -> None:
    if options.json:
        bridged = {"bridges": [bridge.to_json() for bridge in bridges]}
        required = {"required": options.require, "satisfied": satisfied, "bn_policy": options.bn_policy}
        emit({**report.to_json(), **bridged, **required})
        return
    click.echo(report_text(report, verbose=options.verbose))
    if not options.verbose:
        click.echo("  (--verbose shows all findings in full)")
    if report.evidence != "none" and not options.signed:
        paragraph(UNSIGNED)
    for bridge in bridges:
        paragraph(str(bridge))
    if report.unproven and not bridges:
        paragraph(f"{EQUAL_SHAPES} Measure the pair before you rely on it.")
    if not satisfied:
        click.echo(f"--require {options.require}{_under(options)}: no (exit code 1)")
    if report.word in MEASURE and not bridges:
        next_step("recombine", report.extractor, report.head, *MEASURE[report.word])
    elif report.word == "incompatible" and not bridges:
        next_step("bridge", report.extractor, report.head, "--data", "IMAGES")


def _print_all(verdicts: Verdicts, failing: list[tuple[str, str]], options: CheckOptions) -> None:
    from compatkit.reports.tables import verdict_table

    if options.json:
        unsatisfied = [{"extractor": extractor, "head": head} for extractor, head in failing]
        required = {"required": options.require, "unsatisfied": unsatisfied, "bn_policy": options.bn_policy}
        emit({**json.loads(verdicts.to_json()), **required})
        return
    print_rich(verdict_table(verdicts, brief=not options.verbose))
    if not options.verbose:
        click.echo("\n(--verbose shows all findings in full)")
    if failing:
        total = len(verdicts.extractors) * len(verdicts.heads)
        some = first([f"{extractor} with {head}" for extractor, head in failing], MAX_NAMED)
        click.echo()
        paragraph(
            f"--require {options.require}{_under(options)}: not for {len(failing):,} of {total:,} (exit code 1): {some}"
        )
    if {"promised", "unproven"} & verdicts.counts().keys():
        next_step("matrix", options.extractor, options.head)


def _under(options: CheckOptions) -> str:
    """Return the batch-norm policy that a level is required under, for levels that only a measurement reaches."""
    return f" under bn_policy {options.bn_policy}" if options.require in MEASURED else ""
