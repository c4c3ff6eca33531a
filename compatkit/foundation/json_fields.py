"""How attrs classes stand in JSON: keys, kinds and defaults of their fields, and what decodes them.

A field with ``metadata={"key": "licence"}`` has that key in JSON, so that documents keep their bytes where a field gets
another name. One with ``metadata={"absent_where_default": True}`` is omitted if it has its default, so that documents
written before the field existed keep theirs.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from functools import cache, reduce
from operator import attrgetter, or_
from typing import Annotated, Any, Literal, get_args, get_origin

import attrs


def key_of(field: attrs.Attribute[Any]) -> str:
    """Return the key that a field has in documents: its ``metadata["key"]``, else its name."""
    return field.metadata.get("key", field.name)


@cache
def written_fields(kind: Any) -> tuple[list[str], Callable[[Any], Any], dict[str, Any]]:
    """Return the keys of all fields, a getter of their values, and the defaults of those that may be omitted."""
    fields = sorted(attrs.fields(kind), key=key_of)
    optional = {key_of(field): field.default for field in fields if "absent_where_default" in field.metadata}
    # attrgetter of a single name returns no tuple, so a second name is added
    return (
        [key_of(field) for field in fields],
        attrgetter(*(field.name for field in fields), "__class__"),
        optional,
    )


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the annotations of all fields of an attrs class, by key."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {key_of(field): hints[field.name] for field in attrs.fields(kind)}


@cache
def float_keys(kind: Any) -> frozenset[str]:
    """Return the keys of the fields that hold floats."""
    floats = (float, tuple[float, ...])
    return frozenset(key for key, hint in hints_of(kind).items() if _without_limits(hint) in floats)


def _without_limits(hint: Any) -> Any:
    """Return an annotation without ``Annotated``."""
    if get_origin(hint) is Annotated:
        return _without_limits(get_args(hint)[0])
    return tuple[tuple(map(_without_limits, get_args(hint)))] if get_origin(hint) is tuple else hint


@cache
def readable(kind: Any) -> Any:
    """Return an annotation that msgspec can decode; to msgspec, the key of a field is its name.

    An attrs class with other keys, or with fields of such a class, becomes a subclass whose fields are named after the
    keys and use the same slots. Decoded instances are then made instances of ``kind``.
    """
    if not attrs.has(kind):
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return Annotated[(readable(arguments[0]), *arguments[1:])]
        parts = tuple(map(readable, arguments))
        if parts == arguments or origin is Literal:
            return kind
        return reduce(or_, parts) if origin in (types.UnionType, typing.Union) else origin[parts]
    fields = attrs.fields(kind)
    decoded = {key: readable(hint) for key, hint in hints_of(kind).items()}
    if decoded == hints_of(kind) and all("key" not in field.metadata for field in fields):
        return kind

    def finish(value: Any) -> None:
        object.__setattr__(value, "__class__", kind)
        if hasattr(kind, "__attrs_post_init__"):
            value.__attrs_post_init__()

    members = {
        **{key_of(field): getattr(kind, field.name) for field in fields},
        "__slots__": (),
        "__annotations__": decoded,
        "__attrs_attrs__": tuple(field.evolve(name=key_of(field)) for field in fields),
        "__attrs_post_init__": finish,
    }
    return type(kind.__name__, (kind,), members)


@cache
def decoder_of(kind: Any) -> Any:
    """Return a msgspec decoder of an annotation."""
    import msgspec

    return msgspec.json.Decoder(readable(kind))
