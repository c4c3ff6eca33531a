"""``compatkit index``: show or rebuild the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, command, option
from compatkit.cli.output import emit, progress, rows, size
from compatkit.cli.roots import open_store

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
    index = open_store(context).index
    if options.rebuild:
        with progress("reading") as report:
            index.rebuild(report)
    status = index.status()
    if options.json:
        emit(status.to_json() | {"rebuilt": options.rebuild})
        return
    rows(_texts(status))


def _texts(status: Status) -> dict[str, str]:
    where = f"{status.path} ({size(status.bytes)})"
    facts = {"kept": where, "changed": status.changed or "", "names": f"{status.names:,}"}
    facts |= {"versions": f"{status.versions:,}", "manifests": f"{status.manifests:,}"}
    if status.damaged:
        facts["damaged"] = f"{status.damaged:,}; `compatkit verify` lists them"
    return {label: text for label, text in facts.items() if text}
