"""JSON Schemas (2020-12) of attrs classes, named tuples and typed dictionaries, with meanings from docstrings."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import cleandoc
from pathlib import PurePath
from typing import Annotated, Any, Literal, NotRequired, Required, get_args, get_origin

import attrs

from compatkit.foundation.codec import key_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_FIELD = re.compile(r"(\w+): (.*)", re.DOTALL)


class Merged:
    """An object with the fields of several classes; within a class, ``Annotated[Any, Merged(...)]``.

    Attributes:
        classes: The classes; fields of a later one replace those of an earlier one.
        without: Fields that are left out.
    """

    def __init__(self, *classes: Any, without: Sequence[str] = ()) -> None:
        self.classes, self.without = classes, frozenset(without)


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema of an annotation; each class is an object without further properties.

    Args:
        kind: Annotation of JSON values: attrs classes, named tuples, typed dictionaries, and what these use.

    Raises:
        TypeError: JSON cannot express it.
    """
    if isinstance(kind, Merged):
        return _merged(kind)
    if isinstance(kind, tuple):  # one of these
        return _any_of([schema_of(option) for option in kind])
    if isinstance(kind, list):  # of one kind
        return {"type": "array", "items": schema_of(kind[0])}
    if kind is Any or kind is object:
        return {}
    if kind is None or (isinstance(kind, type) and kind in PLAIN):
        return {"type": PLAIN[type(None) if kind is None else kind]}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        own = [mark for mark in arguments[1:] if isinstance(mark, Merged | list | tuple)]
        return schema_of(own[0] if own else arguments[0])
    if origin in (Required, NotRequired):
        return schema_of(arguments[0])
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        return _any_of([schema_of(part) for part in arguments])
    if origin is tuple and arguments[-1:] != (...,):
        count = len(arguments)
        items = [schema_of(part) for part in arguments]
        return {"type": "array", "prefixItems": items, "minItems": count, "maxItems": count}
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        values = schema_of(arguments[1])
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence | set | frozenset):
        return {"type": "array", "items": schema_of(arguments[0])}
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return {"type": "string"}
    if isinstance(kind, type) and issubclass(kind, str):
        return {"type": "string"}
    if kind is dict:
        return {"type": "object"}
    if (fields := fields_of(kind)) is not None:
        return _object(kind, fields)
    raise TypeError(f"JSON has no {kind!r}")


def fields_of(kind: Any) -> dict[str, tuple[Any, bool]] | None:
    """Return annotation and presence of the fields of a class, by key; None for anything else."""
    if not isinstance(kind, type):
        return None
    if attrs.has(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return {
            key_of(field): (hints[field.name], "absent_where_default" not in field.metadata)
            for field in attrs.fields(kind)
        }
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return {name: (hint, get_origin(hint) is not NotRequired) for name, hint in hints.items()}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return {name: (hint, True) for name, hint in typing.get_type_hints(kind).items()}
    return None


@cache
def meanings(kind: type) -> dict[str, str]:
    """Return what the docstrings of a class and of its bases say of each attribute, on one line each."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__[1:]):
        found |= meanings(owner)
    text = cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
    for part in re.split(r"\n(?=    \w)", "\n" + text):
        if match := _FIELD.fullmatch(part.strip()):
            found[match[1]] = " ".join(match[2].split())
    return found


def summary(kind: type) -> str:
    """Return the first sentence of a docstring."""
    return " ".join(cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


def _object(kind: type, fields: Mapping[str, tuple[Any, bool]]) -> dict[str, Any]:
    names = {key_of(field): field.name for field in attrs.fields(kind)} if attrs.has(kind) else {}
    texts = meanings(kind)
    properties: dict[str, Any] = {}
    for key, (hint, _) in fields.items():
        meaning = texts.get(names.get(key, key), "")
        properties[key] = {**schema_of(hint), **({"description": meaning} if meaning else {})}
    return {
        "title": kind.__name__,
        "description": summary(kind),
        "type": "object",
        "properties": properties,
        "required": [key for key, (_, needed) in fields.items() if needed],
        "additionalProperties": False,
    }


def _merged(kind: Merged) -> dict[str, Any]:
    """Return an object with the properties of all; a later class replaces those of an earlier one."""
    parts = [schema_of(part) for part in kind.classes]
    properties: dict[str, Any] = {}
    required: list[str] = []
    for part in parts:
        properties |= part["properties"]
        required += part["required"]
    return {
        **parts[0],
        "properties": {key: value for key, value in properties.items() if key not in kind.without},
        "required": [key for key in dict.fromkeys(required) if key not in kind.without],
    }


def _any_of(options: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one schema for several: types in one list where no option says more."""
    flat = [entry for option in options for entry in option.get("anyOf", [option])]
    if all(option.keys() == {"type"} for option in flat):
        kinds = list(dict.fromkeys(option["type"] for option in flat))
        return {"type": kinds[0] if len(kinds) == 1 else kinds}
    return {"anyOf": flat}
