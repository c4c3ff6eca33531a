"""Convert a matrix to rows of plain values, one per pair: for CSV, data frames and arrays."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

from compatkit.contracts.evidence import Cell, Figure, Part
from compatkit.errors import UnknownName, suggest
from compatkit.reports.wording import chosen_rung, verdict

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    from compatkit.reports.grid import CellGrid

FIGURE_FIELDS = ("accuracy", "correct", "count", "low", "high")
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
SETTING_PREFIX = "setting_"
"""Prefix of columns with settings."""
METRIC_PREFIX = "metric_"
"""Prefix of columns with figures of metric plugins."""


def row(extractor: Part, head: Part, cell: Cell | None) -> dict[str, Any]:
    """Return the values of a pair by column: texts, booleans and numbers; None if missing.

    Args:
        extractor: Row of the matrix.
        head: Column of the matrix.
        cell: Cell of the pair, or None.
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
    return {f"{front}{name}": getattr(figure, name, None) for name in FIGURE_FIELDS}


NUMBER_COLUMNS = tuple(row(Part("", "", "", ""), Part("", "", "", ""), None))
TEXT_COLUMNS = ("common", "reason", "findings", "settings", "through")
COLUMNS = (*NUMBER_COLUMNS, *TEXT_COLUMNS)


def metric_columns(matrix: CellGrid) -> tuple[str, ...]:
    """Return the columns with figures of metric plugins; one that no cell has a value of is there, too."""
    return tuple(dict.fromkeys(name for cell in matrix for name in _metrics(cell)))


def _metrics(cell: Cell | None) -> dict[str, float | None]:
    return {} if cell is None else {METRIC_PREFIX + figure.name: figure.value for figure in cell.metrics}


def csv_rows(matrix: CellGrid) -> list[dict[str, Any]]:
    """Return the rows of CSV, one per pair of the grid, row by row, by ``COLUMNS`` and ``metric_columns``.

    ``common``, ``findings`` and ``settings`` are JSON; ``through`` is the rung of a bridge, or empty.

    Args:
        matrix: Matrix to convert.
    """
    return [
        row(part, head, cell) | _texts(cell) | _metrics(cell)
        for part, head in product(matrix.extractors, matrix.heads)
        for cell in [matrix.find(part.reference, head.reference)]
    ]


def _texts(cell: Cell | None) -> dict[str, str]:
    if cell is None:
        return {}
    common, findings, settings = (
        json.dumps(value, ensure_ascii=False) for value in (cell.common, cell.findings, cell.settings)
    )
    return dict(zip(TEXT_COLUMNS, (common, cell.reason, findings, settings, chosen_rung(cell)), strict=True))


def rows(matrix: CellGrid) -> list[dict[str, Any]]:
    """Return the rows of a data frame, one per cell; see ``Matrix.to_dataframe``.

    Args:
        matrix: Matrix to convert.
    """
    parts = {part.reference: part for part in (*matrix.extractors, *matrix.heads)}
    return [
        {
            **row(parts[cell.extractor], parts[cell.head], cell),
            "common_classes": len(cell.common),
            "reason": cell.reason,
            "through": chosen_rung(cell),
            **_metrics(cell),
            **{SETTING_PREFIX + name: value for name, value in cell.settings.items()},
        }
        for cell in matrix
    ]


FRAME_COLUMNS = (*NUMBER_COLUMNS, "common_classes", "reason", "through")
"""Columns of a data frame before the settings."""
PANDAS_TYPES = {"own": "boolean"} | dict.fromkeys(COUNTED, "Int64") | dict.fromkeys(SHARES, "float64")
"""Pandas types of columns without values."""


def array(matrix: CellGrid, field: str) -> NDArray[float64]:
    """Return one number per pair; see ``Matrix.to_numpy``.

    Args:
        matrix: Matrix to convert.
        field: Name of a numeric column.

    Returns:
        Array ``(extractors, heads)``, float64, NaN if missing.

    Raises:
        UnknownName: There is no such column.
    """
    import numpy as np

    columns = (*SHARES, *COUNTED, *metric_columns(matrix))
    if field not in columns:
        hint = suggest(field, columns)
        raise UnknownName(
            f"{field!r:.80} is not a numeric column; expected one of {', '.join(columns)}.{hint}",
            subject=field,
        )
    cells = [
        [matrix.find(part.reference, head.reference) for head in matrix.heads] for part in matrix.extractors
    ]
    values = [
        [
            (row(part, head, cell) | _metrics(cell)).get(field)
            for head, cell in zip(matrix.heads, some, strict=True)
        ]
        for part, some in zip(matrix.extractors, cells, strict=True)
    ]
    return np.array(values, dtype=np.float64).reshape(len(matrix.extractors), len(matrix.heads))
