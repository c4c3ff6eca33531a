"""The compatibility matrix as a value: extractors are rows, heads are columns, cells hold the figures."""

from __future__ import annotations

import difflib
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import UnknownName, UsageError
from compatkit.evaluation.cells import Cell, Figure, Part, Rung
from compatkit.reports.wording import rung_of
from compatkit.reports.writing import kept, write

if TYPE_CHECKING:
    from rich.console import RenderableType

LEAST, MOST = -1e-9, 1 + 1e-9  # Rounding of a Wilson end that should be exactly 0 or 1.


def _plain(value: Any) -> Any:
    """Return a setting as JSON keeps it, so that a matrix read back equals the one written."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if (
        value is None
        or isinstance(value, str | bool | int)
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    raise UsageError(
        f"a setting of a matrix must be a JSON value, got {type(value).__name__} {value!r}", subject=value
    )


@attrs.frozen(repr=False)
class Matrix:
    """Which extractor works with which head, and how well.

    Attributes:
        extractors: Rows, in the order shown.
        heads: Columns, in the order shown.
        cells: At most one a pair, any order; a pair without one reads as not measured.
        settings: What all cells have in common (JSON values), shown in the title.

    Raises:
        UsageError: A reference appears twice, a cell belongs to no row or column or is given twice, a
            figure lies outside its range, or a setting is no JSON value.
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

    def with_ladders(
        self,
        notes: Mapping[tuple[str, str], Sequence[str]],
        ladders: Mapping[tuple[str, str], Sequence[Rung]],
    ) -> Matrix:
        """Return the same with what bridges gave in some cells, by references; its settings say by which rungs.

        Args:
            notes: Further lines among the findings.
            ladders: What each rung gave.
        """
        pairs = [(one.extractor, one.head) for one in self.cells]
        cells = [
            attrs.evolve(
                one, findings=(*one.findings, *notes.get(pair, ())), ladder=tuple(ladders.get(pair, ()))
            )
            for one, pair in zip(self.cells, pairs, strict=True)
        ]
        rungs = Counter(filter(None, map(rung_of, cells)))
        told = [
            f"{name} in {count:,} cell{'' if count == 1 else 's'}" for name, count in sorted(rungs.items())
        ]
        # in front: where cells have no room for words, nothing else says that figures are through bridges
        bridge = {"bridge": told} if told else {}
        return attrs.evolve(self, cells=tuple(cells), settings={**bridge, **self.settings})

    def find(self, extractor: str, head: str) -> Cell | None:
        """Return the cell of two exact references, or None where the pair was not measured."""
        return self._places.get((extractor, head))

    def cell(self, extractor: str, head: str) -> Cell:
        """Return the cell of a pair.

        Args:
            extractor: ``name@version`` of a row, or only its name where one version is in the matrix.
            head: The same for a column.

        Raises:
            UnknownName: No such row or column, several versions of it, or no cell for the pair.
        """
        row, column = _pick(extractor, self.extractors, "extractor"), _pick(head, self.heads, "head")
        found = self.find(row, column)
        if found is None:
            raise UnknownName(
                f"the matrix has no cell for the extractor {row!r} and the head {column!r}: the pair was not "
                "measured; measure it and build the matrix anew",
                subject=(row, column),
            )
        return found

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained page and return its path.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.page import render

        return write(path, render(self))

    def to_png(self, path: str | os.PathLike[str]) -> Path:
        """Write a heat map and return its path.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.heatmap import render

        return write(path, render(self))

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the matrix and its evidence as Markdown tables, and write them where a path is given.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.markdown import render

        return kept(render(self), path)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return one line a pair with every figure, and write it where a path is given.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.spreadsheet import render

        return kept(render(self), path)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return everything as JSON that ``from_json`` reads back, and write it where a path is given.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.document import render

        return kept(render(self), path)

    @classmethod
    def from_json(cls, text: str | bytes) -> Matrix:
        """Read what ``to_json`` wrote; the result equals the matrix that was written.

        Raises:
            FormatError: The text is not such a document; the message names the place.
        """
        from compatkit.reports.document import parse

        return parse(text)

    def __str__(self) -> str:
        from compatkit.reports.plain import render

        return render(self)

    def __repr__(self) -> str:
        measured = sum(cell.restricted is not None for cell in self.cells)
        return f"Matrix({len(self.extractors)} extractors x {len(self.heads)} heads, {measured} measured)"

    def __rich__(self) -> RenderableType:
        from compatkit.reports.terminal import render

        return render(self)


def _references(parts: tuple[Part, ...], what: str) -> set[str]:
    seen: set[str] = set()
    for part in parts:
        if part.reference in seen:
            raise UsageError(f"the {what} {part.reference!r} is in the matrix twice", subject=part)
        seen.add(part.reference)
    return seen


def _pick(reference: str, parts: tuple[Part, ...], what: str) -> str:
    known = [part.reference for part in parts]
    if reference in known:
        return reference
    same = [one for one in known if one.rpartition("@")[0] == reference]
    if len(same) == 1:
        return same[0]
    if same:
        raise UnknownName(
            f"the {what} {reference!r} is in the matrix in several versions: {', '.join(same)}; name one",
            subject=reference,
        )
    near = difflib.get_close_matches(reference, known, n=3, cutoff=0.4) or known[:3]
    raise UnknownName(
        f"the matrix has no {what} {reference!r}; "
        + (f"near names: {', '.join(near)}" if near else "it has none"),
        subject=reference,
    )


def _check_figures(cell: Cell) -> None:
    figures: dict[str, Figure | None] = {
        name: getattr(cell, name) for name in ("restricted", "unrestricted", "bound")
    }
    for one in cell.ladder:
        figures |= {f"{one.name} agreement": one.agreement, f"{one.name} accuracy": one.accuracy}
    for name, figure in figures.items():
        if figure is None:
            continue
        if not (
            LEAST <= figure.accuracy <= MOST
            and LEAST <= figure.low <= MOST
            and LEAST <= figure.high <= MOST
            and 0 <= figure.correct <= figure.count
        ):
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
