"""A grid of cells by extractor and head, validated on construction: the basis of all reports of a matrix."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import attrs

from compatkit.contracts.evidence import Cell, Figure, Part
from compatkit.errors import UsageError
from compatkit.foundation.display import Shown

LEAST, MOST = -1e-9, 1 + 1e-9  # tolerance for rounding of Wilson bounds that should be exactly 0 or 1


def _plain(value: Any) -> Any:
    """Return settings in their JSON form, so that a matrix read back equals the one written."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"a setting of a matrix must be a JSON value: {error}", subject=value) from error


@attrs.frozen(repr=False)
class CellGrid(Shown):
    """Cells with extractors as rows and heads as columns.

    Attributes:
        extractors: Rows in display order.
        heads: Columns in display order.
        cells: At most one per pair, in any order; a pair without one counts as not measured.
        settings: Settings common to all cells (JSON values), shown in the title.

    Raises:
        UsageError: A reference is duplicated, a cell belongs to no row or column or is duplicated, a figure is out of
            range, or a setting is not a JSON value.
    """

    extractors: tuple[Part, ...] = attrs.field(converter=tuple)
    heads: tuple[Part, ...] = attrs.field(converter=tuple)
    cells: tuple[Cell, ...] = attrs.field(converter=tuple)
    settings: Mapping[str, Any] = attrs.field(factory=dict, converter=_plain)
    _places: dict[tuple[str, str], Cell] = attrs.field(init=False, eq=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        rows, columns = _references(self.extractors, "extractor"), _references(self.heads, "head")
        for cell in self.cells:
            for name, known, what in ((cell.extractor, rows, "extractor"), (cell.head, columns, "head")):
                if name not in known:
                    raise UsageError(
                        f"a cell names the {what} {name!r}, which is not in the matrix", subject=cell
                    )
            if (cell.extractor, cell.head) in self._places:
                raise UsageError(f"two cells for the pair {cell.extractor!r}, {cell.head!r}", subject=cell)
            _check_figures(cell)
            self._places[cell.extractor, cell.head] = cell

    def find(self, extractor: str, head: str) -> Cell | None:
        """Return the cell of two exact references, or None if the pair was not measured.

        Args:
            extractor: Its pinned reference.
            head: Its pinned reference.
        """
        return self._places.get((extractor, head))

    def __len__(self) -> int:
        return sum(cell.state != "left-out" for cell in self.cells)

    def __iter__(self) -> Iterator[Cell]:
        for extractor, head in product(self.extractors, self.heads):
            cell = self.find(extractor.reference, head.reference)
            if cell is not None and cell.state != "left-out":
                yield cell


def _references(parts: tuple[Part, ...], what: str) -> set[str]:
    seen: set[str] = set()
    for part in parts:
        if part.reference in seen:
            raise UsageError(f"the {what} {part.reference!r} is in the matrix twice", subject=part)
        seen.add(part.reference)
    return seen


def _check_figures(cell: Cell) -> None:
    figures: dict[str, Figure | None] = {
        name: getattr(cell, name) for name in ("restricted", "unrestricted", "bound")
    }
    for rung in cell.ladder:
        figures |= {f"{rung.name} agreement": rung.agreement, f"{rung.name} accuracy": rung.accuracy}
    for name, figure in figures.items():
        if figure is None:
            continue
        shares = (figure.accuracy, figure.low, figure.high)
        if not all(LEAST <= each <= MOST for each in shares) or not 0 <= figure.correct <= figure.count:
            raise UsageError(
                f"the figure {name!r} of the pair {cell.extractor!r}, {cell.head!r} must hold shares in "
                f"[0, 1] and no more right answers than images, got {figure}",
                subject=cell,
            )
    others = (cell.chance, cell.recovered, *(cell.difference or ()))
    if not all(map(math.isfinite, filter(None, others))):
        raise UsageError(
            f"chance, recovered and difference of the pair {cell.extractor!r}, {cell.head!r} must be finite, "
            f"got {others}",
            subject=cell,
        )
