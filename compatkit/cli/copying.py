"""The command that copies components from another registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compatkit.cli.gc import counted, size
from compatkit.cli.options import given, json_option, registry_option
from compatkit.cli.output import columns, emit, news, next_step, paragraph, progress
from compatkit.cli.roots import destination, make

if TYPE_CHECKING:
    from compatkit.registry.copying.importing import Imported


@click.command(
    "import",
    help="Copy components from the registry SOURCE, with their parents, numbers and results. PATTERN is a name, a glob "
    "such as 'digits/*', or a reference such as 'digits/*@^1' for one version of each; all if none is given.",
)
@click.argument("source")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--latest", is_flag=True, help="Only the latest version of each name.")
@click.option("--aliases", is_flag=True, help="Set the aliases of the names as they are in SOURCE.")
@click.option("--no-results", is_flag=True, help="Leave measured results of pairs behind.")
@registry_option
@json_option
@click.pass_context
def import_command(
    context: click.Context,
    source: str,
    patterns: tuple[str, ...],
    latest: bool,
    aliases: bool,
    no_results: bool,
    machine: bool,
) -> None:
    """Copy components from another registry."""
    from compatkit.registry.copying.importing import chosen, import_components
    from compatkit.registry.store import Store

    other, versions = Store.open(Path(source).expanduser()), "latest" if latest else "all"
    chosen(other, patterns or ("*",), versions)  # what matches nothing leaves no new registry behind
    target, fresh = make(destination(context))
    if fresh:
        news(f"made the registry {target.root}")
    with progress("importing") as report:
        done = import_components(
            other,
            target,
            patterns or ("*",),
            versions=versions,
            aliases=aliases,
            evidence=not no_results,
            progress=report,
        )
    if machine:
        emit(done.to_json())
        return
    _show(done)
    if done.made:
        words = ["--registry", str(given(context).registry)] if given(context).registry is not None else []
        next_step("compatkit", *words, "show", str(done.made[-1]))


def _show(done: Imported) -> None:
    rows = [(str(one), "new") for one in done.made]
    rows += [(str(one), "here already") for one in done.there]
    rows += [(str(one.digest), f"a parent; {one} is another component here") for one in done.unnamed]
    columns([("component", ""), *rows])
    said = f"copied {counted(done.blobs, 'blob')} ({size(done.bytes)}) and {counted(done.results, 'result')}"
    paragraph(said + (f"; set {', '.join(done.aliases)}" if done.aliases else "") + ".")
