"""``compatkit sign``: sign components, measured results, and changes of names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import emit, next_step
from compatkit.cli.private_keys import open_key
from compatkit.cli.roots import open_registry

if TYPE_CHECKING:
    pass

all_option = option("All versions instead of the latest, withdrawn ones too.", "--all")


class SignOptions(Options):
    """Arguments and options of ``sign``."""

    references: tuple[str, ...] = argument(required=True, metavar="REF...")
    key: str = option("File of a private key, or the name of one of `compatkit keys new`.", metavar="KEY")
    expires: str | None = option("End of the signature: 365d, 12h, 8w, 2y, or 2027-01-31.", metavar="WHEN")
    every: bool = all_option
    unnamed: bool = option("Sign the bytes alone, valid under any name and version.")
    evidence: bool = option("Sign measured results instead; the two REF are extractors and heads, or globs.")
    changes: bool = option("Sign all alias moves, withdrawals and restorations of the names instead.")


@command("sign", SignOptions)
def sign_command(options: SignOptions) -> int | None:
    """Sign components under their names and versions.

    REF is a name (its latest version), a glob such as 'digits/*', NAME@VERSION, or a bare digest. Existing
    signatures of this key with the same end are kept.

    Examples:
        # the latest versions below digits/
        compatkit sign 'digits/*' --key alice
        # their measured results
        compatkit sign 'digits/*.extractor' 'digits/*.head' --evidence --key alice
    """
    registry = open_registry()
    if options.changes:
        if options.evidence or options.every or options.unnamed or options.expires:
            text = "--changes takes names only, without --evidence, --all, --unnamed and --expires."
            raise click.UsageError(text, click.get_current_context())
        paths = registry.maintenance.sign_changes(options.references, open_key(options.key))
        if options.json:
            return emit(paths)
        for path in paths:
            click.echo(f"signed {path}")
        return None
    if options.evidence:
        if len(options.references) != 2 or options.every or options.unnamed:
            text = "--evidence takes two REF, extractors and heads, without --all and --unnamed."
            raise click.UsageError(text, click.get_current_context())
        key = open_key(options.key)
        signatures = registry.maintenance.sign_evidence(*options.references, key, expires=options.expires)
    else:
        signatures = registry.maintenance.sign(
            options.references,
            open_key(options.key),
            expires=options.expires,
            bind_name=not options.unnamed,
            every=options.every,
        )
    if options.json:
        return emit([signature.to_json() for signature in signatures])
    if options.evidence:
        new_count = sum(signature.created for signature in signatures)
        click.echo(
            f"signed {new_count:,} measured results; {len(signatures) - new_count:,} were signed before"
        )
        return None
    for signature in signatures:
        result = signature.to_json()
        ends = f", until {result['expires']}" if result["expires"] else ""
        click.echo(f"{'signed' if signature.created else 'signed before'} {signature.subject}{ends}")
    next_step("signatures", *options.references, *(["--all"] if options.every else []))
