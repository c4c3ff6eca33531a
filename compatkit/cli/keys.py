"""``compatkit keys``: make private keys; trust, list and distrust public ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import Options, PathType, argument, command, group, option
from compatkit.cli.output import clean, columns, emit, news, next_step
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.registry.signing.keys import PublicKey
    from compatkit.registry.signing.trust import Folder, Trusted


def folder(context: click.Context, parameter: click.Parameter, value: str | None) -> Folder:
    """Return the named folder of trusted keys, or the user's own."""
    from compatkit.registry.signing.trust import Folder

    return Folder.of_user() if value is None else Folder(Path(value).expanduser())


folder_option = option(
    "Folder of trusted keys; default: COMPATKIT_TRUST, else your own.",
    "--trusted",
    type=PathType(),
    metavar="DIR",
    callback=folder,
)
keys_command = group("keys", help="Make signing keys, and manage trusted keys.")


class KeysNewOptions(Options):
    """Arguments and options of ``keys new``."""

    name: str = argument()
    expires: str | None = option("When the key expires: 365d, 8w, 2y, or 2027-01-31.", metavar="WHEN")
    out: str | None = option(
        "File of the private key; default: in your configuration.", type=PathType(), metavar="FILE"
    )
    passphrase: bool = option(
        "Encrypt it; the passphrase is prompted for, or taken from COMPATKIT_KEY_PASSPHRASE."
    )


@command(
    "new",
    KeysNewOptions,
    help="Make a key NAME: a private file, readable only by you, and a public one beside it to share.",
    group=keys_command,
    registry=False,
)
def new(context: click.Context, options: KeysNewOptions) -> None:
    """Make a key pair."""
    from compatkit.cli.sign import ask, key_folder
    from compatkit.registry.signing import dates
    from compatkit.registry.signing.signer import PASSPHRASE, SigningKey

    ends = None if options.expires is None else dates.until(options.expires)
    key = SigningKey.new(options.name, expires=ends)
    file = Path(options.out).expanduser() if options.out is not None else key_folder() / f"{options.name}.pem"
    secret = os.environ.get(PASSPHRASE) or None
    if options.passphrase and secret is None and not (secret := ask("New passphrase", confirm=True)):
        raise UsageError(f"--passphrase needs a terminal for the prompt, or {PASSPHRASE}.")
    public = key.save(file, passphrase=secret)
    if options.json:
        files = {"private": str(file), "public": str(public), "encrypted": bool(secret)}
        emit(_row(key.public, None) | files)
        return
    click.echo(f"made the key {options.name}" + (f", until {dates.written(ends)}" if ends else ""))
    click.echo(key.public.id)
    click.echo(f"private, keep it to yourself: {clean(str(file))}{' (encrypted)' if secret else ''}")
    click.echo(f"public, hand it on:           {clean(str(public))}")
    next_step("compatkit", "keys", "trust", str(public))


class KeysTrustOptions(Options):
    """Arguments and options of ``keys trust``."""

    key: str = argument()
    name: str | None = option("Name for it; default: the name in the file.", "--as", metavar="NAME")
    expires: str | None = option(
        "When to stop trusting it: 365d, or 2027-01-31; default: its own end.", metavar="WHEN"
    )
    again: bool = option("Allow a key that was distrusted.")
    folder: Folder = folder_option


@command(
    "trust",
    KeysTrustOptions,
    help="Trust signatures of KEY from now on: a file of a public key, or ed25519:.... Get it from its owner on "
    "another way than what it signs.",
    group=keys_command,
    registry=False,
)
def trust(context: click.Context, options: KeysTrustOptions) -> None:
    """Trust a key."""
    from compatkit.registry.signing import dates
    from compatkit.registry.signing.keys import PublicKey, read_small

    file = Path(options.key).expanduser()
    public = (
        PublicKey.parse(options.key)
        if options.key.startswith("ed25519:") and not file.exists()
        else PublicKey.from_bytes(read_small(file, options.key), what=options.key)
    )
    if options.name is None and not public.name:
        raise UsageError(f"{options.key} contains no name for the key; give one with --as NAME.")
    ends = None if options.expires is None else dates.until(options.expires)
    trusted = options.folder.trust(public, name=options.name, expires=ends, again=options.again)
    if options.json:
        emit({**_row(trusted, None), "folder": str(options.folder.path)})
        return
    click.echo(
        f"trusted {trusted.name}" + (f", until {dates.written(trusted.expires)}" if trusted.expires else "")
    )
    click.echo(trusted.id)
    news("Compare these digits with those of its owner.")


class KeysListingOptions(Options):
    """Arguments and options of ``keys list``."""

    folder: Folder = folder_option


@command(
    "list",
    KeysListingOptions,
    help="List trusted keys, expired ones and distrusted ones.",
    group=keys_command,
    registry=False,
)
def listing(context: click.Context, options: KeysListingOptions) -> None:
    """List trusted and distrusted keys."""
    rows = _rows(options.folder.read())
    if options.json:
        emit({"folder": str(options.folder.path), "keys": rows})
        return
    if not rows:
        click.echo(f"no keys in {clean(str(options.folder.path))}: compatkit keys trust FILE")
        return
    cells = ((row["name"], row["state"], row["expires"], row["key"], row["note"]) for row in rows)
    columns([("name", "state", "until", "key", "note"), *([text or "" for text in cells] for cells in cells)])


class KeysDistrustOptions(Options):
    """Arguments and options of ``keys distrust``."""

    key: str = argument()
    reason: str = option("Shown when one of its signatures is found.", default="", metavar="TEXT")
    folder: Folder = folder_option


@command(
    "distrust",
    KeysDistrustOptions,
    help="Distrust all signatures of KEY: its name, ed25519:..., or its first digits.",
    group=keys_command,
    registry=False,
)
def distrust(context: click.Context, options: KeysDistrustOptions) -> None:
    """Distrust a key permanently."""
    key = options.folder.distrust(options.key, options.reason)
    past = options.folder.read().distrusted[key.id]
    if options.json:
        emit({**_row(key, str(past)), "folder": str(options.folder.path)})
        return
    click.echo(f"distrusted {key} on {clean(str(past))}")
    news("Those who took the key from you must do the same: a signature cannot be called back.")


def _rows(trusted: Trusted) -> list[dict[str, Any]]:
    from compatkit.registry.signing.keys import PublicKey

    every = {**{identity: PublicKey(identity) for identity in trusted.distrusted}, **trusted.keys}
    rows = []
    for key in sorted(every.values(), key=lambda key: (key.name, key.id)):
        past = trusted.distrusted.get(key.id)
        rows.append(_row(key, None if past is None else str(past)))
    return rows


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
