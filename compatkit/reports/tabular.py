"""Export results as tables: pandas data frame, CSV, LaTeX."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from compatkit.errors import MissingDependency
from compatkit.foundation.display import visible
from compatkit.foundation.limits import Number, native
from compatkit.reports.writing import write_optional

if TYPE_CHECKING:
    from pandas import DataFrame  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]

    Row = Mapping[str, Any]

DIGITS = Number(least=0, most=17, whole=True)
MAX_PLAIN = 1e6
"""LaTeX has numbers from here on as powers of ten."""
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of text that a spreadsheet runs as a formula."""


class Tabular:
    """Base class of results with tables.

    Subclasses define ``_rows``, and ``_grid`` for a LaTeX table with one row and column per pair.
    """

    __slots__ = ()

    _columns: ClassVar[tuple[str, ...]] = ()
    """First columns; they exist without any row, too."""
    _kinds: ClassVar[Mapping[str, str]] = {}
    """Pandas types of columns without values."""

    def _grid(self) -> tuple[str, str, str] | None:
        """Return the names of the columns with rows, columns and cells of the LaTeX table; None for plain rows."""
        return None

    def _rows(self) -> Sequence[Row]:
        """Return a mapping from columns to plain values for each row; None for missing values."""
        raise NotImplementedError

    def _latex_rows(self) -> Sequence[Row]:
        """Return the rows of the LaTeX table, if they are others than ``_rows``."""
        return self._rows()

    def to_dataframe(self) -> DataFrame:
        """Return the rows as a pandas data frame.

        Raises:
            MissingDependency: pandas is not installed.
        """
        rows = self._rows()
        return frame(rows, columns_of(rows, self._columns), self._kinds)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the rows as CSV, with all digits; also write them if a path is given.

        Text that a spreadsheet would run as a formula is prefixed with an apostrophe.

        Args:
            path: Path of the file, or None.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        rows = self._rows()
        return write_optional(csv_text(rows, columns_of(rows, self._columns)), path)

    def to_latex(self, path: str | os.PathLike[str] | None = None, *, digits: int = 3) -> str:
        """Return a LaTeX ``tabular`` for the package booktabs; also write it if a path is given.

        Args:
            path: Path of the file, or None.
            digits: Digits after the point; very small and large numbers are powers of ten with as many digits.

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
            for row in self._latex_rows()
        ]
        plain = type(self)._latex_rows is Tabular._latex_rows
        first, kinds = (self._columns, self._kinds) if plain else ((), {})
        table = frame(rows, columns_of(rows, first), kinds)
        if (grid := self._grid()) is not None:
            row, column, cell = grid
            table = table.pivot(index=row, columns=column, values=cell).reset_index()

        def number(value: float) -> str:
            plain = value == 0 or 10**-digits <= abs(value) < MAX_PLAIN
            return f"{value:.{digits}{'f' if plain else 'e'}}"

        text = table.to_latex(index=False, float_format=number, na_rep="", escape=True)
        return write_optional(text, path)


def columns_of(rows: Sequence[Row], first: Sequence[str] = ()) -> list[str]:
    """Return the columns of rows in the order of their first value.

    Args:
        rows: Values by column.
        first: Names of the first columns, with or without values.
    """
    return list(dict.fromkeys([*first, *(name for row in rows for name in row)]))


def frame(rows: Sequence[Row], columns: Sequence[str], kinds: Mapping[str, str] | None = None) -> DataFrame:
    """Return rows as a data frame; booleans, integers and floats have nullable pandas types.

    Args:
        rows: Values by column.
        columns: Names of the columns in order.
        kinds: Pandas types by column, for columns without values.

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
    types = {name: dtype for name in columns if (dtype := _dtype(values[name]))}
    return pandas.DataFrame(values, columns=list(columns)).astype({**types, **(kinds or {})})


def _dtype(values: Sequence[Any]) -> str:
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
        columns: Names of the columns in order.
    """
    buffer = io.StringIO(newline="")
    import csv

    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(_csv_cell, columns))
    writer.writerows([_csv_cell(row.get(name)) for name in columns] for row in rows)
    return buffer.getvalue()


def _csv_cell(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_PREFIXES) else value
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: ""}[value]
    return repr(value)


def _plain(value: Any) -> Any:
    """Return a value for a table cell: Python numbers and texts; lists and mappings as JSON."""
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(value, ensure_ascii=False)
    return native(value)
