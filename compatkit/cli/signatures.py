"""``compatkit signatures``: show who signed components, and whether the signatures are valid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import Options, argument, command, trusted_option
from compatkit.cli.output import clean, emit, fold
from compatkit.cli.roots import store
from compatkit.cli.sign import all_option

if TYPE_CHECKING:
    from compatkit.registry.signing.judging import SignatureVerdict
    from compatkit.registry.signing.verify import SignedPart


class SignaturesOptions(Options):
    """Arguments and options of ``signatures``."""

    references: tuple[str, ...] = argument(metavar="[REF]...")
    every: bool = all_option
    trusted: tuple[str, ...] = trusted_option


@command(
    "signatures",
    SignaturesOptions,
    help="Show who signed components, and whether the signatures are valid: made by a trusted key, over this "
    "component, for this name and version, at this time. REF as for `compatkit sign`; default: the latest version of "
    "everything. Exit code 1 if a component has no valid signature, 3 if that is because one is forged or damaged.",
)
def signatures_command(context: click.Context, options: SignaturesOptions) -> None:
    """Verify the signatures of components."""
    from compatkit.registry.signing.judging import judge, refusal
    from compatkit.registry.signing.keys import check_installed
    from compatkit.registry.signing.trust import Trusted
    from compatkit.registry.signing.verify import subjects

    held, trusted = store(context), Trusted.of(options.trusted or True)
    check_installed()
    told: list[dict[str, Any]] = []
    code = 0
    for one in subjects(held, options.references or ("*",), every=options.every):
        found = [judge(data, one.digest, trusted, name=one.name) for data in held.signatures.of(one.digest)]
        error = refusal(one.digest, one.name, found)
        code = max(code, 0 if error is None else error.exit_code)
        told.append(
            {
                "reference": str(one),
                "digest": one.digest,
                "good": error is None,
                "code": None if error is None else error.code,
                "signatures": [each.to_json() for each in found],
            }
        )
        if not options.json:
            _tell(one, found, error is None)
    if options.json:
        emit(told)
    elif not trusted.keys:
        click.echo(f"no key is trusted in {clean(trusted.source)}: compatkit keys trust FILE", err=True)
    context.exit(code)


def _tell(one: SignedPart, found: list[SignatureVerdict], good: bool) -> None:
    word = click.style("signed", fg="green") if good else click.style("refused", fg="red", bold=True)
    click.echo(f"{word}  {one}")
    told = [
        ("good", in_words(each)) if each.error is None else (each.error.code, str(each.error))
        for each in sorted(found, key=lambda verdict: not verdict.good)
    ]
    for label, text in told or [("unsigned", "compatkit sign REF --key FILE, by whoever published it")]:
        click.echo(fold(label, text, indent=2, size=8))


def in_words(found: SignatureVerdict) -> str:
    """Describe who signed, under which name, and until when."""
    said = found.to_json()
    ends = f" until {said['expires']}" if said["expires"] else ""
    bare = "" if said["signed_as"] else ", under any name"
    return f"{found.key}, signed {said['signed']}{ends}{bare}"
