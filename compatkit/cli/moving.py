"""The commands alias and withdraw: what may change about a version once it is published."""

from __future__ import annotations

import click

from compatkit.cli.options import json_option, registry_option
from compatkit.cli.output import clean, emit
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


@click.command(
    "withdraw",
    help="Withdraw a version (NAME@1.2.0): only its digest finds it any more, and its number is never used again.",
)
@click.argument("reference", metavar="NAME@VERSION")
@click.option("--reason", required=True, metavar="TEXT", help="Shown to everybody who asks for this version.")
@registry_option
@json_option
@click.pass_context
def withdraw_command(context: click.Context, reference: str, reason: str, machine: bool) -> None:
    """Withdraw a version."""
    from compatkit.registry.names import Reference

    held, wanted = store(context), Reference.parse(reference)
    if wanted.version is None:
        raise UsageError(f"Name the version to withdraw, such as {wanted.name}@1.2.0; got {reference!r}.")
    found = held.references.digest(wanted.name, wanted.version)
    held.withdraw(wanted.name, wanted.version, reason)
    note = held.tombstone(wanted.name, wanted.version)
    pointing = [
        alias for alias, version in held.aliases(wanted.name).items() if version == str(wanted.version)
    ]
    if machine:
        emit(
            {
                "name": wanted.name,
                "version": str(wanted.version),
                "digest": found,
                "reason": note.reason if note else reason,
                "aliases": pointing,
            }
        )
        return
    click.echo(f"withdrew {wanted}: {clean(note.reason if note else reason)}")
    click.echo(f"it can still be read as {wanted.name}@{found}")
    for alias in pointing:
        click.echo(f"the alias {alias} still points at it: compatkit alias {wanted.name} {alias} VERSION")
