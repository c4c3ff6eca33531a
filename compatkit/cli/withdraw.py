"""``compatkit withdraw``: withdraw a version, with a reason."""

from __future__ import annotations

import click

from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import clean, emit
from compatkit.cli.roots import open_store
from compatkit.errors import UsageError
from compatkit.registry.names import Reference


class WithdrawOptions(Options):
    """Arguments and options of ``withdraw``."""

    reference: str = argument(metavar="NAME@VERSION")
    reason: str = option("Shown to everybody who requests this version.", metavar="TEXT")


@command("withdraw", WithdrawOptions)
def withdraw_command(options: WithdrawOptions) -> int | None:
    """Withdraw a version (NAME@1.2.0): only its digest finds it afterwards, and its number is never reused."""
    store, wanted = open_store(), Reference.parse(options.reference)
    if wanted.version is None:
        raise UsageError(
            f"Name the version to withdraw, such as {wanted.name}@1.2.0; got {options.reference!r}."
        )
    digest = store.references.digest(wanted.name, wanted.version)
    store.withdraw(wanted.name, wanted.version, options.reason)
    note = store.tombstone(wanted.name, wanted.version)
    pointing = [
        alias for alias, version in store.aliases(wanted.name).items() if version == str(wanted.version)
    ]
    reason = note.reason if note else options.reason
    if options.json:
        version = {"name": wanted.name, "version": str(wanted.version), "digest": digest}
        return emit({**version, "reason": reason, "aliases": pointing})
    click.echo(f"withdrew {wanted}: {clean(reason)}")
    click.echo(f"it can still be read as {wanted.name}@{digest}")
    for alias in pointing:
        click.echo(f"the alias {alias} still points at it: compatkit alias {wanted.name} {alias} VERSION")
