"""``compatkit import``: copy components from another registry."""

from __future__ import annotations

from pathlib import Path

from compatkit.cli.images import AdmissionOptions
from compatkit.cli.options import argument, command
from compatkit.cli.output import progress
from compatkit.cli.remote import (
    FollowOptions,
    finish,
    latest_option,
    no_aliases_option,
    no_results_option,
    patterns_argument,
    transfer_settings,
)
from compatkit.cli.roots import SignatureOptions, destination, open_or_create_store


class ImportOptions(FollowOptions, AdmissionOptions, SignatureOptions):
    """Arguments and options of ``import``."""

    source: Path = argument()
    patterns: tuple[str, ...] = patterns_argument
    latest: bool = latest_option
    no_aliases: bool = no_aliases_option
    no_results: bool = no_results_option


@command("import", ImportOptions)
def import_command(options: ImportOptions) -> int | None:
    """Copy components from the registry SOURCE, with parents, versions and results.

    PATTERN is a name, a glob such as 'digits/*', or a reference such as 'digits/*@^1' for one version of each;
    default: all.

    Examples:
        # copy some components with all that they need
        compatkit --registry mine import theirs 'digits/*'
        # one version, without measured results
        compatkit import theirs digits/mnist.head@^1 --no-results
    """
    from compatkit.registry.copy.settings import select_versions
    from compatkit.registry.remotes.pushpull import import_components
    from compatkit.registry.store import Store

    other, wanted = Store.open(options.source.expanduser()), options.patterns or ("*",)
    with progress("importing") as report:
        settings = transfer_settings(options, report)
        for reference in select_versions(other.references, wanted, settings.versions):
            is_withdrawn = reference.version in other.references.withdrawn(reference.name)
            if settings.accept is not None and not is_withdrawn:
                settings.accept(
                    str(reference.digest), other.signatures.of(str(reference.digest)), str(reference)
                )
        result = import_components(other, open_or_create_store(destination()), wanted, settings=settings)
    return finish(options, result, "copied", shows=True)
