"""``compatkit show``: show a component's contract; reads no weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, argument, command
from compatkit.cli.output import emit, rows, warn
from compatkit.cli.roots import open_store
from compatkit.errors import CompatkitError
from compatkit.reports.contracts import details as facts_of

if TYPE_CHECKING:
    from compatkit.registry.names import Reference
    from compatkit.registry.signing.checks import SignatureVerdict
    from compatkit.registry.store import Store


class ShowOptions(Options):
    """Arguments and options of ``show``."""

    reference: str = argument(metavar="REF")


@command("show", ShowOptions)
def show_command(options: ShowOptions) -> int | None:
    """Show the component REF and its contract (REF: NAME, NAME@1.0.0, NAME@^1, NAME:alias).

    Examples:
        # the contract of the latest version
        compatkit show digits/mnist.extractor
        # the manifest of what an alias points to
        compatkit show digits/mnist.head:prod --json
    """
    store = open_store()
    reference = store.resolve(options.reference)
    manifest = store.manifest(reference)
    verified, verdicts = _signatures(store, reference)
    if options.json:
        from compatkit.contracts.manifest import to_bytes
        from compatkit.foundation.codec import loads

        result = {
            "name": reference.name,
            "version": str(reference.version),
            "digest": reference.digest,
            "versions": list(map(str, store.versions(reference.name))),
            "aliases": store.aliases(reference.name),
            "signatures": [verdict.to_json() for verdict in verdicts],
            "signatures_verified": verified,
        }
        return emit(result | {"manifest": loads(to_bytes(manifest), what=options.reference)})
    click.echo(click.style(f"{reference.name}@{reference.version}", bold=True))
    rows(facts_of(store, reference, manifest) | {"signatures": _signed(verified, verdicts)})


def _signatures(store: Store, reference: Reference) -> tuple[bool, list[SignatureVerdict]]:
    """Return the signatures, and whether they were verified, which needs trusted keys."""
    try:
        signatures = store.signatures.of(str(reference.digest))
        if not signatures:
            return False, []
        from compatkit.registry.signing.checks import check_signature
        from compatkit.registry.signing.keys import check_installed
        from compatkit.registry.signing.trust import Trusted

        trusted = Trusted.of()
        if trusted.keys:
            check_installed()
    except CompatkitError as error:  # the component is still shown
        warn(f"the signatures were not verified: {error}")
        return False, []
    shown = f"{reference.name}@{reference.version}"
    return bool(trusted.keys), [
        check_signature(signature, str(reference.digest), trusted, name=shown) for signature in signatures
    ]


def _signed(verified: bool, verdicts: list[SignatureVerdict]) -> str:
    """Return a line about signatures; empty if there are none."""
    valid = [verdict for verdict in verdicts if verdict.valid]
    if valid:
        from compatkit.cli.signatures import in_words

        return "; ".join(map(in_words, valid))
    signers = sorted({verdict.statement.signer if verdict.statement else "damaged" for verdict in verdicts})
    if not signers:
        return ""
    if not verified:
        return f"{', '.join(signers)}; not verified, for no key is trusted (`compatkit keys trust`)"
    codes = sorted({verdict.error.code for verdict in verdicts if verdict.error is not None})
    return f"none counts: {', '.join(codes)}; see `compatkit signatures`"
