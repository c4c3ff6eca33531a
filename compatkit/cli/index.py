"""``compatkit index``: show or rebuild the index."""

from __future__ import annotations

from compatkit.cli.options import Options, command, option
from compatkit.cli.output import emit, progress, rows, size
from compatkit.cli.roots import open_store


class IndexOptions(Options):
    """Arguments and options of ``index``."""

    rebuild: bool = option("Discard it and read all files again.")


@command("index", IndexOptions)
def index_command(options: IndexOptions) -> int | None:
    """Show where the index is and what it contains; it is disposable and updates itself.

    Examples:
        # where the index is and what it counts
        compatkit index
        # read all files again, after changes by hand
        compatkit index --rebuild
    """
    index = open_store().index
    if options.rebuild:
        with progress("reading") as report:
            index.rebuild(report)
    status = index.status()
    if options.json:
        return emit(status.to_json() | {"rebuilt": options.rebuild})
    details = {"kept": f"{status.path} ({size(status.bytes)})", "changed": status.changed or ""}
    details |= {name: f"{getattr(status, name):,}" for name in ("names", "versions", "manifests")}
    details["damaged"] = f"{status.damaged:,}; `compatkit verify` lists them" if status.damaged else ""
    rows(details)
