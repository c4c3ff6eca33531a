"""A matrix as CSV: one line a pair, every figure in full precision, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
import json
from itertools import product
from typing import TYPE_CHECKING

from compatkit.contracts.evidence import Cell
from compatkit.reports.tidy import NAMES, row
from compatkit.reports.wording import rung_of

if TYPE_CHECKING:
    from compatkit.reports.matrix import Matrix

TEXTS = ("common", "reason", "findings", "settings", "through")
COLUMNS = (*NAMES, *TEXTS)


def render(matrix: Matrix) -> str:
    """Return a header line and one line for each pair of the grid, row by row.

    ``common``, ``findings`` and ``settings`` are JSON; ``through`` is the rung of a bridge, empty without one. Text
    that a spreadsheet would run as a formula (it starts with ``=``, ``+``, ``-``, ``@``, tab or return) gets an
    apostrophe in front.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for part, head in product(matrix.extractors, matrix.heads):
        cell = matrix.find(part.reference, head.reference)
        writer.writerow([*map(_written, row(part, head, cell).values()), *_texts(cell)])
    return out.getvalue()


def _texts(cell: Cell | None) -> list[str]:
    if cell is None:
        return [""] * len(TEXTS)
    common, findings, settings = (
        json.dumps(one, ensure_ascii=False) for one in (cell.common, cell.findings, cell.settings)
    )
    return [common, _written(cell.reason), findings, settings, _written(rung_of(cell))]


def _written(value: str | float | None) -> str:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: ""}[value]
    return repr(value)
