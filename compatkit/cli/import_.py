"""``compatkit import``: copy components from another registry."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from compatkit.cli.images import deciding_on
from compatkit.cli.options import AdmissionOptions, PathType, SignatureOptions, argument, command, option
from compatkit.cli.output import progress
from compatkit.cli.remote import finish, latest_option, no_results_option, patterns_argument
from compatkit.cli.roots import demanded, destination, open_or_create_store


class ImportOptions(AdmissionOptions, SignatureOptions):
    """Arguments and options of ``import``."""

    source: str = argument(type=PathType())
    patterns: tuple[str, ...] = patterns_argument
    latest: bool = latest_option
    aliases: bool = option("Also set the aliases as in SOURCE.")
    no_results: bool = no_results_option


@command(
    "import",
    ImportOptions,
    help="Copy components from the registry SOURCE, with parents, versions and results. PATTERN is a name, a glob "
    "such as 'digits/*', or a reference such as 'digits/*@^1' for one version of each; default: all.",
)
def import_command(context: click.Context, options: ImportOptions) -> None:
    """Copy components; leaves no new registry behind if nothing matches or all is refused."""
    from compatkit.registry.copy.choice import Choice, chosen
    from compatkit.registry.remotes.pushpull import import_components
    from compatkit.registry.store import Store

    other, wanted = Store.open(Path(options.source).expanduser()), options.patterns or ("*",)
    choice = Choice(
        versions="latest" if options.latest else "all",
        aliases=options.aliases,
        evidence=not options.no_results,
        unmeasured=options.unmeasured,
    ).requiring(demanded(context))
    for reference in chosen(other.references, wanted, choice.versions):
        if choice.accept is not None:
            choice.accept(str(reference.digest), other.signatures.of(str(reference.digest)), str(reference))
    target = open_or_create_store(destination(context))
    with progress("importing") as report:
        choice = attrs.evolve(choice, deciding=deciding_on(options, report), progress=report)
        moved = import_components(other, target, wanted, choice=choice)
    finish(context, options, moved, "copied", shows=True)
