"""``compatkit du``: disk usage of a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, argument, command
from compatkit.cli.output import columns, emit, size
from compatkit.cli.roots import store

if TYPE_CHECKING:
    from compatkit.registry.usage import Usage

_PLACES = {
    "blobs": "all blobs",
    "unreferenced": "of these, led to by no version and no result",
    "evidence": "results of measurements",
    "trash": "trash/, taken out by gc",
    "quarantine": "quarantine/, damaged files",
    "drafts": "tmp/, unfinished files",
}


class DuOptions(Options):
    """Arguments and options of ``du``."""

    pattern: str | None = argument()


@command(
    "du",
    DuOptions,
    help="Show how many bytes components and folders take; PATTERN is a glob over whole names.",
)
def du_command(context: click.Context, options: DuOptions) -> None:
    """Show bytes by name, own and shared with others, and by folder."""
    from compatkit.registry.usage import usage

    held = store(context)
    found = usage(held.index, held.objects, options.pattern)
    if options.json:
        emit(found.to_json())
        return
    if found.names:
        lines = [(one.name, size(one.own.bytes), size(one.shared.bytes)) for one in found.names]
        columns([("name", "its own", "shared"), *lines], right=(1, 2))
    else:
        click.echo("no components" + (f" match {options.pattern!r}" if options.pattern else " yet"))
    click.echo()
    columns([("", "files", "size"), *_places(found)], right=(1, 2))


def _places(found: Usage) -> list[tuple[str, str, str]]:
    amounts = [(label, getattr(found, name)) for name, label in _PLACES.items()]
    return [(label, f"{amount.files:,}", size(amount.bytes)) for label, amount in amounts]
