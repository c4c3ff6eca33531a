"""A matrix as CSV: one line a pair, every figure in full precision, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

from compatkit.evaluation.cells import Cell, Figure, Part
from compatkit.reports.wording import rung_of, verdict

if TYPE_CHECKING:
    from compatkit.reports.matrix import Matrix

_FIGURE = ("accuracy", "correct", "count", "low", "high")
COLUMNS = (
    "extractor",
    "extractor_digest",
    "head",
    "head_digest",
    "own",
    "state",
    "wiring",
    "promise",
    "grade",
    "verdict",
    *_FIGURE,
    *(f"unrestricted_{name}" for name in _FIGURE),
    "chance",
    *(f"bound_{name}" for name in _FIGURE),
    "recovered",
    "difference_low",
    "difference_high",
    "common",
    "reason",
    "findings",
    "settings",
    "through",
)


def render(matrix: Matrix) -> str:
    """Return a header line and one line for each pair of the grid, row by row.

    ``common``, ``findings`` and ``settings`` are JSON; ``through`` is the rung of a bridge, empty without one. Text
    that a spreadsheet would run as a formula (it starts with ``=``, ``+``, ``-``, ``@``, tab or return) gets an
    apostrophe in front.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for part in matrix.extractors:
        for head in matrix.heads:
            writer.writerow(_line(part, head, matrix.find(part.reference, head.reference)))
    return out.getvalue()


def _line(part: Part, head: Part, cell: Cell | None) -> list[str]:
    names = [_text(part.reference), part.digest, _text(head.reference), head.digest]
    if cell is None:
        return [*names, "", "missing", "", "", "", verdict(None).word, *[""] * (len(COLUMNS) - 10)]
    return [
        *names,
        "yes" if cell.own else "no",
        cell.state,
        cell.wiring,
        cell.promise,
        cell.grade,
        verdict(cell).word,
        *_figure(cell.restricted),
        *_figure(cell.unrestricted),
        _number(cell.chance),
        *_figure(cell.bound),
        _number(cell.recovered),
        *(map(_number, cell.difference or (None, None))),
        json.dumps(cell.common, ensure_ascii=False),
        _text(cell.reason),
        json.dumps(cell.findings, ensure_ascii=False),
        json.dumps(cell.settings, ensure_ascii=False),
        _text(rung_of(cell)),
    ]


def _figure(figure: Figure | None) -> list[str]:
    return [_number(getattr(figure, name, None)) for name in _FIGURE]


def _number(value: float | int | None) -> str:
    return "" if value is None else repr(value)


def _text(value: str) -> str:
    return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value
