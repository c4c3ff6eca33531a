"""Check values of a recipe against the annotations of attrs classes."""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from compatkit.errors import UsageError
from compatkit.plugins.isolation import suggestion
from compatkit.plugins.settings import fits

_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


def check_values(
    kind: type, table: Mapping[str, Any], where: str, *, later: Iterable[str] = ()
) -> dict[str, Any]:
    """Return arguments for the attrs class ``kind``; lists become tuples.

    Args:
        kind: Attrs class.
        table: Values as parsed from TOML.
        where: File and table, for messages.
        later: Required keys that may be missing, as they are added later.

    Raises:
        UsageError: A key is unknown or missing, or a value has the wrong type, is not finite, or is negative.
    """
    fields = {field.name: field for field in attrs.fields(kind)}
    check_keys(table, fields, where)
    required = [
        name for name, field in fields.items() if field.default is attrs.NOTHING and name not in later
    ]
    missing = [name for name in required if name not in table]
    if missing:
        raise UsageError(f"{where} lacks {', '.join(missing)}.")
    hints = get_type_hints(kind) | {
        name: field.metadata["written"] for name, field in fields.items() if "written" in field.metadata
    }
    values = {}
    for name, value in table.items():
        value = tuple(value) if isinstance(value, list) else value
        if not fits(value, hints[name]):
            raise UsageError(
                f"{where}: {name} must be {_describe(hints[name])}, got {table[name]!r:.100}."
                f"{_suggest(value, hints[name])}"
            )
        if isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value < math.inf:
            raise UsageError(f"{where}: {name} must be finite and not negative, got {value}.")
        values[name] = value
    return values


def check_keys(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise if a key is unknown, with a suggestion.

    Args:
        table: Table of a recipe.
        known: Valid keys.
        where: File and table, for messages.

    Raises:
        UsageError: A key is unknown.
    """
    names = list(known)
    for key in table:
        if key not in names:
            raise UsageError(
                f"{where} has the unknown key {key!r}.{suggestion(key, names)} Known are {', '.join(names)}."
            )


def task_label(entry: Mapping[str, Any], file: Path) -> str:
    """Return file and name of a task, for messages.

    Args:
        entry: Table of the task.
        file: Recipe file.
    """
    return f"{file}: task {entry.get('name', '(without a name)')}"


def build(kind: type, settings: Mapping[str, Any], where: str) -> Any:
    """Return an instance of an attrs class after checking names and types of its settings.

    Args:
        kind: Attrs class.
        settings: Settings of the recipe.
        where: File and table, for messages.

    Raises:
        UsageError: A setting is invalid.
    """
    settings = check_values(kind, settings, where)
    try:
        return kind(**settings)
    except (TypeError, ValueError, UsageError) as error:
        if isinstance(error, UsageError) and type(error) is not UsageError:
            raise  # more specific
        raise UsageError(f"{where}: {error.args[0] if error.args else error}") from error


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (Union, types.UnionType):
        words = [_describe(part) for part in arguments if part is not type(None)]
        return " or ".join(dict.fromkeys(filter(None, words)))
    if origin is tuple:
        count = "" if arguments[1:] == (...,) else f" of {len(arguments)}"
        return f"a list{count}, each {_describe(arguments[0])}"
    if origin is not None:
        return "a table" if isinstance(origin, type) and issubclass(origin, Mapping) else ""
    return _WORDS.get(hint, "")


def _suggest(value: Any, hint: Any) -> str:
    choices = [
        choice for part in (hint, *get_args(hint)) if get_origin(part) is Literal for choice in get_args(part)
    ]
    return suggestion(value, choices) if isinstance(value, str) else ""
