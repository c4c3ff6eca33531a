"""A matrix as rows of plain values, one per pair: CSV for spreadsheets, data frames, arrays."""

from __future__ import annotations

import csv
import io
import json
from itertools import product
from typing import TYPE_CHECKING, Any

from compatkit.contracts.evidence import Cell, Figure, Part
from compatkit.errors import MissingDependency, UnknownName, suggest
from compatkit.reports.wording import rung_of, verdict

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray
    from pandas import DataFrame  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]

    from compatkit.reports.grid import CellGrid

FIGURE = ("accuracy", "correct", "count", "low", "high")
COUNTED = tuple(
    f"{front}{name}" for front in ("", "unrestricted_", "bound_") for name in ("correct", "count")
)
SHARES = (
    *(f"{front}{name}" for front in ("", "unrestricted_", "bound_") for name in ("accuracy", "low", "high")),
    "chance",
    "recovered",
    "difference_low",
    "difference_high",
)
SETTING = "setting_"
"""Prefix of columns with settings."""


def row(extractor: Part, head: Part, cell: Cell | None) -> dict[str, Any]:
    """Return the values of a pair by column: texts, booleans and numbers; None if missing.

    Args:
        extractor: Row of the matrix.
        head: Column of the matrix.
        cell: The result; None if it was not measured.
    """
    low, high = (cell.difference if cell is not None else None) or (None, None)
    return {
        "extractor": extractor.reference,
        "extractor_digest": extractor.digest,
        "head": head.reference,
        "head_digest": head.digest,
        "own": None if cell is None else cell.own,
        "state": "missing" if cell is None else cell.state,
        "wiring": cell and cell.wiring,
        "promise": cell and cell.promise,
        "grade": cell and cell.grade,
        "verdict": verdict(cell).word,
        **_figure("", cell and cell.restricted),
        **_figure("unrestricted_", cell and cell.unrestricted),
        "chance": cell and cell.chance,
        **_figure("bound_", cell and cell.bound),
        "recovered": cell and cell.recovered,
        "difference_low": low,
        "difference_high": high,
    }


def _figure(front: str, figure: Figure | None) -> dict[str, float | int | None]:
    return {f"{front}{name}": getattr(figure, name, None) for name in FIGURE}


NAMES = tuple(row(Part("", "", "", ""), Part("", "", "", ""), None))
TEXTS = ("common", "reason", "findings", "settings", "through")
COLUMNS = (*NAMES, *TEXTS)


def csv_text(matrix: CellGrid) -> str:
    """Return the matrix as CSV: a header, then one line per pair of the grid, row by row.

    ``common``, ``findings`` and ``settings`` are JSON; ``through`` is the rung of a bridge, or empty. Text that a
    spreadsheet would run as a formula (starting with ``=``, ``+``, ``-``, ``@``, tab or return) is prefixed with an
    apostrophe.
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


def frame(matrix: CellGrid) -> DataFrame:
    """Return one row per cell; see ``Matrix.to_dataframe``.

    Raises:
        MissingDependency: pandas is not installed.
    """
    try:
        import pandas  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
    except ImportError as error:
        raise MissingDependency(
            "A data frame needs the library pandas, which is not installed. Run: pip install "
            f"'compatkit[pandas]'; or use to_csv(), which has the same columns. ({error})",
            subject="pandas",
        ) from error
    parts = {part.reference: part for part in (*matrix.extractors, *matrix.heads)}
    rows = [
        {
            **row(parts[cell.extractor], parts[cell.head], cell),
            "common_classes": len(cell.common),
            "reason": cell.reason,
            "through": rung_of(cell),
            **{SETTING + name: value for name, value in cell.settings.items()},
        }
        for cell in matrix
    ]
    columns = dict.fromkeys(
        [*NAMES, "common_classes", "reason", "through", *(name for one in rows for name in one)]
    )
    made = pandas.DataFrame(rows, columns=list(columns))
    kinds = {"own": "boolean"} | dict.fromkeys(COUNTED, "Int64") | dict.fromkeys(SHARES, "float64")
    return made.astype(kinds)


def array(matrix: CellGrid, field: str) -> NDArray[float64]:
    """Return one number per pair as float64 ``(extractors, heads)``; see ``Matrix.to_numpy``.

    Args:
        matrix: The cells.
        field: Name of a numeric column.

    Returns:
        NaN where a value is missing.

    Raises:
        UnknownName: There is no such column.
    """
    import numpy as np

    known = (*SHARES, *COUNTED)
    if field not in known:
        hint = suggest(field, known)
        raise UnknownName(
            f"{field!r:.80} is not one of the numbers of a cell, {', '.join(known)}.{hint}", subject=field
        )
    values = [
        [row(one, head, matrix.find(one.reference, head.reference))[field] for head in matrix.heads]
        for one in matrix.extractors
    ]
    return np.array(values, dtype=np.float64).reshape(len(matrix.extractors), len(matrix.heads))
