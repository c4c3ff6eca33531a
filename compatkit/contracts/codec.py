"""Canonical JSON, its strict reader, and attrs classes as JSON: one value has one sequence of bytes.

``dumps`` and ``loads`` turn JSON values into bytes and back, ``unstructure`` and ``structure`` attrs classes into JSON
values and back, driven by their annotations.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import types
import typing
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Literal, NoReturn, TypeAlias, get_args, get_origin

import attrs

from compatkit.errors import FormatError

Place: TypeAlias = "str | tuple[Place, str | int]"
"""The name of a document, or a place with the key or index of what stands in it.

Text that grew with every step would cost its whole length again for each of millions of values.
"""
LONGEST_KEY = 80
"""Characters that are told of a key."""


def told(place: Place) -> str:
    """Return a place in words: ``"manifest.contract.data.labels[3]"``."""
    steps: list[str] = []
    while not isinstance(place, str):
        place, step = place
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step:.{LONGEST_KEY}}")
    return place + "".join(reversed(steps))


MAX_BYTES = 64 * 2**20
"""Largest JSON document that is read, in bytes."""
MAX_DEPTH = 100
"""Deepest nesting of lists and objects that is written or read."""
MAX_VALUES = 1_000_000
"""Most commas and opening brackets in one document: the memory of an empty list is 30 times its two bytes."""
MAX_KEY = 512
"""Longest key, in characters: it is told again for each of the values below it."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONG = re.compile(rf'"[^"]{{{MAX_KEY + 1}}}')


class _Refused(Exception):
    """Says what the strict reader does not take."""


def digest(data: bytes | bytearray | memoryview) -> str:
    """Return ``"sha256:<64 hex digits>"`` of ``data``."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def is_digest(value: object) -> bool:
    """Tell whether ``value`` is ``sha256:`` and 64 lower-case hex digits."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def dumps(value: Any) -> bytes:
    """Return the canonical JSON of ``value``: sorted keys, NFC, compact, UTF-8, one newline at the end.

    Raises:
        FormatError: The value holds NaN, infinity, a key that is no string, two keys that are the same
            in NFC, a lone surrogate, nesting beyond 100, or something JSON cannot express.
    """
    plain = _plain(value, "value", 0)
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def loads(
    data: bytes | bytearray | memoryview,
    *,
    what: str,
    max_bytes: int = MAX_BYTES,
    max_depth: int = MAX_DEPTH,
    max_values: int = MAX_VALUES,
    any_key: bool = False,
) -> Any:
    """Read JSON strictly.

    Args:
        data: UTF-8 bytes.
        what: What the bytes are, for messages: ``"manifest sha256:..."``.
        max_bytes: Larger documents are refused before they are parsed.
        max_depth: Deeper documents are refused.
        max_values: Documents with more commas and opening brackets are refused before they are parsed.
        any_key: Whether keys may be longer than 512 characters.

    Raises:
        FormatError: Not UTF-8, not JSON, duplicate keys, NaN, infinity or minus zero, lone surrogates, too large,
            too deep, too many values, a key too long.
    """
    if len(data) > max_bytes:
        raise FormatError(f"{what}: at most {max_bytes} bytes of JSON are read, got {len(data)}.")
    if len(data) == 0:
        raise FormatError(f"{what}: expected JSON, got an empty file.")
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{what}: expected UTF-8, got byte {error.start} that is none.") from None
    _check_count(text, what, max_values)
    try:
        value = (_WATCHFUL if "-0" in text else _READER).decode(text)
    except _Refused as error:
        raise FormatError(f"{what}: {error}") from None
    except RecursionError:
        raise FormatError(f"{what}: nested deeper than {max_depth} levels.") from None
    except ValueError as error:  # JSONDecodeError, or an integer of thousands of digits
        raise FormatError(f"{what}: not valid JSON: {error}.") from None
    # most documents hold no text so long that it could be such a key
    longest = MAX_KEY if not any_key and _LONG.search(text) else None
    # fewer brackets than levels cannot be nested too deep
    if longest is not None or text.count("[") + text.count("{") > max_depth:
        _check_depth(value, what, max_depth, longest)
    if "\\ud" in text or "\\uD" in text:  # only an escape can bring a surrogate into UTF-8
        _check_surrogates(value, what)
    return value


def _plain(value: Any, place: Place, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FormatError(f"{told(place)}: JSON has no {value}; only finite numbers can be stored.")
        return value
    if depth >= MAX_DEPTH:
        raise FormatError(f"{told(place)}: nested deeper than {MAX_DEPTH} levels.")
    if isinstance(value, (list, tuple)):
        return [_plain(item, (place, index), depth + 1) for index, item in enumerate(value)]
    if hasattr(value, "items"):
        return _object(value, place, depth)
    raise FormatError(f"{told(place)}: expected a JSON value, got {type(value).__name__}: {value!r:.80}.")


def _object(value: Any, place: Place, depth: int) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise FormatError(f"{told(place)}: keys must be strings, got {key!r:.80} ({type(key).__name__}).")
        name = _text(key, place)
        if name in plain:
            raise FormatError(
                f"{told(place)}: two keys become {name!r:.80} in Unicode's composed form (NFC); rename one."
            )
        plain[name] = _plain(item, (place, name), depth + 1)
    return plain


def _text(value: str, place: Place) -> str:
    if value.isascii():
        return str(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FormatError(
            f"{told(place)}: {value!r:.80} holds half a surrogate pair, which UTF-8 cannot store."
        ) from None
    return unicodedata.normalize("NFC", value)


def _check_count(text: str, what: str, most: int) -> None:
    # those inside strings are counted too: finding the strings would take longer than reading the document
    count = text.count(",") + text.count("[") + text.count("{")
    if count > most:
        raise FormatError(f"{what}: at most {most} commas and opening brackets are read, there are {count}.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise _Refused(f"the key {twice!r:.80} appears twice in one object.")
    return built


def _constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is not JSON; only finite numbers are read.")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused(f"the number {text:.40} does not fit a float.")
    return number


def _whole(text: str) -> int:
    if text == "-0":
        raise _Refused("-0 is a whole number to some readers and a fraction to others; write 0.")
    return int(text)


_HOOKS: Any = {"object_pairs_hook": _unique, "parse_constant": _constant, "parse_float": _finite}
_READER, _WATCHFUL = json.JSONDecoder(**_HOOKS), json.JSONDecoder(**_HOOKS, parse_int=_whole)


def _check_depth(value: Any, what: str, max_depth: int, max_key: int | None) -> None:
    level = _inside([value])
    for _ in range(max_depth):
        if not level:
            return
        if max_key is not None:
            _check_keys(level, what, max_key)
        level = _inside(item for one in level for item in (one.values() if type(one) is dict else one))
    if level:
        raise FormatError(f"{what}: nested deeper than {max_depth} levels.")


def _check_keys(values: Iterable[Any], what: str, most: int) -> None:
    for one in values:
        long = next((key for key in one if len(key) > most), None) if type(one) is dict else None
        if long is not None:
            raise FormatError(
                f"{what}: a key has {len(long)} characters, at most {most} are read: {long!r:.80}."
            )


def _inside(values: Iterable[Any]) -> list[Any]:
    return [one for one in values if (kind := type(one)) is dict or kind is list]


def _check_surrogates(value: Any, what: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise FormatError(f"{what}: a string holds half a surrogate pair.") from None


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
