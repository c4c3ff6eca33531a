"""The command show: what a component is and promises; reads no weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import json_option, registry_option
from compatkit.cli.output import emit, rows, warn
from compatkit.cli.roots import store

if TYPE_CHECKING:
    from compatkit.registry.manifest import Manifest
    from compatkit.registry.names import Reference
    from compatkit.registry.signing.verification import Verdict
    from compatkit.registry.store import Store


@click.command(
    "show", help="Show what the component REF is and promises (REF: NAME, NAME@1.0.0, NAME@^1, NAME:alias)."
)
@click.argument("reference", metavar="REF")
@registry_option
@json_option
@click.pass_context
def show_command(context: click.Context, reference: str, machine: bool) -> None:
    """Show a component's contract."""
    from compatkit.registry.canonical import loads
    from compatkit.registry.manifest import to_bytes

    held = store(context)
    found = held.resolve(reference)
    manifest = held.manifest(found)
    if machine:
        place = {"name": found.name, "version": str(found.version), "digest": found.digest}
        known = {"versions": list(map(str, held.versions(found.name))), "aliases": held.aliases(found.name)}
        verified, found_out = _signatures(held, found)
        signed = {"signatures": [one.to_json() for one in found_out], "signatures_verified": verified}
        emit({**place, **known, **signed, "manifest": loads(to_bytes(manifest), what=reference)})
        return
    click.echo(click.style(f"{found.name}@{found.version}", bold=True))
    rows(_facts(held, found, manifest))


def _facts(held: Store, found: Reference, manifest: Manifest) -> dict[str, str]:
    """Return the contract in words, with what a person gave and what the registry knows around it."""
    from compatkit.registry.manifest import function_digest
    from compatkit.reports.contracts import short, summary

    about = manifest.about
    facts = {
        name: text for name in ("title", "description", "licence", "source") if (text := getattr(about, name))
    }
    if about.tags:
        facts["tags"] = ", ".join(f"{key} {value}" for key, value in about.tags.items())
    facts |= summary(manifest)
    relations = [parent.relation for parent in manifest.parents]
    for place, parent in enumerate(manifest.parents):
        label = parent.relation.replace("_", " ")
        if relations.count(parent.relation) > 1:
            label += f" {relations[:place].count(parent.relation) + 1}"
        known = [str(one) for one in held.index.search(digest=parent.component, limit=1)]
        facts[label] = " ".join([*known, short(parent.component)])
    facts["digest"] = str(found.digest)
    if manifest.kind == "extractor" and (heads := len(held.evidence.partners(function_digest(manifest)))):
        facts["measured with"] = (
            f"{heads:,} head{'' if heads == 1 else 's'}; `compatkit matrix` tells the figures"
        )
    others = [str(version) for version in held.versions(found.name) if version != found.version]
    if others:
        facts["other versions"] = ", ".join(others)
    if aliases := held.aliases(found.name):
        facts["aliases"] = ", ".join(f":{alias} is {version}" for alias, version in aliases.items())
    if line := _signed(*_signatures(held, found)):
        facts["signatures"] = line
    return facts


def _signatures(held: Store, found: Reference) -> tuple[bool, list[Verdict]]:
    """Return what is known of the signatures, and whether they were verified: only with keys that the user trusts."""
    from compatkit.errors import CompatkitError
    from compatkit.registry.signing.ed25519 import check_installed
    from compatkit.registry.signing.trust import Trusted
    from compatkit.registry.signing.verification import judge

    try:
        there = held.signatures.of(str(found.digest))
        trusted = Trusted.of() if there else Trusted({})
        if trusted.keys:
            check_installed()
    except CompatkitError as error:  # shown all the same; who asks for the signatures is told in full
        warn(f"the signatures were not verified: {error}")
        return False, []
    shown = f"{found.name}@{found.version}"
    return bool(trusted.keys), [judge(one, str(found.digest), trusted, name=shown) for one in there]


def _signed(verified: bool, found: list[Verdict]) -> str:
    """Return a line about signatures; nothing where there is none."""
    from compatkit.cli.sign import in_words

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
