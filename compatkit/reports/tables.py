"""Tables of a matrix, and of verdicts of many pairs: colored in a terminal, plain text elsewhere.

Words and marks carry the information; color only repeats it. The layout depends on the width: full cells, else numbered
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
    from compatkit.contracts.report import Group, PairSummaries
    from compatkit.reports.grid import CellGrid

PLAIN_WIDTH = 100
MAX_PRINTED_PAIRS = 2500
"""Maximal number of pairs printed as a table."""
CELL_WIDTH = 20
"""Width of an accuracy with its interval, or of a mark with the longest word."""
SHORT_WIDTH, MARK_WIDTH = 9, 5
"""Width of an accuracy with its mark, and of a mark alone."""
NAME_WIDTH, MAX_NAME_WIDTH = 22, 32
"""Width of a line of a name that can be broken at slashes and dots, and of the column of names."""
MAX_REASONS = 8
"""Maximal number of printed reasons; the others are counted."""
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
FULL = " with its 95 % Wilson interval; after the verdict the share recovered"
COMPACT = (
    ", in two digits, before the sign of the verdict; a wider terminal, to_csv and to_html show intervals"
)


@attrs.frozen
class AdaptiveTable:
    """Rich renderable that adapts to the console's width and to ASCII-only consoles.

    Attributes:
        draw: Function from width in characters and ``ascii_only`` to renderables.
    """

    draw: Callable[[int, bool], Iterator[RenderableType]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the renderables for the console."""
        yield from self.draw(options.max_width, options.ascii_only)

    def text(self, *, ascii_only: bool) -> str:
        """Return the table without colors, at most 100 characters wide.

        Args:
            ascii_only: Whether to use ASCII characters only.
        """
        buffer = io.StringIO()
        console = Console(
            file=buffer, width=PLAIN_WIDTH, color_system=None, highlight=False, force_jupyter=False
        )
        for part in self.draw(PLAIN_WIDTH, ascii_only):
            console.print(part)
        return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def matrix_table(matrix: CellGrid) -> AdaptiveTable:
    """Return the table of a matrix; for more than 2500 pairs, only the number of pairs per verdict.

    Args:
        matrix: Matrix to print.
    """
    return AdaptiveTable(lambda width, ascii_only: _matrix(matrix, width, ascii_only))


def verdict_table(verdicts: PairSummaries, *, brief: bool = False) -> AdaptiveTable:
    """Return the table of the verdicts of many pairs, with explanations and the distinct findings.

    Args:
        verdicts: Result of a check of many pairs.
        brief: Whether to print one sentence for each decisive finding and leave out the others.
    """
    return AdaptiveTable(lambda width, ascii_only: _verdicts(verdicts, width, ascii_only, brief))


def _counted(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}{'s' * (len(names) != 1)}"


