"""Tables of images, CSV or Parquet: columns ``path``, below the table's folder, and ``label``; ``split`` divides them.

Class names are the labels, or the lines of ``classes.txt`` beside the table.
"""

from __future__ import annotations

import csv
import io
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compatkit.data.classnames import LARGEST_LIST, NAMES, names_of, numbered
from compatkit.data.dataset import DataSet
from compatkit.data.duplicates import file_states_of, repeated
from compatkit.data.filenames import name_in_system, text_of
from compatkit.data.imagefiles import listed, read_file
from compatkit.data.shardsets import warn_single_shard
from compatkit.data.split import Split
from compatkit.data.splitnames import EXPECTED, check_folders, divides, part_name
from compatkit.data.traintest import parted
from compatkit.errors import DataError, MissingDependency

LISTS = (".csv", ".parquet")
COLUMNS = ("path", "label")
Columns = dict[str, list[str]]
Places = Callable[[int], str]
"""Returns where a row is: its last line in a CSV file, its number in a Parquet table."""
FORMS = ("NFC", "NFD")
LONGEST_LINE = 2**16
"""Characters of a line."""


def read_list(path: str | os.PathLike[str]) -> DataSet | Split:
    """Read a table of images.

    Returns:
        Both parts, by the column ``split``; or all images, where there is none.

    Raises:
        DataError: The table is damaged or lacks a column; a file is missing, a label or part is not known.
        EnvironmentFailure: The table cannot be read.
        MissingDependency: It is Parquet, and pyarrow is not installed.
    """
    table = Path(path).expanduser().resolve()
    columns, place_of = _parquet(table) if table.suffix == ".parquet" else _csv(table)
    missing = [column for column in COLUMNS if column not in columns]
    if missing or not columns["path"]:
        contents = f"its columns are {', '.join(columns) or 'none':.200}" if missing else "it has no rows"
        raise DataError(
            f"{table} must have the columns path and label, and a row for each image; {contents}.",
            subject=table,
        )
    unlabeled = next((row for row, label in enumerate(columns["label"]) if not label), None)
    if unlabeled is not None:
        raise DataError(
            f"{table}, {place_of(unlabeled)} has no label. Give one, or remove the row.", subject=table
        )
    _check_undivided(columns, table)
    folder = table.parent
    columns["path"] = [name_in_system(path) for path in columns["path"]]
    states = file_states_of(folder, columns["path"])
    _check_there(columns["path"], states, table, place_of)
    _check_repeated(columns, states, table, place_of)
    place, name = folder / NAMES, text_of(table.stem)
    names = names_of(read_file(place, LARGEST_LIST), place) if place.is_file() else None
    classes, labels = numbered(columns["label"], table, names)
    warn_single_shard(str(table))
    whole = Split(listed(folder, columns["path"]), labels, classes, f"{name}/train")
    return parted(whole, columns["split"], name, table) if "split" in columns else whole


def _check_undivided(columns: dict[str, list[str]], table: Path) -> None:
    """Refuse a table without a column ``split`` that another column divides.

    Raises:
        DataError: It does.
    """
    if "split" in columns:
        return
    for name, values in columns.items():
        if name not in COLUMNS and divides(name, dict.fromkeys(values)):
            raise DataError(
                f"{table}: the column {name!r:.100} divides the rows into parts, and the column that does is called "
                f"split, with {EXPECTED}. Rename it or write it so; or remove it, to hold out a share.",
                subject=name,
            )
    folders = {path.rpartition("/")[0] for path in columns["path"]}
    check_folders(folders, table, "Say by a column split which images are which.")


def _check_there(paths: list[str], states: NDArray[np.void], table: Path, place_of: Places) -> None:
    """Refuse a table of which a file is missing.

    Raises:
        DataError: One is.
    """
    gone = np.flatnonzero(states["links"] == 0)
    if not len(gone):
        return
    first = int(gone[0])
    path = table.parent / paths[first]
    other = next((form for form in FORMS if os.path.isfile(unicodedata.normalize(form, str(path)))), None)
    hint = "" if other is None else f" There is one whose name has Unicode's form {other}: write the path so."
    raise DataError(
        f"{table}, {place_of(first)}: there is no file {path} ({len(gone):,} of {len(paths):,} are missing). Paths "
        f"start at the folder of the table.{hint}",
        subject=path,
    )


