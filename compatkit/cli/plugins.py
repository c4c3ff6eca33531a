"""The command plugins: what is installed, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import json_option
from compatkit.cli.output import clean, emit, fold

if TYPE_CHECKING:
    from compatkit.plugins import Listed


@click.command(
    "plugins", help="List the installed plugins: status, distribution, version, hooks, order, settings."
)
@click.option("--trace", is_flag=True, help="Show the traceback of each plugin that failed.")
@json_option
def plugins_command(trace: bool, machine: bool) -> None:
    """List plugins; every one is imported, each on its own, and a broken one is no error here."""
    from compatkit.plugins import listing

    found = listing()
    if machine:
        emit([one.to_json() for one in found])
        return
    if not found:
        click.echo("no plugins are installed")
    for place, one in enumerate(found):
        _print_plugin(one, trace, first=place == 0)


def _print_plugin(one: Listed, trace: bool, *, first: bool) -> None:
    colour = "green" if one.status == "active" else "red"
    key, owner = clean(f"{one.kind}.{one.name}"), clean(f"{one.distribution or '?'} {one.version or '?'}")
    click.echo(
        f"{'' if first else chr(10)}{click.style(key, bold=True)}  {click.style(one.status, fg=colour)}  {owner}"
    )
    facts = {
        "hooks": ", ".join(hook.removeprefix("compatkit_") for hook in one.hooks),
        "settings": "; ".join(map(str, one.settings)),
        "order": f"{one.order} of the {one.kind}" if one.status == "active" else "",
        "problem": one.message,
        "notes": " ".join(one.notes),
    }
    for label, text in facts.items():
        if text:
            click.echo(fold(label, text, indent=2, size=8))
    if trace and one.traceback:
        click.echo(clean(one.traceback))
