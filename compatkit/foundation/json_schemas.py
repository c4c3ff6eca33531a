"""JSON Schemas (2020-12) of attrs classes, named tuples and objects of their fields, with meanings from docstrings."""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from inspect import cleandoc
from pathlib import PurePath
from typing import Annotated, Any, Literal, get_args, get_origin

import attrs

from compatkit.foundation.json_fields import key_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_FIELD = re.compile(r"(\w+): (.*)", re.DOTALL)


class Sometimes:
    """What the value of a key is where an object has the key; others lack it."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind


class Object:
    """An object with the keys of attrs classes, named tuples and other objects, and its own.

    Attributes:
        summary: What it is, in a sentence; None for that of its first part.
        parts: The classes and objects; keys of a later one replace those of an earlier one, its own replace all.
        keys: Kind and meaning of its own values; the kind alone where the meaning of a part's key stays.
        without: Keys of the parts that it lacks.
        sometimes: Keys of the parts that may be absent.
    """

    def __init__(
        self,
        *parts: Any,
        without: Collection[str] = (),
        sometimes: Collection[str] = (),
        **keys: Any,
    ) -> None:
        self.summary = next((part for part in parts if isinstance(part, str)), None)
        self.parts = [part for part in parts if not isinstance(part, str)]
        self.keys, self.without, self.sometimes = keys, frozenset(without), frozenset(sometimes)


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema of a kind of values; each class is an object without further properties.

    Args:
        kind: An annotation, of attrs classes and named tuples too; or an ``Object``, ``[kind]`` for a list,
            ``{str: kind}`` for values by any key, and ``(kind, kind)`` for one of several.

    Raises:
        TypeError: JSON cannot express it.
    """
    if isinstance(kind, Object):
        return _object(kind)
    if isinstance(kind, tuple):  # one of these
        return _any_of([schema_of(option) for option in kind])
    if isinstance(kind, list):  # of one kind
        return {"type": "array", "items": schema_of(kind[0])}
    if isinstance(kind, dict):  # by any key
        return {"type": "object", "additionalProperties": schema_of(kind[str])}
    if kind is Any or kind is object:
        return {}
    if kind is None or (isinstance(kind, type) and kind in PLAIN):
        return {"type": PLAIN[type(None) if kind is None else kind]}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
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
    if isinstance(kind, type) and issubclass(kind, str | PurePath):
        return {"type": "string"}
    if kind is dict:
        return {"type": "object"}
    if isinstance(kind, type) and (attrs.has(kind) or hasattr(kind, "_fields")):
        return _object(Object(kind))
    raise TypeError(f"JSON has no {kind!r}")


@cache
def meanings(kind: type) -> dict[str, str]:
    """Return what the docstrings of a class and of its bases say of each attribute, in a line about JSON."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__[1:]):
        found |= meanings(owner)
    text = cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
    for part in re.split(r"\n(?=    \w)", "\n" + text):
        if match := _FIELD.fullmatch(part.strip()):
            found[match[1]] = _as_json(match[2])
    return found


def summary(kind: type) -> str:
    """Return the first sentence of a docstring."""
    return _as_json(cleandoc(kind.__doc__ or "").partition("\n\n")[0])


def _as_json(text: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(text.split()).replace("``", "`"))


def _object(kind: Object) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    absent = set(kind.sometimes)
    title, described = None, kind.summary
    for part in kind.parts:
        if isinstance(part, Object):
            schema = _object(part)
            absent |= schema["properties"].keys() - schema["required"]
        else:
            of_class = dict(_properties(part, kind.without | kind.keys.keys()))
            schema = {"title": part.__name__, "description": summary(part), "properties": of_class}
            absent |= _omitted(part)
        properties |= schema["properties"]
        title, described = title or schema.get("title"), described or schema["description"]
    for key in kind.without:
        properties.pop(key, None)
    for key, value in kind.keys.items():
        meaning = properties.get(key, {}).get("description", "")
        if isinstance(value, tuple) and isinstance(value[-1], str):
            value, meaning = value
        absent.discard(key)
        if isinstance(value, Sometimes):
            absent.add(key)
            value = value.kind
        properties[key] = {**schema_of(value), "description": meaning}
    return {
        **({"title": title} if title else {}),
        "description": described or "",
        "type": "object",
        "properties": properties,
        "required": [key for key in properties if key not in absent],
        "additionalProperties": False,
    }


def _properties(kind: Any, replaced: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield key and schema of the fields of a class; of those that are replaced, only the meaning."""
    if attrs.has(kind):
        keys = {field.name: key_of(field) for field in attrs.fields(kind)}
    else:
        keys = {name: name for name in kind._fields}
    hints: dict[str, Any] = {}
    for owner in reversed(kind.__mro__):
        own = vars(owner).get("__annotations__", {})
        wanted = {name: own[name] for name in own if name in keys and keys[name] not in replaced}
        # without the others, because modules may import their types for type checkers only
        scope = types.SimpleNamespace(__annotations__=wanted)
        hints |= typing.get_type_hints(scope, vars(sys.modules[owner.__module__]), include_extras=True)
    texts = meanings(kind)
    for name, key in keys.items():
        meaning = re.sub(r"`(\w+)`", lambda word: f"`{keys.get(word[1], word[1])}`", texts.get(name, ""))
        schema = schema_of(hints[name]) if name in hints else {}
        yield key, {**schema, **({"description": meaning} if meaning else {})}


def _omitted(kind: Any) -> set[str]:
    """Return the keys of the fields that the codec omits where they have their default."""
    fields = attrs.fields(kind) if attrs.has(kind) else ()
    return {key_of(field) for field in fields if "absent_where_default" in field.metadata}


def _any_of(options: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one schema for several: types in one list where no option says more."""
    flat = [entry for option in options for entry in option.get("anyOf", [option])]
    if all(option.keys() == {"type"} for option in flat):
        kinds = list(dict.fromkeys(option["type"] for option in flat))
        return {"type": kinds[0] if len(kinds) == 1 else kinds}
    return {"anyOf": flat}
