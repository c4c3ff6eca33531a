"""Private keys on the command line: found by file or name, opened by a passphrase, used on what was published."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import given

if TYPE_CHECKING:
    from compatkit.components.workspace import Registry
    from compatkit.registry.signing.signer import SigningKey


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
