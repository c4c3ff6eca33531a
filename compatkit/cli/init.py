"""``compatkit init``: create a registry in a folder."""

from __future__ import annotations

from pathlib import Path

import click

from compatkit.cli.command_line import command_line
from compatkit.cli.options import Options, argument, command
from compatkit.cli.output import clean, emit, next_step
from compatkit.cli.roots import ensure_store
from compatkit.foundation.addresses import local


class InitOptions(Options):
    """Arguments and options of ``init``."""

    root: Path | None = argument()


@command("init", InitOptions)
def init_command(options: InitOptions) -> int | None:
    """Make the folder ROOT a registry, unless it is one.

    [default: the current folder]

    Examples:
        # make a registry in the folder parts
        compatkit init parts
    """
    root = options.root or Path(local(command_line().registry or ".", "a registry"))
    store, fresh = ensure_store(root.expanduser().absolute())
    if options.json:
        return emit({"root": str(store.root), "id": store.id, "created": fresh})
    click.echo(f"{'made the' if fresh else 'already a'} registry {clean(str(store.root))}")
    if fresh:
        next_step("--registry", root, "train", "RECIPE.toml", registry=False)
