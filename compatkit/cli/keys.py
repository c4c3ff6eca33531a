"""The command keys: private keys are made, public ones trusted, listed and distrusted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import given, json_option
from compatkit.cli.output import clean, columns, emit, news, next_step
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.registry.signing.keys import PublicKey
    from compatkit.registry.signing.trust import Folder, Trusted

TRUSTED = click.option(
    "--trusted", "folder", metavar="DIR", help="Folder of trusted keys; else COMPATKIT_TRUST, else your own."
)


@click.group("keys", help="Make keys to sign with, and say whose signatures count.")
@json_option
@click.pass_context
def keys_command(context: click.Context, machine: bool) -> None:
    """Hold the commands about keys."""
    given(context).machine |= machine


@keys_command.command(
    "new",
    help="Make a key NAME: a private file, which only you can read, and a public one beside it to hand on.",
)
@click.argument("name")
@click.option("--expires", metavar="WHEN", help="When the key ends: 365d, 8w, 2y, or 2027-01-31.")
@click.option(
    "--out", type=click.Path(), metavar="FILE", help="Of the private key; else in your own configuration."
)
@click.option(
    "--passphrase",
    is_flag=True,
    help="Encrypt it; the passphrase is asked for, or in COMPATKIT_KEY_PASSPHRASE.",
)
@json_option
@click.pass_context
def new(
    context: click.Context, name: str, expires: str | None, out: str | None, passphrase: bool, machine: bool
) -> None:
    """Make a pair of keys."""
    from compatkit.cli.signing import ask, key_folder
    from compatkit.registry.signing import dates
    from compatkit.registry.signing.signer import PASSPHRASE, SigningKey

    ends = None if expires is None else dates.until(expires)
    key = SigningKey.new(name, expires=ends)
    file = Path(out).expanduser() if out is not None else key_folder() / f"{name}.pem"
    secret = os.environ.get(PASSPHRASE) or None
    if passphrase and secret is None and not (secret := ask("New passphrase", confirm=True)):
        raise UsageError(f"--passphrase needs a terminal to ask on, or {PASSPHRASE}.")
    public = key.save(file, passphrase=secret)
    if machine:
        emit(
            {**_row(key.public, None), "private": str(file), "public": str(public), "encrypted": bool(secret)}
        )
        return
    click.echo(f"made the key {name}" + (f", until {dates.written(ends)}" if ends else ""))
    click.echo(key.public.id)
    click.echo(f"private, keep it to yourself: {clean(str(file))}{' (encrypted)' if secret else ''}")
    click.echo(f"public, hand it on:           {clean(str(public))}")
    next_step("compatkit", "keys", "trust", str(public))


@keys_command.command(
    "trust",
    help="Let signatures of KEY count from now on: a file of a public key, or ed25519:.... It must have come from its "
    "owner another way than what it signs.",
)
@click.argument("key")
@click.option("--as", "name", metavar="NAME", help="What to call it; else the name in the file.")
@click.option("--expires", metavar="WHEN", help="When to stop: 365d, or 2027-01-31; else when the key ends.")
@click.option("--again", is_flag=True, help="Also if it was distrusted.")
@TRUSTED
@json_option
@click.pass_context
def trust(
    context: click.Context,
    key: str,
    name: str | None,
    expires: str | None,
    again: bool,
    folder: str | None,
    machine: bool,
) -> None:
    """Trust a key."""
    from compatkit.registry.signing import dates
    from compatkit.registry.signing.keys import PublicKey, read_small

    file = Path(key).expanduser()
    found = (
        PublicKey.parse(key)
        if key.startswith("ed25519:") and not file.exists()
        else PublicKey.from_bytes(read_small(file, key), what=key)
    )
    if name is None and not found.name:
        raise UsageError(f"{key} does not say whose key it is: --as NAME.")
    ends = None if expires is None else dates.until(expires)
    place = _folder(folder)
    kept = place.trust(found, name=name, expires=ends, again=again)
    if machine:
        emit({**_row(kept, None), "folder": str(place.path)})
        return
    click.echo(f"trusted {kept.name}" + (f", until {dates.written(kept.expires)}" if kept.expires else ""))
    click.echo(kept.id)
    news("Compare these digits with those that its owner tells you.")


@keys_command.command("list", help="List the keys whose signatures count, and those that do not any more.")
@TRUSTED
@json_option
@click.pass_context
def listing(context: click.Context, folder: str | None, machine: bool) -> None:
    """List trusted and distrusted keys."""
    place = _folder(folder)
    trusted = place.read()
    found = _rows(trusted)
    if machine:
        emit({"folder": str(place.path), "keys": found})
        return
    if not found:
        click.echo(f"no keys in {clean(str(place.path))}: compatkit keys trust FILE")
        return
    columns(
        [
            ("name", "state", "until", "key", "note"),
            *(
                (one["name"], one["state"], one["expires"] or "", one["key"], one["note"] or "")
                for one in found
            ),
        ]
    )


@keys_command.command(
    "distrust",
    help="Let no signature of KEY count any more: its name, ed25519:..., or the first digits of that.",
)
@click.argument("key")
@click.option("--reason", default="", metavar="TEXT", help="Shown where a signature of it is met.")
@TRUSTED
@json_option
@click.pass_context
def distrust(context: click.Context, key: str, reason: str, folder: str | None, machine: bool) -> None:
    """Distrust a key, for good."""
    place = _folder(folder)
    found = place.distrust(key, reason)
    past = place.read().distrusted[found.id]
    if machine:
        emit({**_row(found, str(past)), "folder": str(place.path)})
        return
    click.echo(f"distrusted {found} on {clean(str(past))}")
    news("Those who took the key from you must do the same: a signature cannot be called back.")


def _folder(given_path: str | None) -> Folder:
    from compatkit.registry.signing.trust import Folder

    return Folder.of_user() if given_path is None else Folder(Path(given_path).expanduser())


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
