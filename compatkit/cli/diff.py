"""``compatkit diff``: changes between two components, level by level, and the required version step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import columns, emit, fold, paragraph
from compatkit.cli.roots import open_registry
from compatkit.contracts.report import EQUAL_SHAPES

if TYPE_CHECKING:
    from compatkit.registry.names import Bump, Reference
    from compatkit.registry.versions.diff import Difference
    from compatkit.registry.versions.tensors import TensorChange

SHOWN = 12
"""Tensors listed, the largest differences first."""
COLORS: dict[Bump, str] = {"major": "red", "minor": "yellow", "patch": "green"}


class DiffOptions(Options):
    """Arguments and options of ``diff``."""

    old: str = argument(metavar="A")
    new: str = argument(metavar="B")
    no_tensors: bool = option("Compare only the manifests; read no weights.")
    exit_code: bool = option("Exit with 1 if A and B differ; default: 0 in any case.")


@command("diff", DiffOptions)
def diff_command(options: DiffOptions) -> int | None:
    """Show what changed from component A to component B, the version step that it requires, and which weights differ.

    A and B are references as in `compatkit show`.

    Examples:
        # a version and the latest
        compatkit diff digits/mnist.head@1.0.0 digits/mnist.head
        # exit with 1 if they differ
        compatkit diff digits/mnist.head@^1 digits/mnist.head:prod --exit-code
    """
    registry = open_registry()
    pair = [registry.store.resolve(reference) for reference in (options.old, options.new)]
    exactly = (f"{reference.name}@{reference.digest}" for reference in pair)  # withdrawn versions too
    difference = registry.diff(*exactly, tensors=not options.no_tensors)
    code = 1 if options.exit_code and difference.changes else 0
    if options.json:
        sides = {
            side: {"name": reference.name, "version": str(reference.version), "digest": reference.digest}
            for side, reference in zip(("old", "new"), pair, strict=True)
        }
        return emit({**sides, "equal": not difference.changes, **difference.to_json()}, code)
    names = (f"{reference.name}@{reference.version}" for reference in pair)
    click.echo(click.style(" -> ".join(names), bold=True))
    _print(difference, *pair)
    return code


def _print(difference: Difference, left: Reference, right: Reference) -> None:
    if not difference.changes:
        click.echo("no difference: the same manifest, the same weights")
        return
    for level, reasons in difference.by_level().items():
        click.echo(f"\n{click.style(level, bold=True)}")
        for (bump, reason), rows in reasons.items():
            click.echo(fold(bump.upper(), reason, indent=2, size=5, fg=COLORS.get(bump)))
            size = min(32, max(len(path) for path, _ in rows))
            for path, values in rows:
                click.echo(fold(path, values, indent=9, size=size))
    if difference.tensors is not None:
        _print_tensors(difference.tensors)
    min_version = left.version.bumped(difference.bump) if left.version is not None else None
    where = f": {min_version} after {left.version}" if left.name == right.name else ", if B were to follow A"
    click.echo(f"\nleast step  {click.style(difference.bump.upper(), bold=True)}{where}")
    if difference.equal_shapes:
        paragraph(f"{EQUAL_SHAPES} The ports are equal and the weights are new: measure before you swap.")


def _print_tensors(tensors: Sequence[TensorChange]) -> None:
    click.echo(f"\n{click.style('tensors', bold=True)}")
    if not tensors:
        click.echo("  no difference, bit by bit")
        return
    more = len(tensors) > SHOWN
    click.echo(f"  {len(tensors)} differ" + (f"; the {SHOWN} that differ most:" if more else ":"))
    table = [("  tensor", "before -> after", "values", "largest")]
    for change in sorted(tensors, key=_rank)[:SHOWN]:
        values = "" if change.values is None else f"{change.values:,}"
        table.append((f"  {change.name}", change.form, values, change.distance))
    columns(table, right=(2, 3))
    if more:
        click.echo("  --json lists all")


def _rank(change: TensorChange) -> tuple[bool, float]:
    """Sort by the largest difference; incomparable tensors first, counters last."""
    counter = all(form is not None and "int" in form.dtype for form in (change.before, change.after))
    return counter, -float("inf") if change.largest is None else -change.largest
