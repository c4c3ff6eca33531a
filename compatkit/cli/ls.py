"""``compatkit ls``: list components from the index, without opening unchanged files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.command_line import command_line
from compatkit.cli.options import Options, argument, command
from compatkit.cli.output import clean, columns, emit
from compatkit.cli.roots import open_store
from compatkit.errors import IntegrityError, NotFound, near
from compatkit.foundation.display import network_and_cut

if TYPE_CHECKING:
    from compatkit.registry.index.lookup import ListedName

HEADER = ("name", "version", "kind", "parameters", "network", "aliases")


class LsOptions(Options):
    """Arguments and options of ``ls``."""

    pattern: str | None = argument()


@command("ls", LsOptions)
def ls_command(options: LsOptions) -> int | None:
    """List components; PATTERN is a glob over whole names, such as 'digits/*.head'.

    Examples:
        # all components
        compatkit ls
        # the heads below digits/
        compatkit ls 'digits/*.head'
        # of a remote
        compatkit --registry s3://bucket/parts ls
    """
    store = open_store()
    every = store.index.listing(options.pattern)
    if options.pattern and not every:
        known = store.names()
        close = near(options.pattern, known, 3, 0.5)
        near_names = f" or names like {', '.join(close)}" if close else ""
        raise NotFound(
            f"{options.pattern!r} matches none of {len(known):,} names; try a glob such as "
            f"'*{options.pattern.strip('*')}*'{near_names}, or `compatkit ls` for all of them.",
            subject=options.pattern,
        )
    damaged = [line for line in every if line.error]
    if options.json:
        emit([line.to_json() for line in every])
    elif every:
        columns([HEADER, *map(_cells, every)], right=(3,))
    else:
        click.echo(f"no components in {clean(command_line().translated(str(store.root)))} yet")
    for line in damaged:
        click.echo(
            f"{click.style('damaged', fg='red', bold=True)} {line.name}: {clean(line.error)}", err=True
        )
    return IntegrityError.exit_code if damaged else 0


def _cells(line: ListedName) -> tuple[str, ...]:
    if line.error:
        return line.name, line.version, "damaged", "", "", ""
    return (
        line.name,
        line.version,
        line.kind.replace("_", " "),
        f"{line.parameters:,}",
        network_and_cut(line.model, line.cut),
        " ".join(f":{alias}={version}" for alias, version in line.aliases.items()),
    )
