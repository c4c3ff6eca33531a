"""The command alias: point an alias at a version, or show where it points."""

from __future__ import annotations

import click

from compatkit.cli.options import Asked, command
from compatkit.cli.output import emit
from compatkit.cli.roots import store
from compatkit.errors import UsageError


@command(
    "alias",
    help="Point ALIAS of the component NAME at VERSION, such as `compatkit alias digits/mnist.head prod 1.2.0`; "
    "without VERSION show where it points. The move is kept in the component's log.",
)
@click.argument("name")
@click.argument("alias")
@click.argument("version", required=False)
@click.option("--remove", is_flag=True, help="Remove the alias.")
@click.option(
    "--expected",
    metavar="VERSION",
    help="Move it only if it points there now; 'none' if it must not exist. Else somebody else's move may be undone.",
)
def alias_command(context: click.Context, asked: Asked) -> None:
    """Move, remove or show an alias."""
    from compatkit.registry.aliases import ANY

    held = store(context)
    if asked.remove and asked.version is not None:
        raise UsageError("Give a VERSION to point at, or --remove, not both.")
    if asked.expected is not None and asked.version is None and not asked.remove:
        raise UsageError("--expected says from where an alias may be moved; give the VERSION to move it to.")
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
