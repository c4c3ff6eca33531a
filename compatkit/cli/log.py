"""``compatkit log``: the history of a name, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, argument, command
from compatkit.cli.output import clean, emit, fold
from compatkit.cli.private_keys import author_label
from compatkit.cli.roots import open_store
from compatkit.errors import IntegrityError, NotFound
from compatkit.registry.resolving import is_pattern

if TYPE_CHECKING:
    from compatkit.registry.history import HistoryEntry

COLORS = {"published": "green", "withdrawn": "yellow", "dropped": "yellow"}


class LogOptions(Options):
    """Arguments and options of ``log``."""

    name: str = argument()


@command("log", LogOptions)
def log_command(options: LogOptions) -> int | None:
    """Show the history of NAME, newest first: versions, withdrawals and drops with their reasons, moves of aliases.

    Each entry says who made it, as recorded: a key, or else the name of a user; and from which git commit. NAME may be
    a glob, such as 'digits/*'. Damaged entries cause exit code 3.

    Examples:
        # versions, aliases and withdrawals, oldest first
        compatkit log digits/mnist.head
    """
    from compatkit.registry.history import log

    store = open_store()
    names = store.names(options.name) if is_pattern(options.name) else [options.name]
    if not names:
        raise NotFound(f"{options.name!r} matches no component; see `compatkit ls`.", subject=options.name)
    histories = {name: log(store, name) for name in names}
    damaged = any(entry.damaged for entries in histories.values() for entry in entries)
    code = IntegrityError.exit_code if damaged else 0
    if options.json:
        shown = {name: [entry.to_json() for entry in log] for name, log in histories.items()}
        return emit([{"name": name, "entries": entries} for name, entries in shown.items()], code)
    for number, (name, entries) in enumerate(histories.items()):
        click.echo(f"{chr(10) if number else ''}{click.style(clean(name), bold=True)}")
        for entry in entries:
            _print(entry)
    return code


def _author(entry: HistoryEntry) -> str:
    """Return who made a change, and from which commit."""
    if not entry.by:
        return ""
    commit = f", commit {entry.commit[:12]}" if entry.commit else ""
    return clean(f" (by {author_label(entry.by)}{commit})")


def _print(entry: HistoryEntry) -> None:
    time = entry.when.replace("T", " ").removesuffix("+00:00")
    label = f"{time:<19}  {entry.what:<9}  {entry.version:<8}"
    color = "red" if entry.damaged else COLORS.get(entry.what)
    line = fold(label, f"{entry.detail}{_author(entry)}", indent=2, size=len(label))
    click.echo(line.replace(entry.what, click.style(entry.what, fg=color), 1))
