"""JSON to attrs classes and back, driven by their annotations, with the path of whatever does not fit."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin

import attrs

from compatkit.contracts.places import Place, told
from compatkit.errors import FormatError

Read = Callable[[Any, Place], Any]
PLAIN = (str, int, float, bool, type(None))


def structure(kind: Any, value: Any, path: str) -> Any:
    """Return the JSON ``value`` as ``kind``, an attrs class or any annotation that one uses.

    Fields with a default may be absent; unknown fields are refused.

    Raises:
        FormatError: With the path, what was expected there and what came.
    """
    return _reader(kind)(value, path)


def unstructure(value: Any) -> Any:
    """Return ``value`` as JSON values: attrs classes as objects with every field, tuples as lists.

    A field with ``metadata={"absent_where_default": True}`` is left out where it has its default, so that what was
    written before there was such a field keeps its bytes.
    """
    if type(value) in PLAIN:
        return value
    if attrs.has(type(value)):
        names, floats, optional = _fields(type(value))
        return {
            name: _floats(unstructure(getattr(value, name)))
            if name in floats
            else unstructure(getattr(value, name))
            for name in names
            if name not in optional or getattr(value, name) != optional[name]
        }
    if isinstance(value, (list, tuple)):
        return [unstructure(item) for item in value]
    if isinstance(value, Mapping):
        return {key: unstructure(item) for key, item in value.items()}
    return value


@cache
def _reader(kind: Any) -> Read:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value, place: value
    if kind in (str, int, float, bool):
        return _scalar(kind)
    if origin is Literal:
        return _literal(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin is Mapping:
        return _mapping(_reader(arguments[1]))
    if origin in (types.UnionType, typing.Union):
        return _union(arguments)
    if attrs.has(kind):
        return _class(kind)
    raise TypeError(f"cannot read {kind} from JSON")


def _wrong(place: Place, expected: str, value: Any) -> FormatError:
    return FormatError(f"{told(place)}: expected {expected}, got {value!r:.100}.")


def _scalar(kind: type) -> Read:
    named = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[kind]

    def read(value: Any, place: Place) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            try:
                return float(value)
            except OverflowError:
                raise _wrong(place, "a number that fits a float", value) from None
        raise _wrong(place, named, value)

    return read


def _literal(choices: tuple[Any, ...]) -> Read:
    def read(value: Any, place: Place) -> Any:
        if isinstance(value, str) and value in choices:
            return value
        raise _wrong(place, "one of " + ", ".join(map(repr, choices)), value)

    return read


def _tuple(arguments: tuple[Any, ...]) -> Read:
    if arguments[-1] is Ellipsis:
        item = _reader(arguments[0])

        def read_any(value: Any, place: Place) -> Any:
            if not isinstance(value, list):
                raise _wrong(place, "a list", value)
            return tuple(item(one, (place, index)) for index, one in enumerate(value))

        return read_any
    items = [_reader(argument) for argument in arguments]

    def read_fixed(value: Any, place: Place) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            raise _wrong(place, f"a list of {len(items)}", value)
        return tuple(
            item(one, (place, index)) for index, (item, one) in enumerate(zip(items, value, strict=True))
        )

    return read_fixed


def _mapping(item: Read) -> Read:
    def read(value: Any, place: Place) -> Any:
        if not isinstance(value, dict):
            raise _wrong(place, "an object", value)
        return {key: item(one, (place, key)) for key, one in value.items()}

    return read


def _union(arguments: tuple[Any, ...]) -> Read:
    by_type: dict[type, Read] = {}
    for argument in arguments:
        if argument is types.NoneType:
            by_type[types.NoneType] = lambda value, place: None
            continue
        origin = get_origin(argument)
        json_type = {tuple: list, Mapping: dict}.get(origin) or (dict if attrs.has(argument) else argument)
        by_type[json_type] = _reader(argument)
    names = {types.NoneType: "null", int: "a whole number", str: "text", dict: "an object", list: "a list"}
    expected = " or ".join(names.get(one, one.__name__) for one in by_type)

    def read(value: Any, place: Place) -> Any:
        reader = by_type.get(type(value))
        if reader is None:
            raise _wrong(place, expected, value)
        return reader(value, place)

    return read


def _class(kind: Any) -> Read:
    hints = typing.get_type_hints(kind)
    fields = {field.name: _reader(hints[field.name]) for field in attrs.fields(kind)}
    required = {field.name for field in attrs.fields(kind) if field.default is attrs.NOTHING}

    def read(value: Any, place: Place) -> Any:
        if not isinstance(value, dict):
            raise _wrong(place, "an object", value)
        if unknown := value.keys() - fields.keys():
            raise FormatError(
                f"{told(place)}: unknown field {min(unknown)!r:.100}; known are {', '.join(fields)}. A newer compatkit "
                "may have written it; other programs keep their values under 'extensions'."
            )
        if missing := required - value.keys():
            raise FormatError(f"{told(place)}: the field {min(missing)!r} is missing.")
        read_fields = {name: fields[name](one, (place, name)) for name, one in value.items()}
        try:
            return kind(**read_fields)
        except FormatError as error:
            raise FormatError(f"{told(place)}.{error}") from None

    return read


@cache
def _fields(kind: Any) -> tuple[tuple[str, ...], frozenset[str], Mapping[str, Any]]:
    """Return all fields of a class, those that hold floats, and the defaults of those that may be absent."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in attrs.fields(kind)}
    floats = frozenset(name for name in fields if hints[name] in (float, tuple[float, ...]))
    optional = {
        name: field.default for name, field in fields.items() if "absent_where_default" in field.metadata
    }
    return tuple(fields), floats, optional


def _floats(value: Any) -> Any:
    # an equal manifest must have equal bytes: a mean given as 0 is written as 0.0
    if isinstance(value, list):
        return [_floats(item) for item in value]
    if type(value) is not int:
        return value
    try:
        return float(value)
    except OverflowError:
        return value  # reading it back refuses it, and says where it stands
