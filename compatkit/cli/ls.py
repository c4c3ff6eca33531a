"""``compatkit ls``: list components from the index, without opening unchanged files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, argument, command
from compatkit.cli.output import clean, emit
from compatkit.cli.roots import open_store
from compatkit.errors import IntegrityError, NotFound, near
from compatkit.foundation.display import network_and_cut, padded, width_of

if TYPE_CHECKING:
    from compatkit.registry.index.lookup import ListedName

HEADER = ("name", "version", "kind", "parameters", "network", "aliases")
PAGE = 1000
"""Names aligned with each other; longer lists are printed page by page."""


class LsOptions(Options):
    """Arguments and options of ``ls``."""

    pattern: str | None = argument()


@command(
    "ls", LsOptions, help="List components; PATTERN is a glob over whole names, such as 'digits/*.head'."
)
def ls_command(context: click.Context, options: LsOptions) -> None:
    """List components with versions, kinds and aliases, including damaged ones, which cause exit code 3."""
    store = open_store(context)
    every = store.index.listing(options.pattern)
    if options.pattern and not every:
        known = store.names()
        near_names = (
            f" or names like {', '.join(close)}" if (close := near(options.pattern, known, 3, 0.5)) else ""
        )
        raise NotFound(
            f"{options.pattern!r} matches none of {len(known):,} names; try a glob such as "
            f"'*{options.pattern.strip('*')}*'{near_names}, or `compatkit ls` for all of them.",
            subject=options.pattern,
        )
    damaged = [line for line in every if line.error]
    if options.json:
        emit([line.to_json() for line in every])
    else:
        sizes: list[int] = []
        for start in range(0, len(every), PAGE):
            sizes = _table(every[start : start + PAGE], sizes)
        if not every:
            click.echo(f"no components in {clean(str(store.root))} yet")
    for line in damaged:
        click.echo(
            f"{click.style('damaged', fg='red', bold=True)} {line.name}: {clean(line.error)}", err=True
        )
    context.exit(IntegrityError.exit_code if damaged else 0)


def _table(page: Sequence[ListedName], sizes: Sequence[int]) -> list[int]:
    """Print lines aligned with those printed before; columns that have been empty so far are omitted.

    Args:
        page: Lines to print.
        sizes: Widths of the columns above; empty for the first page, which gets the header.

    Returns:
        The widths, 0 for an omitted column.
    """
    lines = [[_plain(text) for text in _cells(line)] for line in page]
    widths = [max(map(width_of, column)) for column in zip(*lines, strict=True)]
    if not sizes:
        widths = [max(width, len(word)) if width else 0 for width, word in zip(widths, HEADER, strict=True)]
        click.echo(click.style(_aligned(HEADER, widths), dim=True))
    else:
        widths = [max(pair) for pair in zip(widths, sizes, strict=True)]
    click.echo("\n".join(_aligned(line, widths) for line in lines))
    return widths


def _plain(text: str) -> str:
    return text if text.isascii() and text.isprintable() else clean(text)  # fast path for long lists


def _aligned(texts: Sequence[str], widths: Sequence[int]) -> str:
    numbers = HEADER.index("parameters")
    parts = [
        padded(text, width, right=at == numbers)
        for at, (text, width) in enumerate(zip(texts, widths, strict=True))
        if width
    ]
    return "  ".join(parts).rstrip()


def _cells(line: ListedName) -> tuple[str, ...]:
    if line.error:
        return line.name, line.version, "damaged", "", "", ""
    return (
        line.name,
        line.version,
        line.kind.replace("_", " "),
        f"{line.parameters:,}",
        network_and_cut(line.model, line.cut),
        " ".join(f":{alias}={version}" for alias, version in line.aliases.items()),
    )
