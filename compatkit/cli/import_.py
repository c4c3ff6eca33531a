"""``compatkit import``: copy components from another registry."""

from __future__ import annotations

from pathlib import Path

from compatkit.cli.images import AdmissionOptions
from compatkit.cli.options import argument, command, option
from compatkit.cli.output import progress
from compatkit.cli.remote import choice_of, finish, latest_option, no_results_option, patterns_argument
from compatkit.cli.roots import SignatureOptions, destination, open_or_create_store
from compatkit.registry.copy.choice import chosen
from compatkit.registry.remotes.pushpull import import_components
from compatkit.registry.store import Store


class ImportOptions(AdmissionOptions, SignatureOptions):
    """Arguments and options of ``import``."""

    source: Path = argument()
    patterns: tuple[str, ...] = patterns_argument
    latest: bool = latest_option
    aliases: bool = option(
        "Also move aliases as in SOURCE; one that also moved differently here stays, and is listed."
    )
    no_results: bool = no_results_option


@command("import", ImportOptions)
def import_command(options: ImportOptions) -> int | None:
    """Copy components from the registry SOURCE, with parents, versions and results.

    PATTERN is a name, a glob such as 'digits/*', or a reference such as 'digits/*@^1' for one version of each;
    default: all.
    """
    other, wanted = Store.open(options.source.expanduser()), options.patterns or ("*",)
    with progress("importing") as report:
        choice = choice_of(options, report)
        for reference in chosen(other.references, wanted, choice.versions):
            if choice.accept is not None:
                choice.accept(
                    str(reference.digest), other.signatures.of(str(reference.digest)), str(reference)
                )
        moved = import_components(other, open_or_create_store(destination()), wanted, choice=choice)
    return finish(options, moved, "copied", shows=True)
