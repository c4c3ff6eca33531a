"""``compatkit withdraw``: withdraw a version, with a reason."""

from __future__ import annotations

import click

from compatkit.cli.options import Asked, command
from compatkit.cli.output import clean, emit
from compatkit.cli.roots import store
from compatkit.errors import UsageError


class WithdrawAsked(Asked):
    """Arguments and options of ``withdraw``."""

    reference: str
    reason: str


@command(
    "withdraw",
    WithdrawAsked,
    help="Withdraw a version (NAME@1.2.0): only its digest finds it afterwards, and its number is never reused.",
)
@click.argument("reference", metavar="NAME@VERSION")
@click.option("--reason", required=True, metavar="TEXT", help="Shown to everybody who requests this version.")
def withdraw_command(context: click.Context, asked: WithdrawAsked) -> None:
    """Withdraw a version."""
    from compatkit.registry.names import Reference

    held, wanted = store(context), Reference.parse(asked.reference)
    if wanted.version is None:
        raise UsageError(
            f"Name the version to withdraw, such as {wanted.name}@1.2.0; got {asked.reference!r}."
        )
    found = held.references.digest(wanted.name, wanted.version)
    held.withdraw(wanted.name, wanted.version, asked.reason)
    note = held.tombstone(wanted.name, wanted.version)
    pointing = [
        alias for alias, version in held.aliases(wanted.name).items() if version == str(wanted.version)
    ]
    if asked.machine:
        emit(
            {
                "name": wanted.name,
                "version": str(wanted.version),
                "digest": found,
                "reason": note.reason if note else asked.reason,
                "aliases": pointing,
            }
        )
        return
    click.echo(f"withdrew {wanted}: {clean(note.reason if note else asked.reason)}")
    click.echo(f"it can still be read as {wanted.name}@{found}")
    for alias in pointing:
        click.echo(f"the alias {alias} still points at it: compatkit alias {wanted.name} {alias} VERSION")
