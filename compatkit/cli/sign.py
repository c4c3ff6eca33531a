"""The command sign, and private keys on the command line: found by file or name, opened by a passphrase."""

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
    help="All versions of a name or glob, and not only the latest; none withdrawn.",
)


@command(
    "sign",
    help="Sign components, as the names and versions that they have: REF is a name (its latest version), a glob such "
    "as 'digits/*', NAME@VERSION, or a bare digest. What this key signed already, for as long, is left as it is.",
)
@click.argument("references", metavar="REF...", nargs=-1, required=True)
@click.option(
    "--key",
    required=True,
    metavar="KEY",
    help="File of a private key, or the name of one that `compatkit keys new` made.",
)
@click.option(
    "--expires",
    metavar="WHEN",
    help="When the signature ends: 365d, 12h, 8w, 2y, or 2027-01-31; at the latest when the key does.",
)
@ALL
@click.option(
    "--unnamed", is_flag=True, help="Vouch for the bytes, whatever name and version they are shown as."
)
def sign_command(context: click.Context, asked: Asked) -> None:
    """Sign components."""
    held = registry(context)
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


def key_folder() -> Path:
    """Return where private keys are kept that were made without naming a file."""
    from compatkit.registry.signing.trust import configuration

    return configuration() / "keys"


def open_key(text: str) -> SigningKey:
    """Return the private key in a file, or of a name in the user's own folder.

    Raises:
        KeyFileError: There is none, or it cannot be used; its subclasses say why.
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
    """Return what a person types, unseen; nothing where there is no terminal."""
    if not sys.stdin.isatty():
        return ""
    found = click.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True)
    return str(found)


def chosen_key(context: click.Context) -> SigningKey | None:
    """Return the key of ``--sign-with``, opened before any work is done; None if none is given."""
    text = given(context).key
    return None if text is None else open_key(text)


def sign_published(
    held: Registry, references: Iterable[str], key: SigningKey | None
) -> dict[str, list[dict[str, Any]]]:
    """Sign what was just published; return it for ``--json`` under ``signed``, nothing if there is no key."""
    if key is None:
        return {}
    return {"signed": [one.to_json() for one in held.care.sign(list(references), key)]}
