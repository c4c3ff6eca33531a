"""``compatkit withdraw``: withdraw a version, with a reason."""

from __future__ import annotations

import click

from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import clean, emit
from compatkit.cli.roots import open_store
from compatkit.cli.sign import key_option, signer
from compatkit.components.registry import numbered


class WithdrawOptions(Options):
    """Arguments and options of ``withdraw``."""

    reference: str = argument(metavar="NAME@VERSION")
    reason: str = option("Shown to everybody who requests this version.", metavar="TEXT")
    key: str | None = key_option


@command("withdraw", WithdrawOptions)
def withdraw_command(options: WithdrawOptions) -> int | None:
    """Withdraw a version (NAME@1.2.0): only its digest finds it afterwards, and its number is never reused.

    `compatkit restore` takes a withdrawal back.
    """
    store, (name, number) = open_store(), numbered(options.reference, "withdraw")
    digest = store.references.digest(name, number)
    store.withdraw(name, number, options.reason, before=signer(store, options.key))
    note = store.tombstone(name, number)
    pointing = [alias for alias, version in store.aliases(name).items() if version == str(number)]
    reason = note.reason if note else options.reason
    if options.json:
        version = {"name": name, "version": str(number), "digest": digest}
        return emit({**version, "reason": reason, "aliases": pointing})
    click.echo(f"withdrew {name}@{number}: {clean(reason)}")
    click.echo(f"it can still be read as {name}@{digest}")
    for alias in pointing:
        click.echo(f"the alias {alias} still points at it: compatkit alias {name} {alias} VERSION")
