"""``compatkit keys``: make private keys; trust, list and distrust public ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from compatkit.cli.options import Options, argument, command, group, option
from compatkit.cli.output import clean, columns, emit, news, next_step
from compatkit.cli.private_keys import ask
from compatkit.errors import UsageError
from compatkit.registry.signing.keys import PublicKey, read_small
from compatkit.registry.signing.private_keys import PASSPHRASE, SigningKey, key_folder
from compatkit.registry.signing.trust import Folder


class FolderOptions(Options):
    """Folder of trusted keys."""

    trusted: Path | None = option(
        "Folder of trusted keys; default: COMPATKIT_TRUST, else your own.", metavar="DIR"
    )

    @property
    def folder(self) -> Folder:
        """The named folder of trusted keys, or the user's own."""
        return Folder.of_user() if self.trusted is None else Folder(self.trusted.expanduser())


keys_command = group(
    "keys",
    """Make signing keys, and manage trusted keys.

    Examples:
        # make a key to sign with
        compatkit keys new alice
        # list the trusted ones
        compatkit keys list
    """,
)


class KeysNewOptions(Options):
    """Arguments and options of ``keys new``."""

    name: str = argument()
    expires: str | None = option("When the key expires: 365d, 8w, 2y, or 2027-01-31.", metavar="WHEN")
    out: Path | None = option("File of the private key; default: in your configuration folder.")
    passphrase: bool = option("Encrypt it, with a prompted passphrase or COMPATKIT_KEY_PASSPHRASE.")


@command("new", KeysNewOptions, group=keys_command, registry=False)
def new(options: KeysNewOptions) -> int | None:
    """Create the key NAME: a private file, readable only by you, and next to it a public one to share.

    Examples:
        # make a key in your configuration folder
        compatkit keys new alice --expires 2y
        # in a file of its own, encrypted
        compatkit keys new release --out release.key --passphrase
    """
    from compatkit.registry.signing import dates

    ends = None if options.expires is None else dates.parse_expiry(options.expires)
    key = SigningKey.new(options.name, expires=ends)
    file = (options.out or key_folder() / f"{options.name}.pem").expanduser()
    secret = os.environ.get(PASSPHRASE) or None
    if options.passphrase and secret is None and not (secret := ask("New passphrase", confirm=True)):
        raise UsageError(f"--passphrase needs a terminal for the prompt, or {PASSPHRASE}.")
    public = key.save(file, passphrase=secret)
    if options.json:
        files = {"private": file, "public": public, "encrypted": bool(secret)}
        return emit(_row(key.public, None) | files)
    click.echo(f"made the key {options.name}" + (f", until {dates.format_time(ends)}" if ends else ""))
    click.echo(key.public.id)
    click.echo(f"private, keep secret: {clean(str(file))}{' (encrypted)' if secret else ''}")
    click.echo(f"public, to share:     {clean(str(public))}")
    next_step("keys", "trust", public, registry=False)


class KeysTrustOptions(FolderOptions):
    """Arguments and options of ``keys trust``."""

    key: str = argument()
    name: str | None = option("Name for it; default: the name in the file.", "--as")
    expires: str | None = option("End of trust: 365d, or 2027-01-31; default: the key's.", metavar="WHEN")
    again: bool = option("Allow a key that was distrusted.")


@command("trust", KeysTrustOptions, group=keys_command, registry=False)
def trust(options: KeysTrustOptions) -> int | None:
    """Trust signatures of KEY: the file of a public key, or ed25519:....

    Get the key from its owner by another channel than the components that it signs.

    Examples:
        # trust a colleague's signatures
        compatkit keys trust alice.pub
        # under another name, for a year
        compatkit keys trust alice.pub --as alice-2026 --expires 365d
    """
    from compatkit.registry.signing import dates

    file = Path(options.key).expanduser()
    public = (
        PublicKey.parse(options.key)
        if options.key.startswith("ed25519:") and not file.exists()
        else PublicKey.from_bytes(read_small(file, options.key), what=options.key)
    )
    if options.name is None and not public.name:
        raise UsageError(f"{options.key} contains no name for the key; give one with --as NAME.")
    ends = None if options.expires is None else dates.parse_expiry(options.expires)
    trusted = options.folder.trust(public, name=options.name, expires=ends, again=options.again)
    if options.json:
        return emit({**_row(trusted, None), "folder": options.folder.path})
    until = f", until {dates.format_time(trusted.expires)}" if trusted.expires else ""
    click.echo(f"trusted {trusted.name}{until}")
    click.echo(trusted.id)
    news("Compare these digits with those of its owner.")


@command("list", FolderOptions, group=keys_command, registry=False)
def listing(options: FolderOptions) -> int | None:
    """List trusted keys, expired ones and distrusted ones.

    Examples:
        # your trusted and distrusted keys
        compatkit keys list
        # those of a folder
        compatkit keys list --trusted keys/
    """
    trusted = options.folder.read()
    every = {**{identity: PublicKey(identity) for identity in trusted.distrusted}, **trusted.keys}
    rows = [
        _row(key, trusted.distrusted.get(key.id))
        for key in sorted(every.values(), key=lambda key: (key.name, key.id))
    ]
    if options.json:
        return emit({"folder": options.folder.path, "keys": rows})
    if rows:
        cells = ((row["name"], row["state"], row["expires"], row["key"], row["note"]) for row in rows)
        texts = ([text or "" for text in cells] for cells in cells)
        columns([("name", "state", "until", "key", "note"), *texts])
    else:
        click.echo(f"no keys in {clean(str(options.folder.path))}: compatkit keys trust FILE")


class KeysDistrustOptions(FolderOptions):
    """Arguments and options of ``keys distrust``."""

    key: str = argument()
    reason: str = option("Shown when one of its signatures is found.", default="", metavar="TEXT")


@command("distrust", KeysDistrustOptions, group=keys_command, registry=False)
def distrust(options: KeysDistrustOptions) -> int | None:
    """Distrust all signatures of KEY: its name, ed25519:..., or its first digits.

    Examples:
        # no signature of this key counts any more
        compatkit keys distrust alice --reason "laptop stolen"
    """
    key = options.folder.distrust(options.key, options.reason)
    past = options.folder.read().distrusted[key.id]
    if options.json:
        return emit({**_row(key, past), "folder": options.folder.path})
    click.echo(f"distrusted {key} on {clean(str(past))}")
    news("Others who trust the key must distrust it, too.")


def _row(key: PublicKey, past: object | None) -> dict[str, Any]:
    from compatkit.registry.signing import dates

    ended = key.expires is not None and key.expires <= dates.now()
    return {
        "name": key.name,
        "key": key.id,
        "state": "distrusted" if past is not None else "expired" if ended else "trusted",
        "expires": None if key.expires is None else dates.format_time(key.expires),
        "note": None if past is None else str(past),
    }
