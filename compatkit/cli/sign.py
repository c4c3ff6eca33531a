"""``compatkit sign``, and private keys on the command line: found by file or name, opened with a passphrase."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import emit, next_step
from compatkit.cli.roots import open_registry
from compatkit.errors import KeyFileError
from compatkit.registry.signing.signer import SigningKey
from compatkit.registry.signing.trust import configuration

if TYPE_CHECKING:
    from compatkit.registry.log import BeforeChange
    from compatkit.registry.store import Store

all_option = option("All versions instead of the latest, withdrawn ones too.", "--all")
key_option = option(
    "Sign the change with this private key: a file, or the name of one of `compatkit keys new`.",
    metavar="KEY",
)


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


def key_folder() -> Path:
    """Return the default folder of private keys."""
    return configuration() / "keys"


def open_key(text: str) -> SigningKey:
    """Return the private key in a file, or with a name in the user's folder.

    Raises:
        KeyFileError: There is no such key, or it cannot be used; subclasses say why.
        MissingDependency: ``cryptography`` is not installed.
    """
    file, own = Path(text).expanduser(), key_folder() / f"{text}.pem"
    if not file.exists():
        if len(Path(text).parts) != 1 or not own.exists():
            raise KeyFileError(
                f"There is no key {text}, neither here nor at {own}. See `compatkit keys new`.", subject=text
            )
        file = own
    return SigningKey.load(file, passphrase=lambda: ask(f"Passphrase of {file}"))


def signer(store: Store, key: str | None) -> BeforeChange | None:
    """Return a function that signs a change before it is made; None without a key.

    Args:
        store: Files of the registry.
        key: File or name of a private key, or None.
    """
    from compatkit.registry.signing.changes import change_signer

    return None if key is None else change_signer(store, open_key(key))


def ask(prompt: str, *, confirm: bool = False) -> str:
    """Prompt for hidden input; return an empty text without a terminal.

    Args:
        prompt: Text before the input.
        confirm: Whether to ask twice.
    """
    if not sys.stdin.isatty():
        return ""
    text = click.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True)
    return str(text)
