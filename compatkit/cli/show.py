"""``compatkit show``: show a component's contract; reads no weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, argument, command
from compatkit.cli.output import emit, rows, warn
from compatkit.cli.roots import store

if TYPE_CHECKING:
    from compatkit.registry.names import Reference
    from compatkit.registry.signing.judging import SignatureVerdict
    from compatkit.registry.store import Store


class ShowOptions(Options):
    """Arguments and options of ``show``."""

    reference: str = argument(metavar="REF")


@command(
    "show",
    ShowOptions,
    help="Show the component REF and its contract (REF: NAME, NAME@1.0.0, NAME@^1, NAME:alias).",
)
def show_command(context: click.Context, options: ShowOptions) -> None:
    """Show a component's contract."""
    from compatkit.contracts.manifest import to_bytes
    from compatkit.foundation.codec import loads
    from compatkit.reports.contracts import facts

    held = store(context)
    found = held.resolve(options.reference)
    manifest = held.manifest(found)
    if options.json:
        place = {"name": found.name, "version": str(found.version), "digest": found.digest}
        known = {"versions": list(map(str, held.versions(found.name))), "aliases": held.aliases(found.name)}
        verified, found_out = _signatures(held, found)
        signed = {"signatures": [one.to_json() for one in found_out], "signatures_verified": verified}
        emit({**place, **known, **signed, "manifest": loads(to_bytes(manifest), what=options.reference)})
        return
    click.echo(click.style(f"{found.name}@{found.version}", bold=True))
    signed = _signed(*_signatures(held, found))
    rows(facts(held, found, manifest) | ({"signatures": signed} if signed else {}))


def _signatures(held: Store, found: Reference) -> tuple[bool, list[SignatureVerdict]]:
    """Return the signatures, and whether they were verified, which needs trusted keys."""
    from compatkit.errors import CompatkitError
    from compatkit.registry.signing.judging import judge
    from compatkit.registry.signing.keys import check_installed
    from compatkit.registry.signing.trust import Trusted

    try:
        there = held.signatures.of(str(found.digest))
        trusted = Trusted.of() if there else Trusted({})
        if trusted.keys:
            check_installed()
    except CompatkitError as error:  # the component is still shown
        warn(f"the signatures were not verified: {error}")
        return False, []
    shown = f"{found.name}@{found.version}"
    return bool(trusted.keys), [judge(one, str(found.digest), trusted, name=shown) for one in there]


def _signed(verified: bool, found: list[SignatureVerdict]) -> str:
    """Return a line about signatures; empty if there are none."""
    from compatkit.cli.signatures import in_words

    good = [one for one in found if one.good]
    if good:
        return "; ".join(map(in_words, good))
    said = sorted({one.statement.signer if one.statement else "damaged" for one in found})
    if not said:
        return ""
    if not verified:
        return f"{', '.join(said)}; not verified, for no key is trusted (`compatkit keys trust`)"
    codes = sorted({one.error.code for one in found if one.error is not None})
    return f"none counts: {', '.join(codes)}; see `compatkit signatures`"
