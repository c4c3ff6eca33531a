"""``compatkit keys``: make private keys; trust, list and distrust public ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import Asked, PathType, command, group
from compatkit.cli.output import clean, columns, emit, news, next_step
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.registry.signing.keys import PublicKey
    from compatkit.registry.signing.trust import Folder, Trusted


def folder(context: click.Context, parameter: click.Parameter, value: str | None) -> Folder:
    """Return the named folder of trusted keys, or the user's own."""
    from compatkit.registry.signing.trust import Folder

    return Folder.of_user() if value is None else Folder(Path(value).expanduser())


folder_option = click.option(
    "--trusted",
    "folder",
    type=PathType(),
    metavar="DIR",
    callback=folder,
    help="Folder of trusted keys; default: COMPATKIT_TRUST, else your own.",
)


keys_command = group("keys", help="Make signing keys, and manage trusted keys.")


class KeysNewAsked(Asked):
    """Arguments and options of ``keys new``."""

    name: str
    expires: str | None
    out: str | None
    passphrase: bool


@command(
    "new",
    KeysNewAsked,
    help="Make a key NAME: a private file, readable only by you, and a public one beside it to share.",
    group=keys_command,
    registry=False,
)
@click.argument("name")
@click.option("--expires", metavar="WHEN", help="When the key expires: 365d, 8w, 2y, or 2027-01-31.")
@click.option(
    "--out",
    type=PathType(),
    metavar="FILE",
    help="File of the private key; default: in your configuration.",
)
@click.option(
    "--passphrase",
    is_flag=True,
    help="Encrypt it; the passphrase is prompted for, or taken from COMPATKIT_KEY_PASSPHRASE.",
)
def new(context: click.Context, asked: KeysNewAsked) -> None:
    """Make a key pair."""
    from compatkit.cli.sign import ask, key_folder
    from compatkit.registry.signing import dates
    from compatkit.registry.signing.signer import PASSPHRASE, SigningKey

    ends = None if asked.expires is None else dates.until(asked.expires)
    key = SigningKey.new(asked.name, expires=ends)
    file = Path(asked.out).expanduser() if asked.out is not None else key_folder() / f"{asked.name}.pem"
    secret = os.environ.get(PASSPHRASE) or None
    if asked.passphrase and secret is None and not (secret := ask("New passphrase", confirm=True)):
        raise UsageError(f"--passphrase needs a terminal for the prompt, or {PASSPHRASE}.")
    public = key.save(file, passphrase=secret)
    if asked.machine:
        files = {"private": str(file), "public": str(public), "encrypted": bool(secret)}
        emit(_row(key.public, None) | files)
        return
    click.echo(f"made the key {asked.name}" + (f", until {dates.written(ends)}" if ends else ""))
    click.echo(key.public.id)
    click.echo(f"private, keep it to yourself: {clean(str(file))}{' (encrypted)' if secret else ''}")
    click.echo(f"public, hand it on:           {clean(str(public))}")
    next_step("compatkit", "keys", "trust", str(public))


class KeysTrustAsked(Asked):
    """Arguments and options of ``keys trust``."""

    key: str
    name: str | None
    expires: str | None
    again: bool
    folder: Folder


@command(
    "trust",
    KeysTrustAsked,
    help="Trust signatures of KEY from now on: a file of a public key, or ed25519:.... Get it from its owner on "
    "another way than what it signs.",
    group=keys_command,
    registry=False,
)
@click.argument("key")
@click.option("--as", "name", metavar="NAME", help="Name for it; default: the name in the file.")
@click.option(
    "--expires", metavar="WHEN", help="When to stop trusting it: 365d, or 2027-01-31; default: its own end."
)
@click.option("--again", is_flag=True, help="Allow a key that was distrusted.")
@folder_option
def trust(context: click.Context, asked: KeysTrustAsked) -> None:
    """Trust a key."""
    from compatkit.registry.signing import dates
    from compatkit.registry.signing.keys import PublicKey, read_small

    file = Path(asked.key).expanduser()
    found = (
        PublicKey.parse(asked.key)
        if asked.key.startswith("ed25519:") and not file.exists()
        else PublicKey.from_bytes(read_small(file, asked.key), what=asked.key)
    )
    if asked.name is None and not found.name:
        raise UsageError(f"{asked.key} contains no name for the key; give one with --as NAME.")
    ends = None if asked.expires is None else dates.until(asked.expires)
    kept = asked.folder.trust(found, name=asked.name, expires=ends, again=asked.again)
    if asked.machine:
        emit({**_row(kept, None), "folder": str(asked.folder.path)})
        return
    click.echo(f"trusted {kept.name}" + (f", until {dates.written(kept.expires)}" if kept.expires else ""))
    click.echo(kept.id)
    news("Compare these digits with those that its owner tells you.")


class KeysListingAsked(Asked):
    """Arguments and options of ``keys list``."""

    folder: Folder


@command(
    "list",
    KeysListingAsked,
    help="List trusted keys, expired ones and distrusted ones.",
    group=keys_command,
    registry=False,
)
@folder_option
def listing(context: click.Context, asked: KeysListingAsked) -> None:
    """List trusted and distrusted keys."""
    found = _rows(asked.folder.read())
    if asked.machine:
        emit({"folder": str(asked.folder.path), "keys": found})
        return
    if not found:
        click.echo(f"no keys in {clean(str(asked.folder.path))}: compatkit keys trust FILE")
        return
    cells = ((one["name"], one["state"], one["expires"], one["key"], one["note"]) for one in found)
    columns([("name", "state", "until", "key", "note"), *([text or "" for text in row] for row in cells)])


class KeysDistrustAsked(Asked):
    """Arguments and options of ``keys distrust``."""

    key: str
    reason: str
    folder: Folder


@command(
    "distrust",
    KeysDistrustAsked,
    help="Distrust all signatures of KEY: its name, ed25519:..., or its first digits.",
    group=keys_command,
    registry=False,
)
@click.argument("key")
@click.option("--reason", default="", metavar="TEXT", help="Shown when one of its signatures is found.")
@folder_option
def distrust(context: click.Context, asked: KeysDistrustAsked) -> None:
    """Distrust a key permanently."""
    found = asked.folder.distrust(asked.key, asked.reason)
    past = asked.folder.read().distrusted[found.id]
    if asked.machine:
        emit({**_row(found, str(past)), "folder": str(asked.folder.path)})
        return
    click.echo(f"distrusted {found} on {clean(str(past))}")
    news("Those who took the key from you must do the same: a signature cannot be called back.")


def _rows(trusted: Trusted) -> list[dict[str, Any]]:
    from compatkit.registry.signing.keys import PublicKey

    every = {**{one: PublicKey(one) for one in trusted.distrusted}, **trusted.keys}
    found = []
    for key in sorted(every.values(), key=lambda one: (one.name, one.id)):
        past = trusted.distrusted.get(key.id)
        found.append(_row(key, None if past is None else str(past)))
    return found


def _row(key: PublicKey, past: str | None) -> dict[str, Any]:
    from compatkit.registry.signing import dates

    ended = key.expires is not None and key.expires <= dates.now()
    return {
        "name": key.name,
        "key": key.id,
        "state": "distrusted" if past is not None else "expired" if ended else "trusted",
        "expires": None if key.expires is None else dates.written(key.expires),
        "note": past,
    }
