"""``compatkit site``: write the catalogue of a registry as a folder of pages."""

from __future__ import annotations

from pathlib import Path

import click

from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import clean, counted, emit, progress, size
from compatkit.cli.roots import open_registry

title_option = option("Title; default: the name of the registry's folder.", metavar="TEXT")


class SiteOptions(Options):
    """Arguments and options of ``site``."""

    out: Path = argument()
    title: str | None = title_option


@command("site", SiteOptions)
def site_command(options: SiteOptions) -> int | None:
    """Write a catalogue of all components into the folder OUT: pages that open without a server and ask no network.

    OUT must be new, empty, or a catalogue that compatkit wrote, which is replaced.

    Examples:
        # a folder; open catalogue/index.html
        compatkit site catalogue
        # of a remote, with a title
        compatkit --registry s3://bucket/parts site catalogue --title 'Parts of the team'
    """
    registry = open_registry()
    with progress("catalogue") as report:
        site = registry.site(options.out, title=options.title or "", progress=report)
    if options.json:
        return emit(site.to_json())
    found = f"{counted(site.components, 'component')} in {counted(site.versions, 'version')}"
    click.echo(f"wrote {clean(str(options.out))}: {found}, {counted(site.files, 'file')}, {size(site.bytes)}")
    click.echo(f"open {clean(str(site.folder / 'index.html'))}")
    return None
