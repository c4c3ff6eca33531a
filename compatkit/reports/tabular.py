"""Results as tables of plain values: a pandas data frame, CSV, LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
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
LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "[": "{[}",  # not the optional argument of the line break before it
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "\N{MINUS SIGN}": "$-$",
    "\N{EN DASH}": r"\textendash{}",
    "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
}


class Tabular:
    """Base of results that are tables.

    A subclass has ``_rows``; ``_print_rows`` where a printed table has another form, such as a grid.
    """

    __slots__ = ()

    _columns: ClassVar[tuple[str, ...]] = ()
    """Columns that come first, and are there without any row."""
    _kinds: ClassVar[Mapping[str, str]] = {}
    """Types of pandas of columns that may hold no value."""

    def _rows(self) -> Sequence[Row]:
        """Return a mapping from columns to plain values for each row; None where there is no value."""
        raise NotImplementedError

    def _print_rows(self, digits: int) -> Sequence[Row]:
        """Return the rows of LaTeX; numbers that are parts of texts have ``digits`` behind the point."""
        return self._rows()

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
        r"""Return a LaTeX ``tabular``, which needs no package; also write it if a path is given.

        Args:
            path: Of the file, or None.
            digits: Behind the point; very small and large numbers are powers of ten with as many.

        Raises:
            UsageError: ``digits`` is not from 0 to 17.
            EnvironmentFailure: The file cannot be written.
        """
        DIGITS.check("to_latex", digits=digits)
        rows = self._print_rows(digits)
        return written(latex_text(rows, columns_of(rows, () if rows else self._columns), digits), path)


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


def latex_text(rows: Sequence[Row], columns: Sequence[str], digits: int = 3) -> str:
    """Return rows as a LaTeX ``tabular``; columns of numbers are aligned at the right.

    Args:
        rows: Values by column.
        columns: In order.
        digits: Behind the point.
    """
    texts = [[_latex_cell(row.get(name), digits) for name in columns] for row in rows]
    numeric = [_kind([row.get(name) for row in rows]) in ("Int64", "float64") for name in columns]
    lines = [
        rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}",
        r"\hline",
        " & ".join(map(escape_latex, columns)) + r" \\",
        r"\hline",
        *(" & ".join(row) + r" \\" for row in texts),
        r"\hline",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex_cell(value: Any, digits: int) -> str:
    value = _plain(value)
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"${value}$"
    if isinstance(value, float) and math.isfinite(value):
        return _latex_number(value, digits)
    return escape_latex(str(value))


def _latex_number(value: float, digits: int) -> str:
    if value == 0 or 10**-digits <= abs(value) < LARGE:
        return f"${value:.{digits}f}$"
    mantissa, _, power = f"{value:.{digits}e}".partition("e")
    return rf"${mantissa} \times 10^{{{int(power)}}}$"


def escape_latex(text: str) -> str:
    """Return text in which nothing is a command of LaTeX; control characters are shown as escapes."""
    escaped = "".join(LATEX.get(sign, sign) for sign in visible(text))
    return re.sub("-(?=-)", "-{}", escaped)  # LaTeX joins hyphens to a dash


def _plain(value: Any) -> Any:
    """Return a value that a cell can hold: numbers of Python, lists and mappings as JSON."""
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(value, ensure_ascii=False)
    return native(value)


def grid(
    corner: str, names: Sequence[str], columns: Sequence[str], cell: Callable[[str, str], Any]
) -> list[dict[str, Any]]:
    """Return a row for each name, for print.

    Args:
        corner: Heading of the column of names, such as ``"extractor / head"``.
        names: Of the rows.
        columns: Of the other columns.
        cell: Gives the value of a row's and a column's name.
    """
    return [{corner: name} | {column: cell(name, column) for column in columns} for name in names]
