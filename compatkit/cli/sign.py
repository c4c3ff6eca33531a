"""``compatkit sign``, and private keys on the command line: found by file or name, opened with a passphrase."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import Asked, command, given
from compatkit.cli.output import emit, next_step
from compatkit.cli.roots import registry

if TYPE_CHECKING:
    from compatkit.components.registry import Registry
    from compatkit.registry.signing.signer import SigningKey

ALL = click.option(
    "--all",
    "every",
    is_flag=True,
    help="All versions of a name or glob instead of the latest, without withdrawn ones.",
)


class SignAsked(Asked):
    """Arguments and options of ``sign``."""

    references: tuple[str, ...]
    key: str
    expires: str | None
    every: bool
    unnamed: bool
    evidence: bool


@command(
    "sign",
    SignAsked,
    help="Sign components under their names and versions: REF is a name (its latest version), a glob such as "
    "'digits/*', NAME@VERSION, or a bare digest. Existing signatures of this key with the same end are kept.",
)
@click.argument("references", metavar="REF...", nargs=-1, required=True)
@click.option(
    "--key",
    required=True,
    metavar="KEY",
    help="File of a private key, or the name of one made by `compatkit keys new`.",
)
@click.option(
    "--expires",
    metavar="WHEN",
    help="When the signature expires: 365d, 12h, 8w, 2y, or 2027-01-31; at the latest with the key.",
)
@ALL
@click.option("--unnamed", is_flag=True, help="Sign the bytes alone, valid under any name and version.")
@click.option(
    "--evidence",
    is_flag=True,
    help="Sign the measured results of pairs instead: REF... are extractors and heads, each a reference or a glob.",
)
def sign_command(context: click.Context, asked: SignAsked) -> None:
    """Sign components, or the measured results of pairs."""
    held = registry(context)
    if asked.evidence:
        _sign_evidence(context, asked, held)
        return
    done = held.care.sign(
        asked.references,
        open_key(asked.key),
        expires=asked.expires,
        named=not asked.unnamed,
        every=asked.every,
    )
    if asked.machine:
        emit([one.to_json() for one in done])
        return
    for one in done:
        said = one.to_json()
        ends = f", until {said['expires']}" if said["expires"] else ""
        click.echo(f"{'signed' if one.made else 'signed before'} {one.subject}{ends}")
    more = ["--all"] if asked.every else []
    next_step("compatkit", *given(context).words, "signatures", *asked.references, *more)


def _sign_evidence(context: click.Context, asked: SignAsked, held: Registry) -> None:
    if len(asked.references) != 2 or asked.every or asked.unnamed:
        raise click.UsageError(
            "--evidence takes two REF, extractors and heads, without --all and --unnamed.", context
        )
    done = held.care.sign_evidence(*asked.references, open_key(asked.key), expires=asked.expires)
    if asked.machine:
        emit([one.to_json() for one in done])
        return
    made = sum(one.made for one in done)
    click.echo(f"signed {made:,} measured results; {len(done) - made:,} were signed before")


def key_folder() -> Path:
    """Return the default folder of private keys."""
    from compatkit.registry.signing.trust import configuration

    return configuration() / "keys"


def open_key(text: str) -> SigningKey:
    """Return the private key in a file, or with a name in the user's folder.

    Raises:
        KeyFileError: There is no such key, or it cannot be used; subclasses say why.
        MissingDependency: ``cryptography`` is not installed.
    """
    from compatkit.errors import KeyFileError
    from compatkit.registry.signing.signer import SigningKey

    file, kept = Path(text).expanduser(), key_folder() / f"{text}.pem"
    if not file.exists():
        if len(Path(text).parts) != 1 or not kept.exists():
            raise KeyFileError(
                f"There is no key {text}: neither a file of this name, nor {kept}. `compatkit keys new NAME` makes "
                "one.",
                subject=text,
            )
        file = kept
    return SigningKey.load(file, passphrase=lambda: ask(f"Passphrase of {file}"))


def ask(prompt: str, *, confirm: bool = False) -> str:
    """Prompt for hidden input; return an empty text without a terminal.

    Args:
        prompt: Text before the input.
        confirm: Whether to ask twice.
    """
    if not sys.stdin.isatty():
        return ""
    found = click.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True)
    return str(found)


def chosen_key(context: click.Context) -> SigningKey | None:
    """Return the key of ``--sign-with``, opened before any work is done; or None."""
    text = given(context).key
    return None if text is None else open_key(text)


def sign_published(
    held: Registry, references: Iterable[str], key: SigningKey | None
) -> dict[str, list[dict[str, Any]]]:
    """Sign new publications; return ``signed`` for ``--json``, empty without a key.

    Args:
        held: The registry.
        references: What was published.
        key: Signing key, or None.
    """
    if key is None:
        return {}
    return {"signed": [one.to_json() for one in held.care.sign(list(references), key)]}
