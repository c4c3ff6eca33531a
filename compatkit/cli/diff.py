"""``compatkit diff``: changes between two components, level by level, and the required version step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import columns, emit, fold, paragraph
from compatkit.cli.roots import registry

if TYPE_CHECKING:
    from compatkit.registry.names import Bump, Reference
    from compatkit.registry.versions.diff import Difference
    from compatkit.registry.versions.tensors import TensorChange

SHOWN = 12
"""Most tensors listed, the largest differences first."""
STYLES: dict[Bump, dict[str, Any]] = {
    "major": {"fg": "red"},
    "minor": {"fg": "yellow"},
    "patch": {"fg": "green"},
}


class DiffOptions(Options):
    """Arguments and options of ``diff``."""

    old: str = argument(metavar="A")
    new: str = argument(metavar="B")
    no_tensors: bool = option("Compare only the manifests; read no weights.")
    exit_code: bool = option("Exit with 1 if A and B differ; default: 0 in any case.")


@command(
    "diff",
    DiffOptions,
    help="Show the changes from component A to component B (REF as in show), level by level, the smallest version step "
    "that they require, and the differences of the weights.",
)
def diff_command(context: click.Context, options: DiffOptions) -> None:
    """Compare two components."""
    workspace = registry(context)
    left, right = workspace.store.resolve(options.old), workspace.store.resolve(options.new)
    exactly = (
        f"{one.name}@{one.digest}" for one in (left, right)
    )  # by digest, to include withdrawn versions
    found = workspace.diff(*exactly, tensors=not options.no_tensors)
    if options.json:
        places = {"old": _place(left), "new": _place(right)}
        emit({**places, "equal": not found.changes, **found.to_json()})
    else:
        click.echo(click.style(f"{_pinned(left)} -> {_pinned(right)}", bold=True))
        _print(found, left, right)
    context.exit(1 if options.exit_code and found.changes else 0)


def _place(found: Reference) -> dict[str, Any]:
    return {"name": found.name, "version": str(found.version), "digest": found.digest}


def _pinned(found: Reference) -> str:
    return f"{found.name}@{found.version}"


def _print(found: Difference, left: Reference, right: Reference) -> None:
    if not found.changes:
        click.echo("no difference: the same manifest, the same weights")
        return
    for level, reasons in found.told().items():
        click.echo(f"\n{click.style(level, bold=True)}")
        for (bump, reason), rows in reasons.items():
            step = bump.upper()
            line = fold(step, reason, indent=2, size=5)
            click.echo(line.replace(step, click.style(step, **STYLES.get(bump, {})), 1))
            size = min(32, max(len(path) for path, _ in rows))
            for path, values in rows:
                click.echo(fold(path, values, indent=9, size=size))
    if found.tensors is not None:
        _print_tensors(found.tensors)
    click.echo()
    _print_step(found, left, right)


def _print_tensors(tensors: Sequence[TensorChange]) -> None:
    click.echo(f"\n{click.style('tensors', bold=True)}")
    if not tensors:
        click.echo("  no difference, bit by bit")
        return
    click.echo(
        f"  {len(tensors)} differ" + (f"; the {SHOWN} that differ most:" if len(tensors) > SHOWN else ":")
    )
    most = sorted(tensors, key=_rank)[:SHOWN]
    columns([("  tensor", "before -> after", "values", "largest"), *map(_cells, most)], right=(2, 3))
    if len(tensors) > SHOWN:
        click.echo("  --json lists all")


def _rank(one: TensorChange) -> tuple[bool, float]:
    """Sort by the largest difference; incomparable tensors first, counters last."""
    counter = all(form is not None and "int" in form.dtype for form in (one.before, one.after))
    return counter, -float("inf") if one.largest is None else -one.largest


def _cells(one: TensorChange) -> tuple[str, str, str, str]:
    return f"  {one.name}", one.form, "" if one.values is None else f"{one.values:,}", one.distance


def _print_step(found: Difference, left: Reference, right: Reference) -> None:
    least = left.version.bumped(found.bump) if left.version is not None else None
    where = f": {least} after {left.version}" if left.name == right.name else ", if B were to follow A"
    click.echo(f"least step  {click.style(found.bump.upper(), bold=True)}{where}")
    if found.equal_shapes:
        from compatkit.contracts.report import EQUAL_SHAPES

        paragraph(f"{EQUAL_SHAPES} The ports are equal and the weights are new: measure before you swap.")