def _check_repeated(
    columns: dict[str, list[str]], states: NDArray[np.void], table: Path, place_of: Places
) -> None:
    """Refuse a file in two classes or parts; or in two rows, where a share is held out.

    Raises:
        DataError: There is one.
    """
    paths = columns["path"]
    for before, row in repeated(table.parent, paths, states):
        rows = f"{table}, {place_of(before)} and {place_of(row)} name one file, {paths[before]}"
        rows += f" and {paths[row]}" if paths[row] != paths[before] else ""
        for what in ("label", "split"):
            if what in columns and _word(columns[what][before], what) != _word(columns[what][row], what):
                raise DataError(
                    f"{rows}, with another {what}: {columns[what][before]}, {columns[what][row]}. Leave one out.",
                    subject=paths[row],
                )
        if "split" not in columns:
            raise DataError(
                f"{rows}, and a share of the rows is held out: it might be trained on and tested on. Leave one row "
                "out, or divide the images by a column split.",
                subject=paths[row],
            )


def _word(value: str, what: str) -> str:
    part = part_name(value) if what == "split" else None
    return part.kind if part is not None and part.plain else unicodedata.normalize("NFC", value)


def _csv(table: Path) -> tuple[Columns, Places]:
    lines: list[int] = []
    try:
        text = io.TextIOWrapper(io.BytesIO(read_file(table)), "utf-8-sig", newline="")
        reader = csv.reader(_lines(text, table), strict=True, skipinitialspace=True)
        rows = (row for row in reader if row)
        names = next(rows, [])
        _check_names(names, table)
        columns: dict[str, list[str]] = {name: [] for name in names}
        if not all(column in columns for column in COLUMNS):
            return columns, str
        for row in rows:
            lines.append(reader.line_num)
            if len(row) != len(names):
                raise DataError(
                    f"{table}, line {lines[-1]} has more or fewer values than there are columns. Quote values with "
                    "commas.",
                    subject=table,
                )
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value.strip())
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{table} is no CSV table in UTF-8: {error}.", subject=table) from error
    return columns, lambda row: f"line {lines[row]}"


def _lines(text: Iterable[str], table: Path) -> Iterator[str]:
    """Yield lines, none of which makes a row of millions of values."""
    for line in text:
        if len(line) > LONGEST_LINE:
            raise DataError(
                f"{table} is no table of images: a line has {len(line):,} characters; at most {LONGEST_LINE:,} are "
                "read.",
                subject=table,
            )
        yield line


def _check_names(names: list[str], table: Path) -> None:
    """Check that the first line names columns, before all others are read.

    Raises:
        DataError: Another separator than a comma, or a repeated name.
    """
    if len(names) == 1 and (
        other := next((separator for separator in ";\t|" if separator in names[0]), None)
    ):
        raise DataError(
            f"{table} separates its values with {other!r}. Separate them with commas.", subject=table
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{table} has the column {twice!r:.100} twice. Remove one.", subject=table)


def _parquet(table: Path) -> tuple[Columns, Places]:
    """Return the columns that may be paths, labels or parts: texts, whole numbers, and true or false."""
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError as error:
        raise MissingDependency(
            f"{table} is read through pyarrow, which is not installed. Run: pip install 'compatkit[datasets]'",
            subject="pyarrow",
        ) from error

    def is_text(kind: Any) -> bool:
        return types.is_string(kind) or types.is_large_string(kind)

    try:
        file = parquet.ParquetFile(io.BytesIO(read_file(table)))
        wanted = []
        for field in file.schema_arrow:
            kind = field.type.value_type if types.is_dictionary(field.type) else field.type
            number = types.is_integer(kind) and field.name != "path"
            if is_text(kind) or number or (types.is_boolean(kind) and field.name not in COLUMNS):
                wanted.append(field.name)
            elif field.name in COLUMNS:
                expected = "text or whole numbers" if field.name == "label" else "text"
                raise DataError(
                    f"{table}: the column {field.name} is of type {field.type}; expected {expected}.",
                    subject=field.name,
                )
        read = file.read(columns=wanted).to_pydict()
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{table} is no Parquet table: {error}", subject=table) from error
    columns = {name: ["" if value is None else str(value).strip() for value in read[name]] for name in wanted}
    return columns, lambda row: f"row {row + 1}"
