"""``compatkit plugins``: list plugins, with built-in builders, and write a package of new ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from textwrap import shorten

import click

from compatkit.cli.options import Options, argument, command, group, option
from compatkit.cli.output import clean, columns, emit, paragraph, rows, width
from compatkit.plugins.listed import Listed, listing

GAPS = 4
"""Spaces between the three columns."""


plugins_command = group(
    "plugins",
    """List plugins, which is the default, or write a package of new ones.

    Examples:
        # all that is installed, by kind
        compatkit plugins
        # settings, hooks and source of one
        compatkit plugins dcc
        # a package of your own, with tests
        compatkit plugins new lab-methods
    """,
    default="list",
)


class PluginsOptions(Options):
    """Arguments and options of ``plugins list``."""

    word: str | None = argument(metavar="[WORD|NAME]")
    check: bool = option("Import each plugin listed, and say which fail.")
    trace: bool = option("Show the traceback of each plugin that failed; implies --check.")


@command("list", PluginsOptions, registry=False, group=plugins_command)
def list_(options: PluginsOptions) -> int | None:
    """List what a run can name, by kind, one line each.

    These are regularizers, metrics, builders of networks, data sets, exporters, loggers, remotes, launchers,
    studies, ... With WORD, list those with it in name or description; with the NAME of one, import it and show its
    details: status, settings, hooks, order, source. The list is read from the metadata of packages and imports none
    of them; --check does, and exits with 1 if one fails or clashes.

    Examples:
        # import all of them, and say which fail
        compatkit plugins list --check
        # settings, hooks and source of one
        compatkit plugins list dcc
        # a word that is also a command
        compatkit plugins list new
    """
    check = options.check or options.trace
    named = [] if options.word is None else _sorted(options.word, check=True)
    listed = named or [
        plugin for plugin in _sorted(check=check) if (options.word or "").casefold() in _words(plugin)
    ]
    if options.json:
        emit([plugin.to_json() for plugin in listed])
    elif named:
        for index, plugin in enumerate(named):
            _print_plugin(plugin, first=index == 0)
    else:
        _print_kinds(listed)
    if options.trace and not options.json:
        for plugin in listed:
            if plugin.traceback:
                click.echo(f"\n{clean(plugin.traceback)}")
    if options.word is not None and not listed:
        if not options.json:
            paragraph(
                f"nothing has {options.word!r} in its name or description; `compatkit plugins` lists all."
            )
        return 1
    if not options.json and any(plugin.status == "installed" for plugin in listed):
        click.echo()
        paragraph(
            "Read from the metadata of packages; none was imported, so a broken one looks like the others. "
            "`compatkit plugins --check` imports each and says which fail."
        )
    return int(check and any(plugin.status in ("failed", "clash") for plugin in listed))


class NewOptions(Options):
    """Arguments and options of ``plugins new``."""

    name: str = argument()
    folder: Path | None = option("Folder to write; default: NAME, here.", "--out", metavar="DIR")
    regularizer: str = option("Name of the regularizer.", default="feature_norm")
    metric: str = option("Name of the metric.", default="confidence")


@command("new", NewOptions, registry=False, group=plugins_command)
def new(options: NewOptions) -> int | None:
    """Write the package NAME with a regularizer and a metric that work, their tests, pages and workflow.

    Once installed, it passes its own tests. Replace the two formulas by yours.

    Examples:
        # the package lab-methods in a folder of this name
        compatkit plugins new lab-methods
        # with names of your own
        compatkit plugins new lab-methods --regularizer cross_barlow --metric alignment
    """
    from compatkit.plugins.scaffold import new_package

    names = {"regularizer": options.regularizer, "metric": options.metric}
    files = new_package(options.name, options.folder, **names)
    folder = options.folder or Path(options.name)
    if options.json:
        return emit({"folder": str(folder), "files": [str(file) for file in files]})
    columns([(str(file),) for file in files])
    click.echo(f"\nInstall and test it:\n  cd {clean(str(folder))} && pip install -e '.[dev]' && pytest")


def _sorted(name: str | None = None, *, check: bool) -> list[Listed]:
    """Return lines by kind: plugins, and the builder that is no plugin."""
    from compatkit import __version__
    from compatkit.plugins.loading import BUILT_IN_BUILDER as TIMM

    summary = f"The networks of {TIMM}."
    built_in = Listed(
        "builders", TIMM, "active", "compatkit", __version__, "compatkit.adapters.builders", summary=summary
    )
    mine = [built_in] if name in (None, TIMM, built_in.key) else []
    return sorted([*listing(name, check=check), *mine], key=lambda plugin: plugin.kind)


def _words(plugin: Listed) -> str:
    return " ".join((plugin.key, plugin.summary, *plugin.models)).casefold()


def _print_kinds(plugins: list[Listed]) -> None:
    for index, kind in enumerate(dict.fromkeys(plugin.kind for plugin in plugins)):
        click.echo(f"{'' if index == 0 else chr(10)}{click.style(clean(kind), bold=True)}")
        lines = [plugin for plugin in plugins if plugin.kind == kind]
        status = max(0 if _is_usable(plugin) else len(plugin.status) for plugin in lines)
        taken = max(len(plugin.name) for plugin in lines) + status + GAPS
        known = sys.stdout.isatty() or "COLUMNS" in os.environ  # pipes and files have no width
        left = width() - taken if known else sys.maxsize
        columns([("name", "", "what it does"), *(_line(plugin, left) for plugin in lines)])


def _line(plugin: Listed, left: int) -> tuple[str, str, str]:
    """Return name, status if unusable, and as much of the summary as fits into ``left`` characters."""
    usable = _is_usable(plugin)
    text = shorten(plugin.summary if usable else plugin.message, left, placeholder=" ...")
    return plugin.name, "" if usable else plugin.status, text


def _is_usable(plugin: Listed) -> bool:
    return plugin.status in ("installed", "active")


def _print_plugin(plugin: Listed, *, first: bool) -> None:
    color = "green" if plugin.status == "active" else "red"
    key = click.style(clean(plugin.key), bold=True)
    owner = clean(f"{plugin.distribution or '?'} {plugin.version or '?'}")
    click.echo(f"{'' if first else chr(10)}{key}  {click.style(plugin.status, fg=color)}  {owner}")
    details = {
        "does": plugin.summary,
        "models": ", ".join(plugin.models),
        "hooks": ", ".join(hook.removeprefix("compatkit_") for hook in plugin.hooks),
        "settings": "; ".join(map(str, plugin.settings)),
        "order": f"{plugin.order} of the {plugin.kind}" if plugin.order and plugin.status == "active" else "",
        "source": plugin.source or "",
        "problem": plugin.message,
        "notes": " ".join(plugin.notes),
    }
    rows(details)
