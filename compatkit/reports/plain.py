"""A matrix as plain ASCII text (names aside), for logs and ``print``; at most 100 columns wide."""

from __future__ import annotations

import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from compatkit.contracts.display import aligned
from compatkit.contracts.evidence import Cell, Part
from compatkit.reports.wording import (
    Verdict,
    brief,
    clip,
    explained,
    many,
    settings_line,
    share,
    through,
    verdict,
    visible,
)

if TYPE_CHECKING:
    from compatkit.reports.grid import Grid

WIDTH = 100
PRINTED = 2500
"""Pairs up to which a matrix is printed as a table."""
GAP = "  "
COMPACT_CELL = 6
REASONS = 8
HARD = "\N{NO-BREAK SPACE}"


def render(matrix: Grid, width: int = WIDTH) -> str:
    """Return the table: with intervals where all columns fit ``width``, else numbered, in blocks."""
    lines = [_title(matrix)]
    if matrix.settings:
        lines += textwrap.wrap(settings_line(matrix.settings), width)
    lines.append("")
    full = _full(matrix)
    lines += full if all(_length(line) <= width for line in full) else _compact(matrix, width)
    for line in (*_reasons(matrix), *_notes(matrix)):
        lines += textwrap.wrap(line, width, subsequent_indent="  ")
    return "\n".join(line.rstrip() for line in lines)


def summary(matrix: Grid) -> str:
    """Return what a matrix holds, for one of too many pairs to print: how many pairs each word is said of."""
    said = Counter(verdict(cell).word for cell in matrix.cells).most_common()
    lines = [_title(matrix), *textwrap.wrap(settings_line(matrix.settings), WIDTH), ""]
    return "\n".join(lines + [f"  {line}" for line in aligned([(word, many(count)) for word, count in said])])


def _title(matrix: Grid) -> str:
    return f"Compatibility matrix, {len(matrix.extractors)} extractors x {len(matrix.heads)} heads"


def _full(matrix: Grid) -> list[str]:
    rows = [("", "extractor \\ head", ""), *map(_name, matrix.extractors)]
    columns = [[entry[i] for entry in rows for i in range(3)]]
    for head in matrix.heads:
        cells = [_cell(matrix.find(part.reference, head.reference)) for part in matrix.extractors]
        name, version, _ = _name(head)
        columns.append([text for entry in [("", name, version), *cells] for text in entry])
    # The header of the names sits on the lower line, beside the versions of the heads.
    columns[0][1], columns[0][2] = "", columns[0][1]
    widths = [max(map(_length, column)) for column in columns]
    lines = [
        (GAP + " ").join(_pad(column[i], size) for column, size in zip(columns, widths, strict=True))
        for i in range(1, len(columns[0]))
    ]
    lines.insert(2, "-" * (sum(widths) + (len(widths) - 1) * (len(GAP) + 1)))
    for place in range(len(matrix.extractors)):  # A blank line after each extractor.
        lines.insert(3 + 4 * place + 3, "")
    return lines


def _name(part: Part) -> tuple[str, str, str]:
    name, at, version = visible(part.reference).rpartition("@")
    return (name, at + version, "") if at else (version, "", "")


def _cell(cell: Cell | None) -> tuple[str, str, str]:
    said = verdict(cell)
    if cell is None or cell.restricted is None:
        return said.word if said.mark.strip() else "", "", ""
    word = f"own, {said.word}" if cell.own and said.key != "own" else said.word
    first = f"{share(cell.restricted.accuracy)} {word}{through(cell)}"
    last = ""
    if cell.recovered is not None and not cell.own:
        last = f"recovered {share(cell.recovered, 2)}"
    elif cell.chance is not None:
        last = f"chance {share(cell.chance)}"
    return first, f"{share(cell.restricted.low)}-{share(cell.restricted.high)}", last


def _compact(matrix: Grid, width: int) -> list[str]:
    label = len(f"E{len(matrix.extractors)}")
    at_once = max(1, (width - label) // COMPACT_CELL)
    lines: list[str] = []
    for start in range(0, len(matrix.heads), at_once):
        heads = range(start, min(start + at_once, len(matrix.heads)))
        lines.append(" " * label + "".join(f"H{head + 1}".rjust(COMPACT_CELL - 1) + " " for head in heads))
        for row, part in enumerate(matrix.extractors):
            cells = (matrix.find(part.reference, matrix.heads[head].reference) for head in heads)
            lines.append(
                f"E{row + 1}".ljust(label) + "".join(_short(cell).rjust(COMPACT_CELL) for cell in cells)
            )
        lines.append("")
    cells = (matrix.find(row.reference, head.reference) for row in matrix.extractors for head in matrix.heads)
    signs = [f"{one.sign.strip() or 'no sign'} {one.word}" for one in explained(cells)]
    # Hard spaces hold a sign and its words together while the line is wrapped.
    legend = textwrap.wrap("Signs: " + ", ".join(sign.replace(" ", HARD) for sign in signs), width)
    lines += [*(line.replace(HARD, " ") for line in legend), ""]
    for letter, parts in (("E", matrix.extractors), ("H", matrix.heads)):
        for number, part in enumerate(parts, 1):
            first = f"{letter}{number}".ljust(label + 1)
            lines += textwrap.wrap(first + visible(part.reference), width, subsequent_indent=" " * len(first))
        lines.append("")
    return lines


def _short(cell: Cell | None) -> str:
    said = verdict(cell)
    if cell is None or cell.restricted is None:
        return said.sign
    own = "=" if cell.own and said.key != "own" else ""
    return own + brief(cell.restricted.accuracy) + said.sign


def _reasons(matrix: Grid) -> Iterator[str]:
    groups: dict[tuple[Verdict, str], list[Cell]] = {}
    for cell in matrix.cells:
        if cell.reason and cell.state != "left-out":
            groups.setdefault((verdict(cell), cell.reason), []).append(cell)
    for (said, reason), cells in list(groups.items())[:REASONS]:
        names = (
            f"{clip(visible(cells[0].extractor), 40, '...')} with {clip(visible(cells[0].head), 40, '...')}"
        )
        pairs = names if len(cells) == 1 else f"{len(cells)} pairs"
        yield f"{said.word} ({pairs}): {visible(reason)}"
    if len(groups) > REASONS:
        yield f"and {len(groups) - REASONS} more reasons"


def _notes(matrix: Grid) -> Iterator[str]:
    if not any(cell.restricted for cell in matrix.cells):
        yield "No pair was measured."
        return
    yield (
        "Accuracy on the common classes with its 95 % Wilson interval. recovered = (accuracy - chance) / "
        "(bound - chance). Incompatible, as in the paper: measured at chance."
    )


def _length(text: str) -> int:
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _length(text))
