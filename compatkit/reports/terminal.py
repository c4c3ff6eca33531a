"""A matrix as a coloured table for terminals; marks and words carry the verdict, colour only repeats it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from compatkit.contracts.evidence import Cell, Part
from compatkit.reports.plain import PRINTED, summary
from compatkit.reports.plain import render as plain
from compatkit.reports.wording import brief, interval, settings_line, share, through, verdict, visible

if TYPE_CHECKING:
    from compatkit.reports.grid import Grid

STYLES = {
    "own": "bold blue",
    "perfect": "bold green",
    "compatible": "green",
    "weak": "yellow",
    "undecided": "yellow",
    "promised": "cyan",
    "unproven": "yellow",
    "chance": "red",
    "stale": "dim",
    "ungraded": "default",
    "adapter": "magenta",
    "refused": "magenta",
    "disjoint": "dim",
    "missing": "dim",
    "left-out": "dim",
}
CELL_WIDTH = 18
SHORT_WIDTH = 7
NAME_WIDTH = 22
NOTE = "95 % intervals; beside the verdict: share recovered between chance and the bound"


@attrs.frozen
class Fitting:
    """Chooses between full, short and plain cells by the width of the console."""

    matrix: Grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table that fits."""
        heads, width = len(self.matrix.heads), options.max_width
        names = min(32, max((len(part.reference) for part in self.matrix.extractors), default=0))
        if len(self.matrix.extractors) * heads > PRINTED:
            yield Text(summary(self.matrix))
        elif options.ascii_only:  # The marks would not be encodable.
            yield Text(plain(self.matrix, width))
        elif names + heads * CELL_WIDTH <= width:
            yield _table(self.matrix, short=False)
        elif 5 + heads * SHORT_WIDTH <= width:
            yield Group(_table(self.matrix, short=True), _key(self.matrix))
        else:
            yield Text(plain(self.matrix, width))


def render(matrix: Grid) -> Fitting:
    """Return what a rich console prints."""
    return Fitting(matrix)


def _table(matrix: Grid, *, short: bool) -> Table:
    table = Table(
        title=Text("Compatibility matrix"),
        caption=Text("\n".join(filter(None, (settings_line(matrix.settings), "" if short else NOTE)))),
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_lines=not short,
        padding=(0, 1),
    )
    table.add_column(Text("extractor \\ head", style="dim"), overflow="fold")
    for number, head in enumerate(matrix.heads, 1):
        table.add_column(Text(f"H{number}") if short else _name(head), overflow="fold", no_wrap=short)
    for number, part in enumerate(matrix.extractors, 1):
        cells = (matrix.find(part.reference, head.reference) for head in matrix.heads)
        table.add_row(
            Text(f"E{number}") if short else _name(part), *(_cell(cell, short=short) for cell in cells)
        )
    return table


def _name(part: Part) -> Text:
    name, at, version = visible(part.reference).rpartition("@")
    return (
        Text.assemble((_wrapped(name), "bold"), "\n", (at + version, "dim")) if at else Text(version, "bold")
    )


def _wrapped(name: str) -> str:
    """Break a long name behind its slashes and dots, not within a word."""
    lines = [""]
    for piece in re.findall(r"[^/.]*[/.]+|[^/.]+", name):
        if lines[-1] and len(lines[-1]) + len(piece) > NAME_WIDTH:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _cell(cell: Cell | None, *, short: bool) -> Text:
    said = verdict(cell)
    style = STYLES[said.key]
    if cell is None or cell.restricted is None:
        return Text(said.mark if short or not said.mark.strip() else f"{said.mark} {said.word}", style)
    if short:
        return Text(f"{brief(cell.restricted.accuracy)} {said.mark}", style)
    own = " (own)" if cell.own and said.key != "own" else ""
    lines = Text.assemble(
        (share(cell.restricted.accuracy), "bold"),
        "  ",
        (interval(cell.restricted), "dim"),
        "\n",
        (f"{said.mark} {said.word}{own}{through(cell)}", style),
    )
    if cell.recovered is not None and not cell.own:
        lines.append(f" {share(cell.recovered, 2)}", "dim")
    return lines


def _key(matrix: Grid) -> Text:
    lines = [f"E{number}  {visible(part.reference)}" for number, part in enumerate(matrix.extractors, 1)]
    lines += [f"H{number}  {visible(part.reference)}" for number, part in enumerate(matrix.heads, 1)]
    return Text("\n".join(lines), "dim")