def _matrix(matrix: CellGrid, width: int, ascii_only: bool) -> Iterator[RenderableType]:
    rows = [part.reference for part in matrix.extractors]
    columns = [part.reference for part in matrix.heads]
    yield Text(f"Compatibility matrix, {_counted(rows, 'extractor')} x {_counted(columns, 'head')}", "bold")
    if matrix.settings:
        yield Text(wording.settings_line(matrix.settings), "dim")
    if len(rows) * len(columns) > MAX_PRINTED_PAIRS:
        counts = Counter(wording.verdict(cell).word for cell in matrix.cells).most_common()
        yield Text("\n" + "\n".join(f"  {word:<15}  {wording.pair_count(count)}" for word, count in counts))
        return
    cells = [[matrix.find(row, column) for column in columns] for row in rows]
    full = _names_width(rows) + len(columns) * CELL_WIDTH <= width
    if full:
        yield _grid(rows, columns, lambda i, j: _full_cell(cells[i][j], ascii_only), ascii_only)
    else:
        marks = [
            f"{_mark(word, ascii_only) or 'no sign'} {word.word}"
            for word in wording.legend_of_cells(chain.from_iterable(cells))
        ]
        yield from _numbered(
            rows, columns, lambda i, j: _short_cell(cells[i][j], ascii_only), width, SHORT_WIDTH, ascii_only
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
    """Return a table of all pairs; with ``numbers``, only these columns, and numbers instead of names."""
    table = Table(
        box=ASCII_HEAD if ascii_only else box.SIMPLE_HEAD, padding=(0, 1), show_lines=False, leading=0
    )
    table.add_column(Text("extractor \\ head", "dim"), overflow="fold")
    indices = range(len(columns)) if numbers is None else numbers
    for column in indices:
        name = _name(columns[column]) if numbers is None else Text(f"H{column + 1}")
        table.add_column(name, overflow="fold", no_wrap=numbers is not None)
    for row, reference in enumerate(rows):
        name = _name(reference) if numbers is None else Text(f"E{row + 1}")
        table.add_row(name, *(cell(row, column) for column in indices))
    return table


def _numbered(
    rows: Sequence[str],
    columns: Sequence[str],
    cell: Callable[[int, int], Text],
    width: int,
    size: int,
    ascii_only: bool,
) -> Iterator[RenderableType]:
    """Yield numbered tables with as many columns as fit, and the key to the numbers."""
    block = max(1, (width - MARK_WIDTH - 2) // size)
    for start in range(0, len(columns), block):
        numbers = range(start, min(start + block, len(columns)))
        table = _grid(rows, columns, cell, ascii_only, numbers)
        table.columns[0].header = ""
        yield table
    for letter, references in (("E", rows), ("H", columns)):
        for number, reference in enumerate(references, 1):
            front = f"{letter}{number}".ljust(len(f"E{len(rows)}")) + "  "
            yield Text(_folded(front, wording.visible(reference), width), "dim", overflow="fold")


def _names_width(references: Sequence[str]) -> int:
    return min(MAX_NAME_WIDTH, max(map(len, references), default=0))


def _name(reference: str) -> Text:
    name, at, version = wording.visible(reference).rpartition("@")
    return (
        Text.assemble((_wrapped(name), "bold"), "\n", (at + version, "dim")) if at else Text(version, "bold")
    )


def _wrapped(name: str) -> str:
    """Break a long name after slashes and dots."""
    lines = [""]
    for piece in re.findall(r"[^/.]*[/.]+|[^/.]+", name):
        if lines[-1] and len(lines[-1]) + len(piece) > NAME_WIDTH:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _mark(word: wording.VerdictWord, ascii_only: bool) -> str:
    return (word.sign if ascii_only else word.mark).strip()


def _full_cell(cell: Cell | None, ascii_only: bool) -> Text:
    """Return accuracy and interval, and below them the verdict and the recovered share."""
    word = wording.verdict(cell)
    style, mark = STYLES[word.key], "" if ascii_only else f"{word.mark} "
    if cell is None or cell.restricted is None:
        return Text(f"{mark}{word.word}" if word.mark.strip() else "", style)
    own = " (own)" if cell.own and word.key != "own" else ""
    interval = wording.interval(cell.restricted)
    lines = Text.assemble(
        (wording.share(cell.restricted.accuracy), "bold"),
        "  ",
        (interval.replace("\N{EN DASH}", "-") if ascii_only else interval, "dim"),
        "\n",
        (f"{mark}{word.word}{own}{wording.bridge_suffix(cell)}", style),
    )
    if cell.recovered is not None and not cell.own:
        lines.append(f" {wording.share(cell.recovered, 2)}", "dim")
    return lines


def _short_cell(cell: Cell | None, ascii_only: bool) -> Text:
    word = wording.verdict(cell)
    mark = _mark(word, ascii_only)
    if cell is not None and cell.restricted is not None:
        own = _mark(wording.VERDICTS["own"], ascii_only) if cell.own and word.key != "own" else ""
        mark = f"{wording.short_share(cell.restricted.accuracy)} {mark}{own}"
    return Text(mark, STYLES[word.key])


def _reasons(matrix: CellGrid) -> Iterator[str]:
    groups: dict[tuple[wording.VerdictWord, str], list[Cell]] = {}
    for cell in matrix.cells:
        if cell.reason and cell.state != "left-out":
            groups.setdefault((wording.verdict(cell), cell.reason), []).append(cell)
    for (word, reason), cells in list(groups.items())[:MAX_REASONS]:
        names = " with ".join(
            wording.clip(wording.visible(reference), 40, "...")
            for reference in (cells[0].extractor, cells[0].head)
        )
        yield f"{word.word} ({names if len(cells) == 1 else wording.pair_count(len(cells))}): {wording.visible(reason)}"
    if len(groups) > MAX_REASONS:
        yield f"and {len(groups) - MAX_REASONS} more reasons"


def _verdicts(verdicts: PairSummaries, width: int, ascii_only: bool, brief: bool) -> Iterator[RenderableType]:
    rows, columns = verdicts.extractors, verdicts.heads
    words: list[list[Word]] = [[summary.report.word for summary in row] for row in verdicts.summaries]

    def cell(row: int, column: int, *, short: bool = False) -> Text:
        word = wording.verdict_of_word(words[row][column])
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
    for word in map(wording.verdict_of_word, counts):
        front = f"  {_mark(word, ascii_only)} {word.word:<12} "
        yield Text(_folded(front, word.meaning, width), STYLES[word.key])
    if "unproven" in counts:
        pairs = wording.pair_count(counts["unproven"])
        text = f"{EQUAL_SHAPES} For {pairs} there is no other evidence: measure before you rely on them."
        yield Text(_folded("", text, width), "yellow")
    yield from (_brief_findings if brief else _findings)(verdicts.groups(), width)


def _brief_findings(groups: list[Group], width: int) -> Iterator[Text]:
    """Yield a line for each decisive finding, with an example."""
    decisive = [group for group in groups if not wording.is_note(group.example)]
    if decisive:
        yield Text()
    for group in decisive:
        severity = display_severity(group.severity)
        text = f"{wording.pair_count(group.pairs)}, such as {wording.visible(wording.finding_sentence(group.example))}"
        line = Text(_folded(f"  {severity:<9}  ", text, width))
        line.stylize(wording.SEVERITIES[group.severity] or "default", 0, len(severity) + 2)
        yield line


def _findings(groups: list[Group], width: int) -> Iterator[Text]:
    for group in groups:
        yield Text()
        yield Text.assemble(
            (display_severity(group.severity), wording.SEVERITIES[group.severity] or "default"),
            f"  {group.code} ({group.example.level}): {wording.pair_count(group.pairs)}",
        )
        example = {"example" if group.pairs > 1 else "pair": f"{group.extractor} with {group.head}"}
        for label, text in (wording.finding_texts(group.example) | example).items():
            yield Text(_folded(f"  {label:<8}  ", wording.visible(text), width))


def _folded(front: str, text: str, width: int, indent: str | None = None) -> str:
    """Return wrapped text; continuation lines are aligned with the first, or start with ``indent``."""
    indent = " " * len(front) if indent is None else indent
    lines = textwrap.wrap(text, width, initial_indent=front, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines) or front
