"""``compatkit du``: disk usage of a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, argument, command
from compatkit.cli.output import columns, emit, size, warn
from compatkit.cli.roots import open_store, requested_root

if TYPE_CHECKING:
    from compatkit.registry.usage import Usage

_LABELS = {
    "blobs": "all blobs",
    "unreferenced": "of these, unreferenced",
    "evidence": "results of measurements",
    "trash": "trash/, taken out by gc",
    "quarantine": "quarantine/, damaged files",
    "drafts": "tmp/, unfinished files",
}


class DuOptions(Options):
    """Arguments and options of ``du``."""

    pattern: str | None = argument()


@command("du", DuOptions)
def du_command(options: DuOptions) -> int | None:
    """Show how many bytes components and folders take; PATTERN is a glob over whole names.

    Examples:
        # of the whole registry
        compatkit du
        # of some names
        compatkit du 'digits/*'
    """
    from compatkit.foundation.addresses import is_remote
    from compatkit.registry.usage import usage

    store = open_store()
    if is_remote(requested_root()):
        warn("weights that stay in the remote are not counted")
    report = usage(store.references, store.objects, options.pattern)
    if options.json:
        return emit(report.to_json())
    if report.names:
        lines = [(name.name, size(name.own.bytes), size(name.shared.bytes)) for name in report.names]
        columns([("name", "its own", "shared"), *lines], right=(1, 2))
    else:
        click.echo("no components" + (f" match {options.pattern!r}" if options.pattern else " yet"))
    click.echo()
    columns([("", "files", "size"), *_usage_rows(report)], right=(1, 2))
    return None


def _usage_rows(report: Usage) -> list[tuple[str, str, str]]:
    amounts = [(label, getattr(report, name)) for name, label in _LABELS.items()]
    return [(label, f"{amount.files:,}", size(amount.bytes)) for label, amount in amounts]
