"""The command alias: point an alias at a version, or show where it points."""

from __future__ import annotations

import click

from compatkit.cli.options import json_option, registry_option
from compatkit.cli.output import emit
from compatkit.cli.roots import store
from compatkit.errors import UsageError


@click.command(
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
@registry_option
@json_option
@click.pass_context
def alias_command(
    context: click.Context,
    name: str,
    alias: str,
    version: str | None,
    remove: bool,
    expected: str | None,
    machine: bool,
) -> None:
    """Move, remove or show an alias."""
    from compatkit.registry.aliases import ANY

    held = store(context)
    if remove and version is not None:
        raise UsageError("Give a VERSION to point at, or --remove, not both.")
    if expected is not None and version is None and not remove:
        raise UsageError("--expected says from where an alias may be moved; give the VERSION to move it to.")
    if version is None and not remove:
        found = held.resolve(f"{name}:{alias}")
        shown = {"name": name, "alias": alias, "version": str(found.version)}
        emit(shown) if machine else click.echo(f"{name}:{alias} is {found.version}")
        return
    before = held.aliases(name).get(alias)
    asked = ANY if expected is None else None if expected == "none" else expected
    held.set_alias(name, alias, version, expected=asked)
    if machine:
        emit({"name": name, "alias": alias, "before": before, "version": version})
    else:
        click.echo(f"{name}:{alias} is {version or 'removed'}" + (f", was {before}" if before else ""))
