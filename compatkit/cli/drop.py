"""``compatkit drop``: free a version number, because another registry uses it for another component."""

from __future__ import annotations

import click

from compatkit.cli.options import argument, command, option
from compatkit.cli.output import clean, emit, next_step
from compatkit.cli.releases import SigningOptions
from compatkit.cli.roots import open_store


class DropOptions(SigningOptions):
    """Arguments and options of ``drop``."""

    reference: str = argument(metavar="NAME@VERSION")
    reason: str = option("Shown to everybody who requests this version.", metavar="TEXT")


@command("drop", DropOptions)
def drop_command(options: DropOptions) -> int | None:
    """Free a version number (NAME@1.0.0) that another registry uses for another component.

    The component must have another name or number here: see `compatkit copy`. Then `compatkit pull` brings the other
    registry's version of this number.

    Examples:
        # after a clash: free the number, keep the component by its digest
        compatkit drop digits/mnist.head@1.0.0 --reason "the other team's number"
    """
    from compatkit.registry.dropping import drop
    from compatkit.registry.names import Reference

    wanted = Reference.parse(options.reference)
    record = drop(open_store(), options.reference, options.reason)
    if options.json:
        version = {"name": wanted.name, "version": str(wanted.version), "digest": record.digest}
        return emit({**version, "kept": record.kept, "reason": record.reason, "time": record.time})
    click.echo(f"dropped {wanted}: {clean(record.reason)}")
    click.echo(f"{record.digest} is kept as {record.kept}")
    next_step("pull", "REMOTE", wanted.name)
