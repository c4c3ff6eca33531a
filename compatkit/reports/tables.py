"""Tables of a matrix, and of verdicts of many pairs: colored in a terminal, plain text elsewhere.

Words and marks carry the information; color only repeats it. The form depends on the width: full cells, else numbered
rows and columns with a key, in blocks if they do not fit side by side.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import attrs
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from compatkit.contracts.report import EQUAL_SHAPES, Word, display_severity
from compatkit.reports import wording

if TYPE_CHECKING:
    from compatkit.contracts.evidence import Cell
    from compatkit.contracts.report import Group, Outlines
    from compatkit.reports.grid import CellGrid

PLAIN_WIDTH = 100
PRINTED = 2500
"""Most pairs printed as a table."""
CELL_WIDTH = 20
"""Width of a figure with its interval, or of a mark with the longest word."""
SHORT_WIDTH, MARK_WIDTH = 9, 5
"""Width of a figure with its mark, and of a mark alone."""
NAME_WIDTH, LONGEST_NAME = 22, 32
"""Width of a line of a name that can be broken at slashes and dots, and of the column of names."""
REASONS = 8
"""Most reasons printed; the rest is counted."""
ASCII_HEAD = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
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
NOTE = (
    "Accuracy on the common classes{form}; recovered is (accuracy - chance) / (bound - chance). Incompatible, as in "
    "the paper: measured at chance."
)
FULL = " with its 95 % Wilson interval; beside the verdict the share recovered"
COMPACT = (
    ", in two digits, before the sign of the verdict; a wider terminal, to_csv and to_html show intervals"
)


@attrs.frozen
class Sized:
    """A rich renderable that adapts to the console's width and to ASCII-only consoles."""

    draw: Callable[[int, bool], Iterator[RenderableType]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what fits the console."""
        yield from self.draw(options.max_width, options.ascii_only)

    def text(self, *, ascii_only: bool) -> str:
        """Return the table without colors, at most 100 columns wide."""
        buffer = io.StringIO()
        console = Console(
            file=buffer, width=PLAIN_WIDTH, color_system=None, highlight=False, force_jupyter=False
        )
        for part in self.draw(PLAIN_WIDTH, ascii_only):
            console.print(part)
        return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def matrix_table(matrix: CellGrid) -> Sized:
    """Return the table of a matrix; with too many pairs, only the number of pairs per word."""
    return Sized(lambda width, ascii_only: _matrix(matrix, width, ascii_only))


def verdict_table(verdicts: Outlines, *, brief: bool = False) -> Sized:
    """Return the table of the verdicts of many pairs, with explanations and the distinct findings.

    Args:
        verdicts: Result of a check of many pairs.
        brief: Whether to show one sentence for each finding that decides, and only count the others.
    """
    return Sized(lambda width, ascii_only: _verdicts(verdicts, width, ascii_only, brief))


def _many(names: Sequence[str], what: str) -> str:
    return f"{len(names)} {what}{'s' * (len(names) != 1)}"


def _matrix(matrix: CellGrid, width: int, ascii_only: bool) -> Iterator[RenderableType]:
    rows = [part.reference for part in matrix.extractors]
    columns = [part.reference for part in matrix.heads]
    yield Text(f"Compatibility matrix, {_many(rows, 'extractor')} x {_many(columns, 'head')}", "bold")
    if matrix.settings:
        yield Text(wording.settings_line(matrix.settings), "dim")
    if len(rows) * len(columns) > PRINTED:
        counts = Counter(wording.verdict(cell).word for cell in matrix.cells).most_common()
        yield Text("\n" + "\n".join(f"  {word:<15}  {wording.many(count)}" for word, count in counts))
        return
    cells = [[matrix.find(row, column) for column in columns] for row in rows]
    full = _names_width(rows) + len(columns) * CELL_WIDTH <= width
    if full:
        yield _grid(rows, columns, lambda i, j: _figure(cells[i][j], ascii_only), ascii_only)
    else:
        marks = [
            f"{_mark(word, ascii_only) or 'no sign'} {word.word}"
            for word in wording.explained(chain.from_iterable(cells))
        ]
        yield from _numbered(
            rows, columns, lambda i, j: _short(cells[i][j], ascii_only), width, SHORT_WIDTH, ascii_only
        )
        yield Text()
        yield Text(_folded("", ", ".join(marks), width))
    yield from (Text(_folded("", line, width, "  ")) for line in _reasons(matrix))
    measured = any(cell.restricted for cell in matrix.cells)
    note = NOTE.format(form=FULL if full else COMPACT)
    yield Text(_folded("", note if measured else "No pair was measured.", width), "dim")


def _grid(
    rows: Sequence[str],
    columns: Sequence[str],
    cell: Callable[[int, int], Text],
    ascii_only: bool,
    numbers: range | None = None,
) -> Table:
    """Return a table of all pairs; with ``numbers``, of these columns only, with numbers instead of names."""
    table = Table(
        box=ASCII_HEAD if ascii_only else box.SIMPLE_HEAD, padding=(0, 1), show_lines=False, leading=0
    )
    table.add_column(Text("extractor \\ head", "dim"), overflow="fold")
    shown = range(len(columns)) if numbers is None else numbers
    for place in shown:
        name = _name(columns[place]) if numbers is None else Text(f"H{place + 1}")
        table.add_column(name, overflow="fold", no_wrap=numbers is not None)
    for row, reference in enumerate(rows):
        name = _name(reference) if numbers is None else Text(f"E{row + 1}")
        table.add_row(name, *(cell(row, place) for place in shown))
    return table


def _numbered(
    rows: Sequence[str],
    columns: Sequence[str],
    cell: Callable[[int, int], Text],
    width: int,
    size: int,
    ascii_only: bool,
) -> Iterator[RenderableType]:
    """Yield numbered tables of as many columns as fit, and the key to the numbers."""
    at_once = max(1, (width - MARK_WIDTH - 2) // size)
    for start in range(0, len(columns), at_once):
        numbers = range(start, min(start + at_once, len(columns)))
        table = _grid(rows, columns, cell, ascii_only, numbers)
        table.columns[0].header = ""
        yield table
    for letter, references in (("E", rows), ("H", columns)):
        for number, reference in enumerate(references, 1):
            front = f"{letter}{number}".ljust(len(f"E{len(rows)}")) + "  "
            yield Text(_folded(front, wording.visible(reference), width), "dim", overflow="fold")


def _names_width(references: Sequence[str]) -> int:
    return min(LONGEST_NAME, max(map(len, references), default=0))


def _name(reference: str) -> Text:
    name, at, version = wording.visible(reference).rpartition("@")
    return (
        Text.assemble((_broken(name), "bold"), "\n", (at + version, "dim")) if at else Text(version, "bold")
    )


def _broken(name: str) -> str:
    """Break a long name after slashes and dots."""
    lines = [""]
    for piece in re.findall(r"[^/.]*[/.]+|[^/.]+", name):
        if lines[-1] and len(lines[-1]) + len(piece) > NAME_WIDTH:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _mark(word: wording.VerdictWord, ascii_only: bool) -> str:
    return (word.sign if ascii_only else word.mark).strip()


def _figure(cell: Cell | None, ascii_only: bool) -> Text:
    """Return a full cell: accuracy and interval, and below them the verdict and the recovered share."""
    word = wording.verdict(cell)
    style, mark = STYLES[word.key], "" if ascii_only else f"{word.mark} "
    if cell is None or cell.restricted is None:
        return Text(f"{mark}{word.word}" if word.mark.strip() else "", style)
    own = " (own)" if cell.own and word.key != "own" else ""
    between = wording.interval(cell.restricted)
    lines = Text.assemble(
        (wording.share(cell.restricted.accuracy), "bold"),
        "  ",
        (between.replace("\N{EN DASH}", "-") if ascii_only else between, "dim"),
        "\n",
        (f"{mark}{word.word}{own}{wording.through(cell)}", style),
    )
    if cell.recovered is not None and not cell.own:
        lines.append(f" {wording.share(cell.recovered, 2)}", "dim")
    return lines


def _short(cell: Cell | None, ascii_only: bool) -> Text:
    word = wording.verdict(cell)
    mark = _mark(word, ascii_only)
    if cell is not None and cell.restricted is not None:
        own = _mark(wording.VERDICTS["own"], ascii_only) if cell.own and word.key != "own" else ""
        mark = f"{wording.brief(cell.restricted.accuracy)} {mark}{own}"
    return Text(mark, STYLES[word.key])


def _reasons(matrix: CellGrid) -> Iterator[str]:
    groups: dict[tuple[wording.VerdictWord, str], list[Cell]] = {}
    for cell in matrix.cells:
        if cell.reason and cell.state != "left-out":
            groups.setdefault((wording.verdict(cell), cell.reason), []).append(cell)
    for (word, reason), cells in list(groups.items())[:REASONS]:
        names = " with ".join(
            wording.clip(wording.visible(reference), 40, "...")
            for reference in (cells[0].extractor, cells[0].head)
        )
        yield f"{word.word} ({names if len(cells) == 1 else wording.many(len(cells))}): {wording.visible(reason)}"
    if len(groups) > REASONS:
        yield f"and {len(groups) - REASONS} more reasons"


def _verdicts(verdicts: Outlines, width: int, ascii_only: bool, brief: bool) -> Iterator[RenderableType]:
    rows, columns = verdicts.extractors, verdicts.heads
    words: list[list[Word]] = [[outline.answers.word for outline in row] for row in verdicts.outlines]

    def cell(row: int, column: int, *, short: bool = False) -> Text:
        word = wording.of_word(words[row][column])
        mark = _mark(word, ascii_only)
        return Text(mark if short else f"{mark} {word.word}", STYLES[word.key])

    if _names_width(rows) + len(columns) * (CELL_WIDTH - 2) <= width:
        yield _grid(rows, columns, cell, ascii_only)
    else:
        yield from _numbered(
            rows, columns, lambda i, j: cell(i, j, short=True), width, MARK_WIDTH, ascii_only
        )
        yield Text()
    counts = verdicts.counts()
    yield Text(_folded("", verdicts.summary(), width), "bold")
    for word in map(wording.of_word, counts):
        front = f"  {_mark(word, ascii_only)} {word.word:<12} "
        yield Text(_folded(front, word.meaning, width), STYLES[word.key])
    if "unproven" in counts:
        pairs = wording.many(counts["unproven"])
        text = f"{EQUAL_SHAPES} For {pairs} nothing else speaks: measure before you rely on them."
        yield Text(_folded("", text, width), "yellow")
    yield from (_brief_findings if brief else _findings)(verdicts.groups(), width)


def _brief_findings(groups: list[Group], width: int) -> Iterator[Text]:
    """Yield a line for each finding that decides, with an example of what it compares."""
    decisive = [group for group in groups if not wording.is_note(group.example)]
    if decisive:
        yield Text()
    for group in decisive:
        severity = display_severity(group.severity)
        text = f"{wording.many(group.pairs)}, such as {wording.visible(wording.in_brief(group.example))}"
        line = Text(_folded(f"  {severity:<9}  ", text, width))
        line.stylize(wording.SEVERITIES[group.severity] or "default", 0, len(severity) + 2)
        yield line


def _findings(groups: list[Group], width: int) -> Iterator[Text]:
    for group in groups:
        yield Text()
        yield Text.assemble(
            (display_severity(group.severity), wording.SEVERITIES[group.severity] or "default"),
            f"  {group.code} ({group.example.level}): {wording.many(group.pairs)}",
        )
        example = {"example" if group.pairs > 1 else "pair": f"{group.extractor} with {group.head}"}
        for label, text in (wording.in_full(group.example) | example).items():
            yield Text(_folded(f"  {label:<8}  ", wording.visible(text), width))


def _folded(front: str, text: str, width: int, indent: str | None = None) -> str:
    """Return wrapped text; continuation lines are aligned with the first, or start with ``indent``."""
    below = " " * len(front) if indent is None else indent
    lines = textwrap.wrap(text, width, initial_indent=front, subsequent_indent=below, break_on_hyphens=False)
    return "\n".join(lines) or front
