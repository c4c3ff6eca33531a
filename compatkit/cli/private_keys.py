"""Private keys on the command line: found by file or name, opened with a passphrase."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from compatkit.registry.signing.private_keys import SigningKey


def open_key(text: str) -> SigningKey:
    """Return the private key in a file, or with a name in the user's folder.

    Raises:
        KeyFileError: There is no such key, or it cannot be used; subclasses say why.
        MissingDependency: ``cryptography`` is not installed.
    """
    from compatkit.registry.signing.private_keys import SigningKey, key_file

    file = key_file(text)
    return SigningKey.load(file, passphrase=lambda: ask(f"Passphrase of {file}"))


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


def author_label(author: str) -> str:
    """Return an author; a key with its name among the keys that the user trusts or owns, if it is there."""
    if not author.startswith("ed25519:"):
        return author
    from compatkit.registry.signing.private_keys import key_folder
    from compatkit.registry.signing.trust import Folder

    key = Folder.of_user().read().keys.get(author) or Folder(key_folder()).read().keys.get(author)
    return f"{key.name} ({author[:20]})" if key is not None and key.name else author
