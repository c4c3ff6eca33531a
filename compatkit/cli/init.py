"""The command init: make a registry in a folder."""

from __future__ import annotations

from pathlib import Path

import click

from compatkit.cli.options import given, json_option, registry_option
from compatkit.cli.output import clean, emit, next_step
from compatkit.cli.roots import make


@click.command("init", help="Make the folder ROOT a registry, or leave it one. [default: the current folder]")
@click.argument("root", required=False)
@registry_option
@json_option
@click.pass_context
def init_command(context: click.Context, root: str | None, machine: bool) -> None:
    """Make a registry in a folder."""
    folder = Path(root or given(context).registry or ".").expanduser().absolute()
    made, fresh = make(folder)
    if machine:
        emit({"root": str(made.root), "id": made.id, "created": fresh})
        return
    click.echo(f"{'made the' if fresh else 'already a'} registry {clean(str(made.root))}")
    if fresh:
        next_step("compatkit", "--registry", root or given(context).registry or ".", "train", "RECIPE.toml")
