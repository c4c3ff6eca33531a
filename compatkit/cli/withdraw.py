"""``compatkit withdraw``: withdraw a version, or all but the newest versions of names, with a reason."""

from __future__ import annotations

import click

from compatkit.cli.options import argument, command, option
from compatkit.cli.output import clean, columns, counted, emit, paragraph
from compatkit.cli.releases import SigningOptions
from compatkit.cli.roots import open_store
from compatkit.errors import UsageError
from compatkit.registry.maintenance.retention import NEWEST, RetentionPlan, plan


class WithdrawOptions(SigningOptions):
    """Arguments and options of ``withdraw``."""

    reference: str = argument(metavar="NAME@VERSION")
    reason: str = option("Shown to everybody who requests this version.", metavar="TEXT")
    keep: int | None = option(
        "Withdraw all but the newest N versions of each name that NAME, a glob, matches; never one that an alias "
        "points at, that is part of a recombination, or that a policy measures with.",
        metavar="N",
        min=1,
    )
    dry_run: bool = option("With --keep: show what would be withdrawn and what stays; change nothing.")


@command("withdraw", WithdrawOptions)
def withdraw_command(options: WithdrawOptions) -> int | None:
    """Withdraw a version (NAME@1.2.0): only its digest finds it afterwards, and its number is never reused.

    With --keep N, withdraw old versions of NAME or of a glob: compatkit withdraw 'digits/*' --keep 5 --reason TEXT.
    `compatkit restore` takes a withdrawal back.

    Examples:
        # one version
        compatkit withdraw digits/mnist.head@1.1.0 --reason "trained on the test set"
        # show what a rule would withdraw
        compatkit withdraw 'digits/*' --keep 5 --reason old --dry-run
    """
    from compatkit.components.changing import numbered

    if options.keep is not None:
        return _withdraw_old(options, options.keep)
    if options.dry_run:
        raise UsageError("--dry-run needs --keep.")
    store, (name, number) = open_store(), numbered(options.reference, "withdraw")
    digest = store.references.digest(name, number)
    store.withdraw(name, number, options.reason)
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
    return None


def _withdraw_old(options: WithdrawOptions, keep: int) -> int | None:
    """Withdraw all but the newest versions of some names, or show which."""
    store = open_store()
    retention = plan(store, options.reference, keep=keep, reason=options.reason)
    if not options.dry_run:
        retention = retention.apply()
    if options.json:
        return emit({**retention.to_json(), "dry_run": options.dry_run})
    _print(retention, "would withdraw" if options.dry_run else "withdrew")
    return None


def _print(retention: RetentionPlan, verb: str) -> None:
    for reference in retention.withdrawn:
        click.echo(f"{verb} {reference}")
    needed = [version for version in retention.kept if version.why != NEWEST]
    if needed:
        columns([("stays", "because"), *((version.reference, clean(version.why)) for version in needed)])
    newest = len(retention.kept) - len(needed)
    stay = f"{counted(newest, 'version')} among the newest {retention.keep} of a name"
    paragraph(f"{verb} {counted(len(retention.withdrawn), 'version')}; kept {stay}.")
