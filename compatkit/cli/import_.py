"""The command that copies components from another registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from compatkit.cli.gc import counted, size
from compatkit.cli.options import admission_options, given, json_option, registry_option, signature_options
from compatkit.cli.outcome import deciding_on
from compatkit.cli.output import columns, emit, news, next_step, paragraph, progress
from compatkit.cli.roots import demanded, destination, make

if TYPE_CHECKING:
    from compatkit.registry.copy.report import Moved


TOLD = ("made", "there", "unnamed", "blobs", "bytes", "results", "signatures", "aliases")
"""What ``--json`` tells: an import that ends refused nothing."""


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
@admission_options
@signature_options
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
    **_: object,
) -> None:
    """Copy components from another registry."""
    from compatkit.registry.copy.choice import Choice, chosen
    from compatkit.registry.remotes.pushpull import import_components
    from compatkit.registry.store import Store

    other, wanted = Store.open(Path(source).expanduser()), patterns or ("*",)
    choice = Choice(
        versions="latest" if latest else "all",
        aliases=aliases,
        evidence=not no_results,
        unmeasured=context.params["unmeasured"],
    ).requiring(demanded(context))
    # what matches nothing, or is refused, leaves no new registry behind
    for one in chosen(other.references, wanted, choice.versions):
        if choice.accept is not None:
            choice.accept(str(one.digest), other.signatures.of(str(one.digest)), str(one))
    target, fresh = make(destination(context))
    if fresh:
        news(f"made the registry {target.root}")
    with progress("importing") as report:
        choice = attrs.evolve(choice, deciding=deciding_on(context.params, report), progress=report)
        done = import_components(other, target, wanted, choice=choice)
    if machine:
        told = done.to_json()
        emit({key: told[key] for key in TOLD})
        return
    _show(done)
    if done.made:
        next_step("compatkit", *given(context).words, "show", str(done.made[-1]))


def _show(done: Moved) -> None:
    rows = [(str(one), "new") for one in done.made]
    rows += [(str(one), "here already") for one in done.there]
    rows += [(str(one.digest), f"a parent; {one} is another one here, or not signed") for one in done.unnamed]
    columns([("component", ""), *rows])
    said = f"copied {counted(done.blobs, 'blob')} ({size(done.bytes)}) and {counted(done.results, 'result')}"
    if done.signatures:
        said += f", with {counted(done.signatures, 'signature')}"
    paragraph(said + (f"; set {', '.join(done.aliases)}" if done.aliases else "") + ".")
