"""``compatkit restore``: take the withdrawal of a version back."""

from __future__ import annotations

import click

from compatkit.cli.images import AdmissionOptions
from compatkit.cli.options import argument, command, option
from compatkit.cli.output import emit, progress
from compatkit.cli.releases import SigningOptions
from compatkit.cli.roots import open_store


class RestoreOptions(AdmissionOptions, SigningOptions):
    """Arguments and options of ``restore``."""

    reference: str = argument(metavar="NAME@VERSION")
    reason: str = option("Shown in the log.", metavar="TEXT")


@command("restore", RestoreOptions)
def restore_command(options: RestoreOptions) -> int | None:
    """Take the withdrawal of a version (NAME@1.2.0) back; the log keeps both.

    The version is checked like an imported one: its number must be a true step among the versions published since, and
    policies apply. Its weights must not have been collected.

    Examples:
        # the version can be found by its number again
        compatkit restore digits/mnist.head@1.1.0 --reason "it was not trained on it"
    """
    from compatkit.components.changing import numbered
    from compatkit.registry.restoring import restore

    store, (name, version) = open_store(), numbered(options.reference, "restore")
    with progress("restoring") as report:
        restore(
            store,
            name,
            version,
            options.reason,
            policy_checks=options.policy_checks(report),
            unmeasured=options.unmeasured,
        )
    if options.json:
        digest = store.references.digest(name, version)
        return emit({"name": name, "version": str(version), "digest": digest, "reason": options.reason})
    click.echo(f"restored {name}@{version}")
    return None
