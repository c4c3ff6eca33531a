"""``compatkit remote``: save remotes under names in the user's configuration, list and remove them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import Options, argument, command, group, option
from compatkit.cli.output import clean, columns, emit, next_step, paragraph, rows, warn
from compatkit.errors import CompatkitError

if TYPE_CHECKING:
    from compatkit.registry.remotes.named import SavedRemote

remote_command = group(
    "remote",
    """Save remotes under names, list and remove them.

    Examples:
        # save an address
        compatkit remote add team s3://bucket/parts
        # list the saved ones
        compatkit remote list
    """,
)


class RemoteAddOptions(Options):
    """Arguments and options of ``remote add``."""

    name: str = argument()
    address: str = argument()
    settings: tuple[str, ...] = option(
        "Option of the remote's file system, such as endpoint_url=http://127.0.0.1:9000; may be repeated.",
        "--option",
        metavar="KEY=VALUE",
    )
    trusted: bool = option("Let pulls follow its moves of aliases and its withdrawals without asking.")
    replace: bool = option("Replace a remote of this name.")


@command("add", RemoteAddOptions, group=remote_command, registry=False)
def add(options: RemoteAddOptions) -> int | None:
    """Save ADDRESS as NAME; then NAME: stands for it in push, pull, clone and --registry.

    It is saved in your configuration folder, without secrets; nothing is contacted.

    Examples:
        # then team: stands for the address
        compatkit remote add team s3://bucket/parts
        # another S3 server than Amazon's
        compatkit remote add lab s3://parts --option endpoint_url=http://127.0.0.1:9000
    """
    from compatkit.registry.remotes import named
    from compatkit.registry.remotes.address import parse_options
    from compatkit.registry.remotes.named import SavedRemote

    name = options.name.removesuffix(":")
    remote = SavedRemote.of(options.address, parse_options(options.settings), trusted=options.trusted)
    named.add(name, remote, replace=options.replace)
    if options.json:
        return emit(_to_json(name, remote))
    click.echo(f"{name}: is {clean(str(remote))}")
    for folder in (name, f"{name}:"):
        if Path(folder).exists():
            paragraph(f"The folder {folder} here is written ./{folder}; {name}: is the remote.")
    next_step("--registry", f"{name}:", "ls", registry=False)


class RemoteListOptions(Options):
    """Options of ``remote list``."""


@command("list", RemoteListOptions, group=remote_command, registry=False)
def list_(options: RemoteListOptions) -> int | None:
    """List the saved remotes.

    Examples:
        # names and addresses
        compatkit remote list
    """
    from compatkit.registry.remotes import named

    remotes: dict[str, SavedRemote] = {}
    for name in named.names():
        try:
            remotes[name] = named.get(name)
        except CompatkitError as error:  # the others are still listed
            warn(str(error))
    if options.json:
        return emit([_to_json(name, remote) for name, remote in remotes.items()])
    if not remotes:
        paragraph("no remote is saved; `compatkit remote add NAME ADDRESS` saves one.")
        return None
    columns([("name", "address", ""), *((f"{name}:", *_cells(remote)) for name, remote in remotes.items())])


class RemoteNameOptions(Options):
    """Arguments of ``remote show`` and ``remote remove``."""

    name: str = argument()


@command("show", RemoteNameOptions, group=remote_command, registry=False)
def show(options: RemoteNameOptions) -> int | None:
    """Show address and options of the remote NAME.

    Examples:
        # address, options and trust of one
        compatkit remote show team
    """
    from compatkit.registry.remotes import named

    name = options.name.removesuffix(":")
    remote = named.get(name)
    if options.json:
        return emit(_to_json(name, remote))
    trust = "pulls follow its moves of aliases and its withdrawals" if remote.trusted else "no"
    texts = {"name": f"{name}:", "address": str(remote), "trusted": trust}
    rows(texts | {f"option {key}": str(value) for key, value in remote.options.items()})


@command("remove", RemoteNameOptions, group=remote_command, registry=False)
def remove(options: RemoteNameOptions) -> int | None:
    """Forget the remote NAME; what is stored there is not touched.

    Examples:
        # forget the name; the remote stays as it is
        compatkit remote remove team
    """
    from compatkit.registry.remotes import named

    name = options.name.removesuffix(":")
    named.remove(name)
    if options.json:
        return emit({"name": name})
    click.echo(f"{name}: is forgotten")


def _cells(remote: SavedRemote) -> tuple[str, str]:
    return str(remote), "trusted" if remote.trusted else ""


def _to_json(name: str, remote: SavedRemote) -> dict[str, Any]:
    return {"name": name, **remote.to_json()}
