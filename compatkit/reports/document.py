"""Serialize a matrix to JSON and back, losslessly and strictly."""

from __future__ import annotations

import json
import math
import types
import typing
from collections import Counter
from functools import cache
from typing import Any

import attrs

from compatkit.contracts.evidence import Cell, Part
from compatkit.errors import CompatkitError, FormatError
from compatkit.reports.grid import CellGrid

Made = typing.TypeVar("Made", bound=CellGrid)
SCHEMA = 1
LATER = "ladder"
"""Field of a cell that older documents lack; written only if not empty."""
_FIELDS = ("schema", "kind", "settings", "extractors", "heads", "cells")


def render(matrix: CellGrid, *, indent: int | None = 2) -> str:
    """Return the matrix as JSON with full precision.

    Args:
        matrix: The cells.
        indent: Spaces a level; None for one line.
    """
    value = {
        "schema": SCHEMA,
        "kind": "compatibility-matrix",
        "settings": dict(matrix.settings),
        "extractors": [attrs.asdict(part) for part in matrix.extractors],
        "heads": [attrs.asdict(part) for part in matrix.heads],
        "cells": [_written(cell) for cell in matrix.cells],
    }
    # Lone surrogates have no UTF-8 form; written as escapes they survive the round trip.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"


def parse(text: str | bytes, kind: type[Made]) -> Made:
    """Read the output of ``render``.

    Args:
        text: The document.
        kind: Class of the result.

    Raises:
        FormatError: Not JSON, an unknown or missing field, a value of the wrong type, a figure out of range, or a cell
            of an unknown part; the message gives the path.
    """
    value = _load(text)
    _expect_fields(value, _FIELDS, "matrix")
    if value["schema"] != SCHEMA or type(value["schema"]) is not int:
        raise FormatError(f"matrix.schema: expected {SCHEMA}, got {value['schema']!r}; upgrade compatkit")
    if value["kind"] != "compatibility-matrix":
        raise FormatError(f"matrix.kind: expected 'compatibility-matrix', got {value['kind']!r}")
    if not isinstance(value["settings"], dict):
        raise FormatError(f"matrix.settings: expected an object, got {_kind(value['settings'])}")
    try:
        return kind(
            extractors=_structure(value["extractors"], tuple[Part, ...], "matrix.extractors"),
            heads=_structure(value["heads"], tuple[Part, ...], "matrix.heads"),
            cells=_structure(value["cells"], tuple[Cell, ...], "matrix.cells"),
            settings=value["settings"],
        )
    except FormatError:
        raise
    except CompatkitError as error:
        raise FormatError(f"the JSON is not a valid matrix: {error}") from error


def _written(cell: Cell) -> dict[str, Any]:
    return {name: value for name, value in attrs.asdict(cell).items() if name != LATER or value}


def _load(text: str | bytes) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice = sorted(name for name, count in counts.items() if count > 1)
            raise FormatError(f"the JSON of a matrix has a field twice: {', '.join(map(repr, twice))}")
        return value

    def refuse(name: str) -> Any:
        raise FormatError(f"the JSON of a matrix has the number {name}; every figure must be finite")

    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the matrix is not valid JSON: {error}") from error


def _expect_fields(value: Any, names: tuple[str, ...], where: str) -> None:
    if not isinstance(value, dict):
        raise FormatError(f"{where}: expected an object, got {_kind(value)}")
    if unknown := sorted(set(value) - set(names)):
        raise FormatError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(names)}")
    if missing := [name for name in names if name not in value]:
        raise FormatError(f"{where}: the field {missing[0]!r} is missing")


def _structure(value: Any, wanted: Any, where: str) -> Any:
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        return _one_of(value, inner, where)
    if origin is typing.Literal:
        if value not in inner or not isinstance(value, str):
            raise FormatError(f"{where}: expected one of {', '.join(inner)}, got {value!r}")
        return value
    if origin is tuple:
        return _tuple(value, inner, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise FormatError(f"{where}: expected an object, got {_kind(value)}")
        return {name: _structure(item, inner[1], f"{where}.{name}") for name, item in value.items()}
    if attrs.has(wanted):
        hints = _hints(wanted)
        if wanted is Cell and isinstance(value, dict):
            value = {LATER: [], **value}
        _expect_fields(value, tuple(hints), where)
        return wanted(
            **{name: _structure(value[name], kind, f"{where}.{name}") for name, kind in hints.items()}
        )
    return _scalar(value, wanted, where)


@cache  # evaluating annotations takes longer than reading a cell
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in attrs.fields(kind)}


def _tuple(value: Any, inner: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise FormatError(f"{where}: expected a list, got {_kind(value)}")
    each = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
    if len(each) != len(value):
        raise FormatError(f"{where}: expected {len(each)} values, got {len(value)}")
    return tuple(
        _structure(item, kind, f"{where}[{i}]")
        for i, (item, kind) in enumerate(zip(value, each, strict=True))
    )


def _one_of(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    rest = [kind for kind in kinds if kind is not type(None)]
    if len(rest) == 1:
        return _structure(value, rest[0], where)
    if isinstance(value, str | int | float):
        return _scalar(value, type(value), where)
    raise FormatError(f"{where}: expected {' or '.join(kind.__name__ for kind in rest)}, got {_kind(value)}")


def _scalar(value: Any, wanted: type, where: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise FormatError(f"{where}: expected a finite number, got {value}")
    if wanted is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise FormatError(
                f"{where}: expected a number that fits a float, got {str(value)[:60]}"
            ) from None
    if type(value) is not wanted:
        raise FormatError(f"{where}: expected {wanted.__name__}, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
