"""Grid of cells by extractor and head, validated on construction; base of ``Matrix``."""

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

# Tolerance for rounding of Wilson bounds that should be exactly 0 or 1.
MIN_SHARE, MAX_SHARE = -1e-9, 1 + 1e-9


def _json_values(value: Any) -> Any:
    """Return settings as JSON values, so that a matrix that was written and read is equal."""
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
        cells: At most one cell per pair, in any order; a pair without cell counts as not measured.
        settings: Settings common to all cells (JSON values), shown in the title.

    Raises:
        UsageError: A reference is duplicated, a cell belongs to no row or column or is duplicated, a value is out of
            range, or a setting is not a JSON value.
    """

    extractors: tuple[Part, ...] = attrs.field(converter=tuple)
    heads: tuple[Part, ...] = attrs.field(converter=tuple)
    cells: tuple[Cell, ...] = attrs.field(converter=tuple)
    settings: Mapping[str, Any] = attrs.field(factory=dict, converter=_json_values)
    _cell_by_pair: dict[tuple[str, str], Cell] = attrs.field(init=False, eq=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        rows, columns = _references(self.extractors, "extractor"), _references(self.heads, "head")
        for cell in self.cells:
            for name, known, kind in ((cell.extractor, rows, "extractor"), (cell.head, columns, "head")):
                if name not in known:
                    raise UsageError(
                        f"a cell names the {kind} {name!r}, which is not in the matrix", subject=cell
                    )
            if (cell.extractor, cell.head) in self._cell_by_pair:
                raise UsageError(f"two cells for the pair {cell.extractor!r}, {cell.head!r}", subject=cell)
            _check_ranges(cell)
            self._cell_by_pair[cell.extractor, cell.head] = cell

    def find(self, extractor: str, head: str) -> Cell | None:
        """Return the cell of two exact references, or None if the pair was not measured.

        Args:
            extractor: Pinned reference of the extractor.
            head: Pinned reference of the head.
        """
        return self._cell_by_pair.get((extractor, head))

    def __len__(self) -> int:
        return sum(cell.state != "left-out" for cell in self.cells)

    def __iter__(self) -> Iterator[Cell]:
        for extractor, head in product(self.extractors, self.heads):
            cell = self.find(extractor.reference, head.reference)
            if cell is not None and cell.state != "left-out":
                yield cell


def _references(parts: tuple[Part, ...], kind: str) -> set[str]:
    seen: set[str] = set()
    for part in parts:
        if part.reference in seen:
            raise UsageError(f"the {kind} {part.reference!r} is in the matrix twice", subject=part)
        seen.add(part.reference)
    return seen


def _check_ranges(cell: Cell) -> None:
    figures: dict[str, Figure | None] = {
        name: getattr(cell, name) for name in ("restricted", "unrestricted", "bound")
    }
    for rung in cell.ladder:
        figures |= {f"{rung.name} agreement": rung.agreement, f"{rung.name} accuracy": rung.accuracy}
    for name, figure in figures.items():
        if figure is None:
            continue
        shares = (figure.accuracy, figure.low, figure.high)
        if (
            not all(MIN_SHARE <= share <= MAX_SHARE for share in shares)
            or not 0 <= figure.correct <= figure.count
        ):
            raise UsageError(
                f"{name!r} of the pair {cell.extractor!r}, {cell.head!r} must have shares in [0, 1] and at most as "
                f"many correct examples as images, got {figure}",
                subject=cell,
            )
    others = (
        cell.chance,
        cell.recovered,
        *(cell.difference or ()),
        *(figure.value for figure in cell.metrics),
    )
    if not all(map(math.isfinite, filter(None, others))):
        raise UsageError(
            f"chance, recovered, difference and metrics of the pair {cell.extractor!r}, {cell.head!r} must be finite, "
            f"got {others}",
            subject=cell,
        )
    names = [figure.name for figure in cell.metrics]
    if len(set(names)) < len(names):
        raise UsageError(
            f"the pair {cell.extractor!r}, {cell.head!r} has two figures of one metric name: {', '.join(names)}",
            subject=cell,
        )
