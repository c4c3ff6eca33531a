"""Values of a recipe against the types of what they become, so that a wrong one is named before the work."""

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

_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def check_values(
    kind: type, given: Mapping[str, Any], where: str, *, later: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the arguments of the attrs class ``kind``, lists made tuples where it wants tuples.

    Args:
        kind: Its annotations say which values are usable.
        given: As TOML has them.
        where: File and table, for messages.
        later: Keys that are left out for now, and added when their values are made.

    Raises:
        UsageError: A key is unknown, a needed one missing, a value of another type or no finite number, or a
            number below zero.
    """
    fields = {field.name: field for field in attrs.fields(kind)}
    only(given, fields, where)
    needed = [name for name, field in fields.items() if field.default is attrs.NOTHING and name not in later]
    missing = [name for name in needed if name not in given]
    if missing:
        raise UsageError(f"{where} lacks {', '.join(missing)}.")
    hints = get_type_hints(kind) | {
        name: field.metadata["written"] for name, field in fields.items() if "written" in field.metadata
    }
    values = {}
    for name, value in given.items():
        value = tuple(value) if isinstance(value, list) else value
        if not fits(value, hints[name]):
            raise UsageError(
                f"{where}: {name} must be {_said(hints[name])}, got {given[name]!r:.100}.{_near(value, hints[name])}"
            )
        if isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value < math.inf:
            raise UsageError(f"{where}: {name} must be finite and not negative, got {value}.")
        values[name] = value
    return values


def only(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Refuse keys that are not known; suggest near ones.

    Raises:
        UsageError: A key is unknown.
    """
    names = list(known)
    for key in table:
        if key not in names:
            raise UsageError(
                f"{where} has the unknown key {key!r}.{suggestion(key, names)} Known are {', '.join(names)}."
            )


def called(entry: Mapping[str, Any], file: Path) -> str:
    """Return what a task is called in messages."""
    return f"{file}: task {entry.get('name', '(without a name)')}"


def made(kind: type, settings: Mapping[str, Any], where: str) -> Any:
    """Return ``kind`` with settings whose names and types were compared with its fields.

    Raises:
        UsageError: A setting does not fit.
    """
    settings = check_values(kind, settings, where)
    try:
        return kind(**settings)
    except (TypeError, ValueError, UsageError) as error:
        if isinstance(error, UsageError) and type(error) is not UsageError:
            raise  # it says more by its kind
        raise UsageError(f"{where}: {error.args[0] if error.args else error}") from error


def _said(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (Union, types.UnionType):
        said = [_said(one) for one in arguments if one is not type(None)]
        return " or ".join(dict.fromkeys(filter(None, said)))
    if origin is tuple:
        count = "" if arguments[1:] == (...,) else f" of {len(arguments)}"
        return f"a list{count}, each {_said(arguments[0])}"
    if origin is not None:
        return "a table" if isinstance(origin, type) and issubclass(origin, Mapping) else ""
    return _WORDS.get(hint, "")


def _near(value: Any, hint: Any) -> str:
    choices = [
        one for part in (hint, *get_args(hint)) if get_origin(part) is Literal for one in get_args(part)
    ]
    return suggestion(value, choices) if isinstance(value, str) else ""
