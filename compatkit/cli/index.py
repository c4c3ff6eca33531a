"""``compatkit index``: show or rebuild the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Asked, command
from compatkit.cli.output import emit, progress, rows, size
from compatkit.cli.roots import store

if TYPE_CHECKING:
    from compatkit.registry.index.lookup import Status


class IndexAsked(Asked):
    """Arguments and options of ``index``."""

    rebuild: bool


@command(
    "index",
    IndexAsked,
    help="Show where the index is and what it contains; it is disposable and updates itself.",
)
@click.option("--rebuild", is_flag=True, help="Discard it and read all files again.")
def index_command(context: click.Context, asked: IndexAsked) -> None:
    """Show the index, or rebuild it."""
    index = store(context).index
    if asked.rebuild:
        with progress("reading") as report:
            index.rebuild(report)
    status = index.status()
    if asked.machine:
        emit(status.to_json() | {"rebuilt": asked.rebuild})
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
