"""``compatkit init``: create a registry in a folder."""

from __future__ import annotations

from pathlib import Path

import click

from compatkit.cli.options import Options, PathType, argument, command, command_line
from compatkit.cli.output import clean, emit, next_step
from compatkit.cli.roots import ensure_store
from compatkit.foundation.addresses import local


class InitOptions(Options):
    """Arguments and options of ``init``."""

    root: str | None = argument(type=PathType())


@command(
    "init",
    InitOptions,
    help="Make the folder ROOT a registry, unless it is one. [default: the current folder]",
)
def init_command(context: click.Context, options: InitOptions) -> None:
    """Create a registry in a folder."""
    folder = (
        Path(options.root or local(command_line(context).registry or ".", "a registry"))
        .expanduser()
        .absolute()
    )
    made, fresh = ensure_store(folder)
    if options.json:
        emit({"root": str(made.root), "id": made.id, "created": fresh})
        return
    click.echo(f"{'made the' if fresh else 'already a'} registry {clean(str(made.root))}")
    if fresh:
        next_step(
            "compatkit",
            "--registry",
            options.root or command_line(context).registry or ".",
            "train",
            "RECIPE.toml",
        )
