"""The command sign: sign components with a private key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import given, json_option, registry_option
from compatkit.cli.output import emit, next_step
from compatkit.cli.roots import registry

if TYPE_CHECKING:
    pass

ALL = click.option(
    "--all",
    "every",
    is_flag=True,
    help="All versions of a name or glob, and not only the latest; none withdrawn.",
)


@click.command(
    "sign",
    help="Sign components, as the names and versions that they have: REF is a name (its latest version), a glob such "
    "as 'digits/*', NAME@VERSION, or a bare digest. What this key signed already, for as long, is left as it is.",
)
@click.argument("references", metavar="REF...", nargs=-1, required=True)
@click.option(
    "--key",
    required=True,
    metavar="KEY",
    help="File of a private key, or the name of one that `compatkit keys new` made.",
)
@click.option(
    "--expires",
    metavar="WHEN",
    help="When the signature ends: 365d, 12h, 8w, 2y, or 2027-01-31; at the latest when the key does.",
)
@ALL
@click.option(
    "--unnamed", is_flag=True, help="Vouch for the bytes, whatever name and version they are shown as."
)
@registry_option
@json_option
@click.pass_context
def sign_command(
    context: click.Context,
    references: tuple[str, ...],
    key: str,
    expires: str | None,
    every: bool,
    unnamed: bool,
    machine: bool,
) -> None:
    """Sign components."""
    from compatkit.cli.signing import open_key

    held = registry(context)
    done = held.care.sign(references, open_key(key), expires=expires, named=not unnamed, every=every)
    if machine:
        emit([one.to_json() for one in done])
        return
    for one in done:
        said = one.to_json()
        ends = f", until {said['expires']}" if said["expires"] else ""
        click.echo(f"{'signed' if one.made else 'signed before'} {one.subject}{ends}")
    more = ["--all"] if every else []
    next_step("compatkit", *given(context).words, "signatures", *references, *more)
