"""Write a matrix as JSON and read it back, losslessly and strictly."""

from __future__ import annotations

import json
import math
import typing
from collections import Counter
from typing import Any, Literal

import attrs

from compatkit.contracts.evidence import Cell, Part
from compatkit.errors import CompatkitError, FormatError
from compatkit.foundation.codec import structure
from compatkit.reports.grid import CellGrid
from compatkit.reports.writing import json_text

GridType = typing.TypeVar("GridType", bound=CellGrid)
SCHEMA = 1
OPTIONAL_FIELDS = ("ladder", "metrics")
"""Fields of a cell that older documents do not have; written only if not empty."""


@attrs.frozen
class Document:
    """JSON document of a matrix.

    Attributes:
        schema: Version of the format.
        kind: Kind of document.
        settings: Settings of the matrix, as JSON values.
        extractors: Rows.
        heads: Columns.
        cells: Cells in any order.
    """

    schema: int = SCHEMA
    kind: Literal["compatibility-matrix"] = attrs.field(kw_only=True)
    settings: dict[str, Any] = attrs.field(kw_only=True)
    extractors: tuple[Part, ...] = attrs.field(kw_only=True)
    heads: tuple[Part, ...] = attrs.field(kw_only=True)
    cells: tuple[Cell, ...] = attrs.field(kw_only=True)


def render(matrix: CellGrid, *, indent: int | None = 2) -> str:
    """Return the matrix as JSON with full precision.

    Args:
        matrix: Matrix to write.
        indent: Spaces per level; None for one line.
    """
    value = attrs.asdict(
        Document(
            kind="compatibility-matrix",
            settings=dict(matrix.settings),
            extractors=matrix.extractors,
            heads=matrix.heads,
            cells=matrix.cells,
        )
    )
    value["cells"] = [
        {name: item for name, item in cell.items() if name not in OPTIONAL_FIELDS or item}
        for cell in value["cells"]
    ]
    return json_text(value, indent)


def parse(text: str | bytes, kind: type[GridType]) -> GridType:
    """Read the output of ``render``.

    Args:
        text: JSON of a matrix.
        kind: Class of the result.

    Raises:
        FormatError: Not JSON, an unknown or missing field, a value of the wrong type or out of range, or a cell of an
            unknown extractor or head; the message gives the path.
    """
    document = structure(Document, _load(text), "matrix")
    try:
        return kind(document.extractors, document.heads, document.cells, document.settings)
    except CompatkitError as error:
        raise FormatError(f"the JSON is not a valid matrix: {error}") from error


def _load(text: str | bytes) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            duplicates = sorted(name for name, count in counts.items() if count > 1)
            raise FormatError(f"the JSON of a matrix has a field twice: {', '.join(map(repr, duplicates))}")
        return value

    def finite(number: str) -> float:
        if not math.isfinite(value := float(number)):
            raise FormatError(
                f"the JSON of a matrix has the number {number:.60}; every number must be finite"
            )
        return value

    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(text, object_pairs_hook=unique, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the matrix is not valid JSON: {error}") from error
