"""Results as tables of plain values: a pandas data frame, CSV, LaTeX."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from compatkit.errors import MissingDependency
from compatkit.foundation.display import visible
from compatkit.foundation.limits import Number, native
from compatkit.reports.writing import written

if TYPE_CHECKING:
    from pandas import DataFrame  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]

    Row = Mapping[str, Any]

DIGITS = Number(least=0, most=17, whole=True)
LARGE = 1e6
"""From here on, LaTeX has numbers as powers of ten."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a spreadsheet would run as a formula begins so."""


class Tabular:
    """Base of results that are tables.

    A subclass has ``_rows``, and ``_grid`` where a table in print is a grid.
    """

    __slots__ = ()

    _columns: ClassVar[tuple[str, ...]] = ()
    """Columns that come first, and are there without any row."""
    _kinds: ClassVar[Mapping[str, str]] = {}
    """Types of pandas of columns that may hold no value."""

    def _grid(self) -> tuple[str, str, str] | None:
        """Return the columns with rows, columns and cells of a table in print; None for the rows as they are."""
        return None

    def _rows(self) -> Sequence[Row]:
        """Return a mapping from columns to plain values for each row; None where there is no value."""
        raise NotImplementedError

    def to_dataframe(self) -> DataFrame:
        """Return the rows as a pandas data frame, with missing values where there is no figure.

        Raises:
            MissingDependency: pandas is not installed.
        """
        rows = self._rows()
        return frame(rows, columns_of(rows, self._columns), self._kinds)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the rows as CSV, with all digits; also write them if a path is given.

        Text that a spreadsheet would run as a formula is prefixed with an apostrophe.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        rows = self._rows()
        return written(csv_text(rows, columns_of(rows, self._columns)), path)

    def to_latex(self, path: str | os.PathLike[str] | None = None, *, digits: int = 3) -> str:
        """Return a LaTeX ``tabular`` for the package booktabs; also write it if a path is given.

        Args:
            path: Of the file, or None.
            digits: Behind the point; very small and large numbers are powers of ten with as many.

        Raises:
            UsageError: ``digits`` is not from 0 to 17.
            MissingDependency: pandas is not installed.
            EnvironmentFailure: The file cannot be written.
        """
        DIGITS.check("to_latex", digits=digits)
        rows = [
            {
                visible(name): visible(text) if isinstance(text := _plain(value), str) else text
                for name, value in row.items()
            }
            for row in self._rows()
        ]
        table = frame(rows, columns_of(rows, self._columns), self._kinds)
        if (grid := self._grid()) is not None:
            row, column, cell = grid
            table = table.pivot(index=row, columns=column, values=cell).reset_index()

        def number(value: float) -> str:
            plain = value == 0 or 10**-digits <= abs(value) < LARGE
            return f"{value:.{digits}{'f' if plain else 'e'}}"

        text = table.to_latex(index=False, float_format=number, na_rep="", escape=True)
        return written(text, path)


def columns_of(rows: Sequence[Row], first: Sequence[str] = ()) -> list[str]:
    """Return the columns of rows in the order of their first value.

    Args:
        rows: Values by column.
        first: Columns that come before, whether or not a row has them.
    """
    return list(dict.fromkeys([*first, *(name for row in rows for name in row)]))


def frame(rows: Sequence[Row], columns: Sequence[str], kinds: Mapping[str, str] | None = None) -> DataFrame:
    """Return rows as a data frame: booleans, integers and floats as such also where values are missing.

    Args:
        rows: Values by column.
        columns: In order.
        kinds: Types of pandas by column, for columns that may have no value.

    Raises:
        MissingDependency: pandas is not installed.
    """
    try:
        import pandas  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
    except ImportError as error:
        raise MissingDependency(
            "A data frame needs the library pandas, which is not installed. Run: pip install "
            f"'compatkit[pandas]'; or use to_csv(), which needs no library. ({error})",
            subject="pandas",
        ) from error
    values = {name: [_plain(row.get(name)) for row in rows] for name in columns}
    types = {name: kind for name in columns if (kind := _kind(values[name]))}
    return pandas.DataFrame(values, columns=list(columns)).astype({**types, **(kinds or {})})


def _kind(values: Sequence[Any]) -> str:
    types = {type(value) for value in values if value is not None}
    if types == {bool}:
        return "boolean"
    if types == {int}:
        return "Int64"
    return "float64" if types and types <= {int, float} else ""


def csv_text(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return rows as CSV with a header.

    Args:
        rows: Values by column.
        columns: In order.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_csv_cell, columns))
    writer.writerows([_csv_cell(row.get(name)) for name in columns] for row in rows)
    return out.getvalue()


def _csv_cell(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: ""}[value]
    return repr(value)


def _plain(value: Any) -> Any:
    """Return a value that a cell can hold: numbers of Python, lists and mappings as JSON."""
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(value, ensure_ascii=False)
    return native(value)
