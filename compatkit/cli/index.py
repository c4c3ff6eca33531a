"""``compatkit index``: show or rebuild the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, command, option
from compatkit.cli.output import emit, progress, rows, size
from compatkit.cli.roots import store

if TYPE_CHECKING:
    from compatkit.registry.index.lookup import Status


class IndexOptions(Options):
    """Arguments and options of ``index``."""

    rebuild: bool = option("Discard it and read all files again.")


@command(
    "index",
    IndexOptions,
    help="Show where the index is and what it contains; it is disposable and updates itself.",
)
def index_command(context: click.Context, options: IndexOptions) -> None:
    """Show the index, or rebuild it."""
    index = store(context).index
    if options.rebuild:
        with progress("reading") as report:
            index.rebuild(report)
    status = index.status()
    if options.json:
        emit(status.to_json() | {"rebuilt": options.rebuild})
        return
    rows(_told(status))


def _told(status: Status) -> dict[str, str]:
    where = {
        "file": f"{status.path} ({size(status.bytes)})",
        "memory": f"in memory of this process only: {status.reason}",
    }[status.kept]
    told = {"kept": where, "changed": status.changed or "", "names": f"{status.names:,}"}
    told |= {"versions": f"{status.versions:,}", "manifests": f"{status.manifests:,}"}
    if status.damaged:
        told["damaged"] = f"{status.damaged:,}; `compatkit verify` tells what they are"
    told["read now"] = f"{status.read:,} folders that changed since the last look"
    return {label: text for label, text in told.items() if text}
