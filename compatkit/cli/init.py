"""``compatkit init``: create a registry in a folder."""

from __future__ import annotations

from pathlib import Path

import click

from compatkit.cli.options import Asked, PathType, command, given
from compatkit.cli.output import clean, emit, next_step
from compatkit.cli.roots import make
from compatkit.foundation.addresses import local


class InitAsked(Asked):
    """Arguments and options of ``init``."""

    root: str | None


@command(
    "init", InitAsked, help="Make the folder ROOT a registry, unless it is one. [default: the current folder]"
)
@click.argument("root", required=False, type=PathType())
def init_command(context: click.Context, asked: InitAsked) -> None:
    """Create a registry in a folder."""
    folder = Path(asked.root or local(given(context).registry or ".", "a registry")).expanduser().absolute()
    made, fresh = make(folder)
    if asked.machine:
        emit({"root": str(made.root), "id": made.id, "created": fresh})
        return
    click.echo(f"{'made the' if fresh else 'already a'} registry {clean(str(made.root))}")
    if fresh:
        next_step(
            "compatkit", "--registry", asked.root or given(context).registry or ".", "train", "RECIPE.toml"
        )
