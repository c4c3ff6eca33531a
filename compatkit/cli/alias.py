"""``compatkit alias``: point an alias to a version, or show its version."""

from __future__ import annotations

import click

from compatkit.cli.options import Asked, command
from compatkit.cli.output import emit
from compatkit.cli.roots import store
from compatkit.errors import UsageError


class AliasAsked(Asked):
    """Arguments and options of ``alias``."""

    name: str
    alias: str
    version: str | None
    remove: bool
    expected: str | None


@command(
    "alias",
    AliasAsked,
    help="Point ALIAS of the component NAME to VERSION, such as `compatkit alias digits/mnist.head prod 1.2.0`; "
    "without VERSION show its version. Moves are recorded in the component's log.",
)
@click.argument("name")
@click.argument("alias")
@click.argument("version", required=False)
@click.option("--remove", is_flag=True, help="Remove the alias.")
@click.option(
    "--expected",
    metavar="VERSION",
    help="Move it only if it points to this version now; 'none' if it must not exist. Prevents undoing another move.",
)
def alias_command(context: click.Context, asked: AliasAsked) -> None:
    """Move, remove or show an alias."""
    from compatkit.registry.aliases import ANY

    held = store(context)
    if asked.remove and asked.version is not None:
        raise UsageError("VERSION and --remove exclude each other; give one of them.")
    if asked.expected is not None and asked.version is None and not asked.remove:
        raise UsageError("--expected needs a VERSION to move the alias to.")
    if asked.version is None and not asked.remove:
        found = held.resolve(f"{asked.name}:{asked.alias}")
        shown = {"name": asked.name, "alias": asked.alias, "version": str(found.version)}
        emit(shown) if asked.machine else click.echo(f"{asked.name}:{asked.alias} is {found.version}")
        return
    before = held.aliases(asked.name).get(asked.alias)
    expected = ANY if asked.expected is None else None if asked.expected == "none" else asked.expected
    held.set_alias(asked.name, asked.alias, asked.version, expected=expected)
    if asked.machine:
        emit({"name": asked.name, "alias": asked.alias, "before": before, "version": asked.version})
    else:
        click.echo(
            f"{asked.name}:{asked.alias} is {asked.version or 'removed'}"
            + (f", was {before}" if before else "")
        )
