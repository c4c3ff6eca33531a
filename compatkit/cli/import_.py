"""``compatkit import``: copy components from another registry."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from compatkit.cli.images import deciding_on
from compatkit.cli.options import AdmissionAsked, PathType, admission_options, command, signature_options
from compatkit.cli.output import progress
from compatkit.cli.remote import finish, latest_option, no_results_option, patterns_argument
from compatkit.cli.roots import demanded, destination, made


class ImportAsked(AdmissionAsked):
    """Arguments and options of ``import``."""

    source: str
    patterns: tuple[str, ...]
    latest: bool
    aliases: bool
    no_results: bool


@command(
    "import",
    ImportAsked,
    help="Copy components from the registry SOURCE, with parents, versions and results. PATTERN is a name, a glob "
    "such as 'digits/*', or a reference such as 'digits/*@^1' for one version of each; default: all.",
)
@click.argument("source", type=PathType())
@patterns_argument
@latest_option
@click.option("--aliases", is_flag=True, help="Also set the aliases as in SOURCE.")
@no_results_option
@admission_options
@signature_options
def import_command(context: click.Context, asked: ImportAsked) -> None:
    """Copy components; leaves no new registry behind if nothing matches or all is refused."""
    from compatkit.registry.copy.choice import Choice, chosen
    from compatkit.registry.remotes.pushpull import import_components
    from compatkit.registry.store import Store

    other, wanted = Store.open(Path(asked.source).expanduser()), asked.patterns or ("*",)
    choice = Choice(
        versions="latest" if asked.latest else "all",
        aliases=asked.aliases,
        evidence=not asked.no_results,
        unmeasured=asked.unmeasured,
    ).requiring(demanded(context))
    for one in chosen(other.references, wanted, choice.versions):
        if choice.accept is not None:
            choice.accept(str(one.digest), other.signatures.of(str(one.digest)), str(one))
    target = made(destination(context))
    with progress("importing") as report:
        choice = attrs.evolve(choice, deciding=deciding_on(asked, report), progress=report)
        moved = import_components(other, target, wanted, choice=choice)
    finish(context, asked, moved, "copied", shows=True)
