"""Tables of images, CSV or Parquet: columns ``path`` (relative to the table) and ``label``; optionally ``split``.

Class names are the labels, or the lines of ``classes.txt`` in the table's folder.
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

from compatkit.data.classnames import CLASSES_FILE, MAX_BYTES, encode_labels, parse_class_names
from compatkit.data.dataset import DataSet
from compatkit.data.duplicates import file_ids, repeated_files
from compatkit.data.filenames import decode_name, encode_name
from compatkit.data.imagefiles import image_files, read_file
from compatkit.data.shardsets import warn_single_shard
from compatkit.data.split import Split
from compatkit.data.splitnames import EXPECTED, check_undivided, is_split_column, split_kind
from compatkit.data.traintest import divide_by_name
from compatkit.errors import DataError, MissingDependency

EXTENSIONS = (".csv", ".parquet")
REQUIRED = ("path", "label")
Columns = dict[str, list[str]]
RowName = Callable[[int], str]
"""Returns the name of a row for messages: its last line in a CSV file, its number in a Parquet table."""
MAX_LINE = 2**16
"""Characters of the longest line of a CSV file."""


def read_table(path: str | os.PathLike[str]) -> DataSet | Split:
    """Read a table of images.

    Returns:
        Training and test images if there is a column ``split``; else all images.

    Raises:
        DataError: The table is damaged or lacks a column; a file is missing; a label or split is unknown.
        EnvironmentFailure: The table cannot be read.
        MissingDependency: The table is Parquet, and pyarrow is not installed.
    """
    table = Path(path).expanduser().resolve()
    columns, row_name = _read_parquet(table) if table.suffix == ".parquet" else _read_csv(table)
    missing = [column for column in REQUIRED if column not in columns]
    if missing or not columns["path"]:
        actual = f"its columns are {', '.join(columns) or 'none':.200}" if missing else "it has no rows"
        raise DataError(
            f"{table} must have the columns path and label, and a row per image; {actual}.", subject=table
        )
    unlabeled = next((row for row, label in enumerate(columns["label"]) if not label), None)
    if unlabeled is not None:
        raise DataError(
            f"{table}, {row_name(unlabeled)} has no label. Add one, or remove the row.", subject=table
        )
    if "split" not in columns:
        _check_undivided(columns, table)
    folder, name = table.parent, decode_name(table.stem)
    columns["path"] = [encode_name(text) for text in columns["path"]]
    ids = file_ids(folder, columns["path"])
    _check_exist(columns["path"], ids, table, row_name)
    _check_repeated(columns, ids, table, row_name)
    names_file = folder / CLASSES_FILE
    names = parse_class_names(read_file(names_file, MAX_BYTES), names_file) if names_file.is_file() else None
    classes, labels = encode_labels(columns["label"], table, names)
    warn_single_shard(str(table))
    images = Split(image_files(folder, columns["path"]), labels, classes, f"{name}/train")
    return divide_by_name(images, columns["split"], name, table) if "split" in columns else images


def _check_undivided(columns: Columns, table: Path) -> None:
    """Refuse a table without a column ``split`` if another column or its folders look like a train/test split."""
    for name, values in columns.items():
        if name not in REQUIRED and is_split_column(name, dict.fromkeys(values)):
            raise DataError(
                f"{table}: the column {name!r:.100} looks like a train/test split. Name it 'split', with the values "
                f"{EXPECTED}; or remove it, to have a share of the images held out for testing.",
                subject=name,
            )
    folders = {path.rpartition("/")[0] for path in columns["path"]}
    check_undivided(
        folders,
        table,
        "Add a column 'split' that states which images are for training and which for testing.",
    )


def _check_exist(paths: list[str], ids: NDArray[np.void], table: Path, row_name: RowName) -> None:
    missing = np.flatnonzero(ids["links"] == 0)
    if not len(missing):
        return
    first = int(missing[0])
    path = table.parent / paths[first]
    forms = ("NFC", "NFD")
    other = next((form for form in forms if os.path.isfile(unicodedata.normalize(form, str(path)))), None)
    hint = (
        "" if other is None else f" The name exists in the Unicode form {other}; use that form in the table."
    )
    raise DataError(
        f"{table}, {row_name(first)}: there is no file {path} ({len(missing):,} of {len(paths):,} are missing). Paths "
        f"are relative to the table's folder.{hint}",
        subject=path,
    )


def _check_repeated(columns: Columns, ids: NDArray[np.void], table: Path, row_name: RowName) -> None:
    """Refuse a file with different labels or splits; without a column ``split``, any file listed twice."""
    paths = columns["path"]
    for first, second in repeated_files(table.parent, paths, ids):
        rows = f"{table}, {row_name(first)} and {row_name(second)} name one file, {paths[first]}"
        rows += f" and {paths[second]}" if paths[second] != paths[first] else ""
        for column in ("label", "split"):
            if column in columns and _comparable(columns, column, first) != _comparable(
                columns, column, second
            ):
                values = f"{columns[column][first]}, {columns[column][second]}"
                raise DataError(
                    f"{rows}, with different {column}s: {values}. Remove one.", subject=paths[second]
                )
        if "split" not in columns:
            raise DataError(
                f"{rows}, which could be both a training and a test image. Remove one row, or add a column 'split'.",
                subject=paths[second],
            )


def _comparable(columns: Columns, column: str, row: int) -> str:
    text = columns[column][row]
    return (column == "split" and split_kind(text)) or unicodedata.normalize("NFC", text)


def _read_csv(table: Path) -> tuple[Columns, RowName]:
    line_numbers: list[int] = []
    try:
        text = io.TextIOWrapper(io.BytesIO(read_file(table)), "utf-8-sig", newline="")
        reader = csv.reader(_checked_lines(text, table), strict=True, skipinitialspace=True)
        rows = (row for row in reader if row)
        names = next(rows, [])
        _check_header(names, table)
        columns: Columns = {name: [] for name in names}
        if not all(column in columns for column in REQUIRED):
            return columns, str
        for row in rows:
            line_numbers.append(reader.line_num)
            if len(row) != len(names):
                raise DataError(
                    f"{table}, line {line_numbers[-1]} has {len(row)} values for {len(names)} columns. Quote values "
                    "that contain commas.",
                    subject=table,
                )
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value.strip())
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{table} is not a CSV table in UTF-8: {error}.", subject=table) from error
    return columns, lambda row: f"line {line_numbers[row]}"


def _checked_lines(text: Iterable[str], table: Path) -> Iterator[str]:
    """Yield line_numbers; refuse a very long one before it becomes a row of millions of values."""
    for line in text:
        if len(line) > MAX_LINE:
            raise DataError(
                f"{table} has a line of {len(line):,} characters; at most {MAX_LINE:,} are read.",
                subject=table,
            )
        yield line


def _check_header(names: list[str], table: Path) -> None:
    """Refuse another separator than a comma, or a repeated column."""
    if len(names) == 1:
        separator = next((separator for separator in ";\t|" if separator in names[0]), None)
        if separator is not None:
            raise DataError(
                f"{table} separates values with {separator!r}. Separate them with commas.", subject=table
            )
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{table} has the column {repeated!r:.100} twice. Remove one.", subject=table)


def _read_parquet(table: Path) -> tuple[Columns, RowName]:
    """Return the columns of text, integers and booleans, which may be paths, labels or splits."""
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError as error:
        raise MissingDependency(
            f"{table} needs pyarrow. Run: pip install 'compatkit[datasets]'", subject="pyarrow"
        ) from error

    def is_text(kind: Any) -> bool:
        return types.is_string(kind) or types.is_large_string(kind)

    try:
        file = parquet.ParquetFile(io.BytesIO(read_file(table)))
        wanted = []
        for field in file.schema_arrow:
            kind = field.type.value_type if types.is_dictionary(field.type) else field.type
            is_number = types.is_integer(kind) and field.name != "path"
            if is_text(kind) or is_number or (types.is_boolean(kind) and field.name not in REQUIRED):
                wanted.append(field.name)
            elif field.name in REQUIRED:
                expected = "text or integers" if field.name == "label" else "text"
                raise DataError(
                    f"{table}: the column {field.name} is of type {field.type}; expected {expected}.",
                    subject=field.name,
                )
        values = file.read(columns=wanted).to_pydict()
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{table} is not a Parquet table: {error}", subject=table) from error
    columns = {
        name: ["" if value is None else str(value).strip() for value in values[name]] for name in wanted
    }
    return columns, lambda row: f"row {row + 1}"
