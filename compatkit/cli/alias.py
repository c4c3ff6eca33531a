"""``compatkit alias``: point an alias to a version, or show its version."""

from __future__ import annotations

import click

from compatkit.cli.options import argument, command, option
from compatkit.cli.output import emit
from compatkit.cli.releases import SigningOptions
from compatkit.cli.roots import open_store
from compatkit.errors import UsageError
from compatkit.registry.aliases import ANY


class AliasOptions(SigningOptions):
    """Arguments and options of ``alias``."""

    name: str = argument()
    alias: str = argument()
    version: str | None = argument()
    remove: bool = option("Remove the alias.")
    expected: str | None = option(
        "Move it only if it points to this version now; 'none': only if it does not exist.",
        metavar="VERSION",
    )


@command("alias", AliasOptions)
def alias_command(options: AliasOptions) -> int | None:
    """Point ALIAS of the component NAME to VERSION; without VERSION show its version.

    Such as `compatkit alias digits/mnist.head prod 1.2.0`. Moves are recorded in the component's log.

    Examples:
        # point digits/mnist.head:prod to a version
        compatkit alias digits/mnist.head prod 1.2.0
        # show where it points
        compatkit alias digits/mnist.head prod
        # move it unless somebody else has
        compatkit alias digits/mnist.head prod 1.2.0 --expected 1.1.0
    """
    store = open_store()
    if options.remove and options.version is not None:
        raise UsageError("VERSION and --remove exclude each other.")
    if options.expected is not None and options.version is None and not options.remove:
        raise UsageError("--expected needs a VERSION to move the alias to.")
    if options.version is None and not options.remove:
        reference = store.resolve(f"{options.name}:{options.alias}")
        if options.json:
            return emit({**options.only("name", "alias"), "version": str(reference.version)})
        click.echo(f"{options.name}:{options.alias} is {reference.version}")
        return None
    before = store.aliases(options.name).get(options.alias)
    expected = ANY if options.expected is None else None if options.expected == "none" else options.expected
    store.set_alias(options.name, options.alias, options.version, expected=expected)
    if options.json:
        return emit({**options.only("name", "alias", "version"), "before": before})
    was = f", was {before}" if before else ""
    click.echo(f"{options.name}:{options.alias} is {options.version or 'removed'}{was}")
