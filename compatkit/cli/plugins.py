"""``compatkit plugins``: list plugins, and built-in builders and data sets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from textwrap import shorten
from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import clean, columns, emit, fold, paragraph, width

if TYPE_CHECKING:
    from compatkit.plugins import Listed


GAPS = 4
"""Spaces between the three columns."""


class PluginsOptions(Options):
    """Arguments and options of ``plugins``."""

    word: str | None = argument(metavar="[WORD|NAME]")
    trace: bool = option("Show the traceback of each plugin that failed.")


@command(
    "plugins",
    PluginsOptions,
    help="List what a run can name, by kind, one line each: regularizers, metrics, builders of networks, data sets, "
    "studies. With WORD, list those with it in name or description; with the NAME of one, show its details: status, "
    "settings, hooks, order, source.",
    registry=False,
)
def plugins_command(context: click.Context, options: PluginsOptions) -> None:
    """List plugins; each is imported separately, and a broken one is not an error here."""
    from compatkit.plugins import listing

    found = sorted([*listing(), *_built_in()], key=lambda one: one.kind)
    named = [one for one in found if options.word in (one.name, f"{one.kind}.{one.name}")]
    if options.word is not None:
        found = named or [one for one in found if options.word.casefold() in _words(one)]
    if options.json:
        emit([one.to_json() for one in found])
    elif named:
        for place, one in enumerate(named):
            _print_plugin(one, first=place == 0)
    else:
        _print_kinds(found)
    if options.trace and not options.json:
        for one in found:
            if one.traceback:
                click.echo(f"\n{clean(one.traceback)}")
    if options.word is not None and not found:
        if not options.json:
            paragraph(
                f"nothing has {options.word!r} in its name or description; `compatkit plugins` lists all."
            )
        context.exit(1)


def _words(one: Listed) -> str:
    return " ".join((f"{one.kind}.{one.name}", one.summary, *one.models)).casefold()


def _built_in() -> Iterator[Listed]:
    """Yield the builders and data sets that are not plugins."""
    from compatkit import __version__
    from compatkit.adapters.builders import BUILT_IN
    from compatkit.data.loading import known
    from compatkit.plugins import Listed

    for name in sorted(BUILT_IN):
        yield Listed("builders", name, "active", "compatkit", __version__, summary=f"The networks of {name}.")
    for name, summary in known().items():
        yield Listed("data_sets", name, "active", "compatkit", __version__, summary=summary)


def _print_kinds(found: list[Listed]) -> None:
    for place, kind in enumerate(dict.fromkeys(one.kind for one in found)):
        click.echo(f"{'' if place == 0 else chr(10)}{click.style(clean(kind), bold=True)}")
        lines = [one for one in found if one.kind == kind]
        status = max(0 if one.status == "active" else len(one.status) for one in lines)
        taken = max(len(one.name) for one in lines) + status + GAPS
        known = sys.stdout.isatty() or "COLUMNS" in os.environ  # pipes and files have no width
        left = width() - taken if known else sys.maxsize
        columns([("name", "", "what it does"), *(_line(one, left) for one in lines)])


def _line(one: Listed, left: int) -> tuple[str, str, str]:
    """Return name, status if unusable, and as much of the summary as fits into ``left`` characters."""
    usable = one.status == "active"
    text = shorten(one.summary if usable else one.message, left, placeholder=" ...")
    return one.name, "" if usable else one.status, text


def _print_plugin(one: Listed, *, first: bool) -> None:
    color = "green" if one.status == "active" else "red"
    key, owner = clean(f"{one.kind}.{one.name}"), clean(f"{one.distribution or '?'} {one.version or '?'}")
    click.echo(
        f"{'' if first else chr(10)}{click.style(key, bold=True)}  {click.style(one.status, fg=color)}  {owner}"
    )
    facts = {
        "does": one.summary,
        "models": ", ".join(one.models),
        "hooks": ", ".join(hook.removeprefix("compatkit_") for hook in one.hooks),
        "settings": "; ".join(map(str, one.settings)),
        "order": f"{one.order} of the {one.kind}" if one.order and one.status == "active" else "",
        "source": one.source or "",
        "problem": one.message,
        "notes": " ".join(one.notes),
    }
    for label, text in facts.items():
        if text:
            click.echo(fold(label, text, indent=2, size=8))
