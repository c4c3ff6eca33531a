"""``compatkit copy``: give a version another name or number in its registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.images import AdmissionOptions
from compatkit.cli.options import argument, command, option
from compatkit.cli.output import emit, next_step, paragraph, progress
from compatkit.cli.releases import SigningOptions, sign_published
from compatkit.cli.roots import SignatureOptions, open_registry
from compatkit.registry.names import Reference

if TYPE_CHECKING:
    from compatkit.registry.store import Store


class CopyOptions(AdmissionOptions, SignatureOptions, SigningOptions):
    """Arguments and options of ``copy``."""

    reference: str = argument(metavar="NAME@VERSION")
    target: str = option(
        "Other name, for the smallest number that the rules require there; or name and number.",
        "--as",
        metavar="OTHER[@VERSION]",
    )
    major: bool = option("Use the next MAJOR number: a break, which policies allow.")


@command("copy", CopyOptions)
def copy_command(options: CopyOptions) -> int | None:
    """Give a version another name or number in this registry: rename it, or promote it.

    Such as `compatkit copy staging/mnist.head@1.3.0 --as prod/mnist.head`. The component stays the same, byte for
    byte; its old name stays too. Policies of OTHER apply.

    Examples:
        # promote a version under another name
        compatkit copy staging/mnist.head@1.3.0 --as prod/mnist.head
        # give it another number
        compatkit copy digits/mnist.head@1.0.0 --as digits/mnist.head@2.0.0
    """
    from compatkit.registry.second_names import copy

    registry, key = open_registry(), options.key()
    store, target = registry.store, Reference.parse(options.target)
    source = store.resolve(options.reference)
    before = store.references.versions(target.name)
    with progress("policies") as report:
        copied = copy(
            store,
            options.reference,
            options.target,
            major=options.major,
            policy_checks=options.policy_checks(report, fixed=False),
            unmeasured=options.unmeasured,
        )
    signed = sign_published(registry, [str(copied)], key)
    other_names = [] if signed else _other_signed_names(store, copied)
    if options.json:
        result = {"registry": store.root, "source": str(source), "reference": str(copied)}
        version = {"name": copied.name, "version": str(copied.version), "digest": copied.digest}
        is_new = copied.version not in before
        return emit({**result, **version, "new": is_new, "signed_as": other_names, **signed})
    if copied.version in before:
        click.echo(f"{copied} is {source} already")
    else:
        click.echo(f"copied {source} to {copied}{' and signed it' if signed else ''}")
    if other_names:
        paragraph(f"It is signed as {', '.join(other_names)}, which does not count as {copied}.")
        next_step("sign", copied, "--key", "KEY")
    else:
        next_step("show", copied)


def _other_signed_names(store: Store, copied: Reference) -> list[str]:
    """Return the names in the signatures of a component if none of them is valid for this name and version."""
    from compatkit.registry.signing.verify import statements

    names = [
        verdict.statement.name for verdict in statements(store, str(copied)) if verdict.statement is not None
    ]
    return [] if None in names or str(copied) in names else sorted({str(name) for name in names})
