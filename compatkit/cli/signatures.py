"""``compatkit signatures``: show who signed components, and whether the signatures are valid."""

from __future__ import annotations

from typing import Any

import click

from compatkit.cli.options import Options, argument, command
from compatkit.cli.output import clean, emit, fold
from compatkit.cli.roots import open_store, trusted_option
from compatkit.cli.sign import all_option
from compatkit.registry.signing.checks import SignatureVerdict, check_signature, refusal
from compatkit.registry.signing.keys import check_installed
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.signing.verify import SignedPart, signed_parts


class SignaturesOptions(Options):
    """Arguments and options of ``signatures``."""

    references: tuple[str, ...] = argument(metavar="[REF]...")
    every: bool = all_option
    trusted: tuple[str, ...] = trusted_option


@command("signatures", SignaturesOptions)
def signatures_command(options: SignaturesOptions) -> int | None:
    """Show who signed components, and whether the signatures are valid.

    They are if made by a trusted key, over this component, for this name and version, at this time. REF as for
    `compatkit sign`; default: the latest version of everything. Exit code 1 if a component has no valid signature, 3
    if that is because one is forged or damaged.

    Examples:
        # who signed the latest versions
        compatkit signatures
        # all versions, for the keys of a folder
        compatkit signatures 'digits/*' --all --trusted keys/
    """
    store, trusted = open_store(), Trusted.of(options.trusted or True)
    check_installed()
    reports: list[dict[str, Any]] = []
    code = 0
    for part in signed_parts(store, options.references or ("*",), every=options.every):
        verdicts = [
            check_signature(data, part.digest, trusted, name=part.name)
            for data in store.signatures.of(part.digest)
        ]
        error = refusal(part.digest, part.name, verdicts)
        code = max(code, 0 if error is None else error.exit_code)
        result = {"good": error is None, "code": error and error.code}
        signed = [verdict.to_json() for verdict in verdicts]
        reports.append({"reference": str(part), "digest": part.digest, **result, "signatures": signed})
        if not options.json:
            _print(part, verdicts, error is None)
    if options.json:
        return emit(reports, code)
    if not trusted.keys:
        click.echo(f"no key is trusted in {clean(trusted.source)}: compatkit keys trust FILE", err=True)
    return code


def _print(part: SignedPart, verdicts: list[SignatureVerdict], valid: bool) -> None:
    word = click.style("signed", fg="green") if valid else click.style("refused", fg="red", bold=True)
    click.echo(f"{word}  {part}")
    lines = [
        ("good", in_words(verdict)) if verdict.error is None else (verdict.error.code, str(verdict.error))
        for verdict in sorted(verdicts, key=lambda verdict: not verdict.valid)
    ]
    for label, text in lines or [("unsigned", "compatkit sign REF --key FILE, by whoever published it")]:
        click.echo(fold(label, text, indent=2, size=8))


def in_words(verdict: SignatureVerdict) -> str:
    """Describe who signed, under which name, and until when."""
    result = verdict.to_json()
    ends = f" until {result['expires']}" if result["expires"] else ""
    bare = "" if result["signed_as"] else ", under any name"
    return f"{verdict.key}, signed {result['signed']}{ends}{bare}"
