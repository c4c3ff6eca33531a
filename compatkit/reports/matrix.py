"""Compatibility matrix: extractors are rows, heads are columns, cells contain the measurements."""

from __future__ import annotations

import base64
import operator
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import attrs

from compatkit.contracts.evidence import Cell, Part, Rung, State
from compatkit.contracts.grades import Grade
from compatkit.contracts.report import Promise, Wiring
from compatkit.errors import UnknownName, UsageError, near, suggest
from compatkit.foundation.arguments import checks_arguments
from compatkit.reports import document, markdown, tidy
from compatkit.reports.grid import CellGrid
from compatkit.reports.tabular import Tabular, csv_text
from compatkit.reports.wording import chosen_rung
from compatkit.reports.writing import write, write_optional

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray
    from rich.console import RenderableType

    from compatkit.reports.comparison import Comparison

MAX_DRAWN_PAIRS = 900
"""Maximal number of pairs drawn in a notebook; larger matrices are summarized by verdict."""


@checks_arguments
@attrs.frozen(repr=False)
class Matrix(CellGrid, Tabular):
    """Measured accuracy of each extractor with each head.

    ``len`` and iteration (row by row) skip cells that a filter left out; ``m[0, 1]`` and
    ``m["digits/mnist.extractor", "digits/usps.head"]`` are cells by position and by name.

    ``to_dataframe`` has one row per cell: names, grades, numbers; missing values for pairs that were not measured.
    ``accuracy``, ``correct``, ``count``, ``low`` and ``high`` refer to the common classes; ``unrestricted_...`` to all
    outputs, ``bound_...`` to the extractor with its own head. ``setting_...`` are the settings of each cell,
    ``metric_...`` figures of metrics that were asked for.

    Attributes:
        extractors: Rows in display order.
        heads: Columns in display order.
        cells: At most one cell per pair, in any order; a pair without cell counts as not measured.
        settings: Settings common to all cells (JSON values), shown in the title.

    Raises:
        UsageError: A reference is duplicated, a cell belongs to no row or column or is duplicated, a value is out of
            range, or a setting is not a JSON value.
    """

    def with_ladders(
        self,
        notes: Mapping[tuple[str, str], Sequence[str]],
        ladders: Mapping[tuple[str, str], Sequence[Rung]],
    ) -> Matrix:
        """Return a copy with results of bridges in some cells; the settings list the chosen rungs.

        Args:
            notes: Further findings, by references of extractor and head.
            ladders: Results of the rungs, by references of extractor and head.
        """
        pairs = [(cell.extractor, cell.head) for cell in self.cells]
        cells = [
            attrs.evolve(
                cell, findings=(*cell.findings, *notes.get(pair, ())), ladder=tuple(ladders.get(pair, ()))
            )
            for cell, pair in zip(self.cells, pairs, strict=True)
        ]
        rungs = Counter(filter(None, map(chosen_rung, cells)))
        counts = [
            f"{name} in {count:,} cell{'' if count == 1 else 's'}" for name, count in sorted(rungs.items())
        ]
        # First in the settings, as small cells have no room to show that a bridge was used.
        bridge = {"bridge": counts} if counts else {}
        return attrs.evolve(self, cells=tuple(cells), settings={**bridge, **self.settings})

    def cell(self, extractor: str, head: str) -> Cell:
        """Return the cell of a pair.

        Args:
            extractor: ``name@version`` of a row, or its name if the matrix has only one version.
            head: ``name@version`` of a column, or its name if the matrix has only one version.

        Raises:
            UnknownName: No such row or column, several versions of it, or no cell for the pair.
        """
        row = _find_reference(extractor, self.extractors, "extractor")
        column = _find_reference(head, self.heads, "head")
        cell = self.find(row, column)
        if cell is None:
            raise UnknownName(
                f"the matrix has no cell for the extractor {row!r} and the head {column!r}: the pair was not "
                "measured; measure it and build the matrix again",
                subject=(row, column),
            )
        return cell

    def __getitem__(self, pair: tuple[int | str, int | str]) -> Cell:
        """Return a cell by row and column.

        Args:
            pair: Positions (from 0, or negative from the end) or names of row and column.

        Raises:
            UnknownName: No such row or column, several versions of it, or no cell for the pair.
            UsageError: The key is not a pair of positions or names.
        """
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise UsageError(
                f"expected an extractor and a head, such as m[0, 1] or m['a.extractor', 'b.head'], got "
                f"{pair!r:.80}",
                subject=pair,
            )
        extractor = _reference_at(pair[0], self.extractors, "extractors")
        return self.cell(extractor, _reference_at(pair[1], self.heads, "heads"))

    def filter(
        self,
        keep: Callable[[Cell], bool] | None = None,
        *,
        extractors: str = "*",
        heads: str = "*",
        state: str | Collection[str] | None = None,
        wiring: str | Collection[str] | None = None,
        promise: str | Collection[str] | None = None,
        grade: str | Collection[str] | None = None,
    ) -> Matrix:
        """Return the matrix of the cells that match all filters, without empty rows and columns.

        Args:
            keep: Predicate for cells: ``lambda cell: cell.recovered is not None and cell.recovered > .9``.
            extractors: Glob over the names of extractors, with or without a version: ``"digits/*"``.
            heads: Glob over the names of heads, with or without a version.
            state: One or several of ``measured``, ``stale``, ``missing``, ``barred``.
            wiring: One or several of ``refused``, ``needs-adapter``, ``direct``.
            promise: One or several of ``none``, ``shared-init``, ``shared-head``.
            grade: One or several of ``none``, ``stale``, ``undecided``, ``chance``, ``compatible``, ``perfect``.

        Raises:
            UsageError: A state, wiring, promise or grade is unknown.
        """
        allowed = {
            "state": _values("state", state, State),
            "wiring": _values("wiring", wiring, Wiring),
            "promise": _values("promise", promise, Promise),
            "grade": _values("grade", grade, Grade),
        }
        pairs = {
            (cell.extractor, cell.head)
            for cell in self
            if _matches(cell.extractor, extractors)
            and _matches(cell.head, heads)
            and all(values is None or getattr(cell, field) in values for field, values in allowed.items())
            and (keep is None or keep(cell))
        }
        rows, columns = {row for row, _ in pairs}, {column for _, column in pairs}
        # Counts of cells refer to the unfiltered matrix.
        settings = {name: value for name, value in self.settings.items() if name != "cells"}
        cells = [
            cell if (cell.extractor, cell.head) in pairs else cell.left_out("does not fit the filter")
            for cell in self.cells
            if cell.extractor in rows and cell.head in columns
        ]
        return Matrix(
            [part for part in self.extractors if part.reference in rows],
            [part for part in self.heads if part.reference in columns],
            cells,
            settings,
        )

    def compare(self, before: Matrix) -> Comparison:
        """Return what changed since an earlier matrix, pair by pair, with 95 % intervals.

        Rows and columns are matched by reference, else by name where each matrix has it in one version. Accuracies on
        other images or classes are not compared; other conditions that differ are listed.

        Args:
            before: Earlier matrix, such as ``Matrix.from_json(path.read_text())``.
        """
        from compatkit.reports.comparison import compare

        return compare(before, self)

    _columns = tidy.FRAME_COLUMNS
    _kinds = tidy.PANDAS_TYPES

    def _grid(self) -> tuple[str, str, str]:
        return ("extractor", "head", "accuracy")

    def _rows(self) -> list[dict[str, Any]]:
        return tidy.rows(self)

    def to_numpy(self, field: str = "accuracy") -> NDArray[float64]:
        """Return one number per pair.

        Args:
            field: Numeric column of ``to_dataframe``, such as ``"accuracy"``, ``"low"``, ``"recovered"``, ``"chance"``,
                ``"bound_accuracy"`` or ``"metric_..."``.

        Returns:
            Array ``(extractors, heads)``, float64, NaN if missing.

        Raises:
            UnknownName: There is no such column.
        """
        return tidy.array(self, field)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML page and return its path.

        Args:
            path: Path of the file.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.page import render

        return write(path, render(self))

    def to_png(self, path: str | os.PathLike[str]) -> Path:
        """Write a heat map and return its path.

        Args:
            path: Path of the file.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.heatmap import render

        return write(path, render(self))

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the matrix and its evidence as Markdown tables; also write them if a path is given.

        Args:
            path: Path of the file, or None.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        return write_optional(markdown.render(self), path)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return CSV with one line per pair and all numbers; also write it if a path is given.

        Args:
            path: Path of the file, or None.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        return write_optional(
            csv_text(tidy.csv_rows(self), (*tidy.COLUMNS, *tidy.metric_columns(self))), path
        )

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return lossless JSON for ``from_json``; also write it if a path is given.

        Args:
            path: Path of the file, or None.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        return write_optional(document.render(self), path)

    @classmethod
    def from_json(cls, text: str | bytes) -> Matrix:
        """Read the output of ``to_json``; the result equals the original matrix.

        Args:
            text: JSON of a matrix.

        Raises:
            FormatError: The text is not the JSON of a matrix; the message gives the path.
        """
        return document.parse(text, cls)

    def _repr_html_(self) -> str:
        """Return a heat map with a conclusion for notebooks; for very large matrices, the counts of verdicts."""
        if not 0 < len(self.extractors) * len(self.heads) <= MAX_DRAWN_PAIRS:
            return super()._repr_html_()
        from markupsafe import Markup

        from compatkit.reports.conclusion import conclusion
        from compatkit.reports.heatmap import render

        picture, text = base64.b64encode(render(self)).decode(), conclusion(self)
        return Markup('<p>{}</p><img style="max-width:100%" src="data:image/png;base64,{}" alt="{}">').format(
            text, picture, str(self)
        )

    def __str__(self) -> str:
        from compatkit.reports.tables import matrix_table

        return matrix_table(self).text(ascii_only=True)

    def __rich__(self) -> RenderableType:
        from compatkit.reports.tables import matrix_table

        return matrix_table(self)


def _reference_at(position: int | str, parts: tuple[Part, ...], kinds: str) -> str:
    if isinstance(position, str):
        return position
    try:
        return parts[operator.index(position)].reference
    except IndexError:
        raise UnknownName(
            f"the matrix has {len(parts)} {kinds}, counted from 0; got number {position}", subject=position
        ) from None
    except TypeError:
        raise UsageError(
            f"expected the position or name of a row or column, got {position!r:.80}; use filter for several",
            subject=position,
        ) from None


def _values(field: str, selection: str | Collection[str] | None, known: Any) -> Collection[str] | None:
    values = [selection] if isinstance(selection, str) else selection
    for value in values or ():
        if value not in get_args(known):
            hint = suggest(value, get_args(known))
            raise UsageError(
                f"{field} is one of {', '.join(get_args(known))}, got {value!r:.80}.{hint}", subject=value
            )
    return values


def _matches(reference: str, pattern: str) -> bool:
    return fnmatchcase(reference, pattern) or fnmatchcase(reference.rpartition("@")[0], pattern)


def _find_reference(reference: str, parts: tuple[Part, ...], kind: str) -> str:
    known = [part.reference for part in parts]
    if reference in known:
        return reference
    versions = [version for version in known if version.rpartition("@")[0] == reference]
    if len(versions) == 1:
        return versions[0]
    if versions:
        raise UnknownName(
            f"the {kind} {reference!r} is in the matrix in several versions: {', '.join(versions)}; name one",
            subject=reference,
        )
    close = near(reference, known, 3, 0.4) or known[:3]
    raise UnknownName(
        f"the matrix has no {kind} {reference!r}; "
        + (f"near names: {', '.join(close)}" if close else "it has none"),
        subject=reference,
    )
