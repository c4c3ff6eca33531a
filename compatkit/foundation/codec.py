"""Canonical JSON for attrs classes: each value has exactly one byte sequence.

``dumps`` writes JSON values and attrs classes, ``loads`` reads strict JSON, ``decode`` reads attrs classes;
``unstructure`` and ``structure`` convert attrs classes to JSON values and back. msgspec decodes fast but accepts
unknown and duplicate keys, so its result is encoded again; if the bytes differ, the strict reader locates the error.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import types
import typing
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import attrs

from compatkit.errors import FormatError
from compatkit.foundation.json_fields import decoder_of, float_keys, hints_of, readable, written_fields

JsonPath: TypeAlias = "str | tuple[JsonPath, str | int]"
"""A document name, or a pair (path of the parent, key or index of the child).

Linked pairs, because building the path as text at every level would be too slow for millions of values.
"""
LONGEST_KEY = 80
"""Characters of a key shown in messages."""
MAX_BYTES = 64 * 2**20
"""Largest JSON document that is read, in bytes."""
MAX_DEPTH = 100
"""Deepest nesting of lists and objects, on writing and reading."""
MAX_VALUES = 1_000_000
"""Largest number of commas and opening brackets: an empty list takes 30 times its two bytes in memory."""
MAX_KEY = 512
"""Longest key in characters: error paths repeat it for each value below it."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONG = re.compile(rf'"[^"]{{{MAX_KEY + 1}}}')
_SURROGATE = re.compile(r"\\u[dD]")


def digest(data: bytes | bytearray | memoryview) -> str:
    """Return ``"sha256:<64 hex digits>"`` of ``data``."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def is_digest(value: object) -> bool:
    """Return whether ``value`` is ``sha256:`` followed by 64 lower-case hex digits."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def path_text(path: JsonPath) -> str:
    """Return a path as text: ``"manifest.contract.data.labels[3]"``."""
    steps: list[str] = []
    while not isinstance(path, str):
        path, step = path
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step:.{LONGEST_KEY}}")
    return path + "".join(reversed(steps))


def dumps(value: Any) -> bytes:
    """Return the canonical JSON of ``value``: sorted keys, NFC, compact, UTF-8, one newline at the end.

    Args:
        value: JSON values or attrs classes; see ``unstructure``.

    Raises:
        FormatError: The value contains NaN, infinity, a non-string key, two keys with the same NFC form, a lone
            surrogate, nesting beyond 100 levels, or something that JSON cannot express.
    """
    try:
        return _ENCODER.encode(unstructure(value)).encode() + b"\n"
    except UnicodeEncodeError as error:
        near = error.object[max(error.start - 40, 0) : error.end]
        raise FormatError(f"{near!r} ends with a lone surrogate, which UTF-8 cannot encode.") from None


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
        what: Name of the document, for messages: ``"manifest sha256:..."``.
        max_bytes: Largest document; checked before parsing.
        max_depth: Deepest nesting.
        max_values: Largest number of commas and opening brackets; checked before parsing.
        any_key: Whether keys may be longer than 512 characters.

    Raises:
        FormatError: Not UTF-8, not JSON, duplicate keys, NaN, infinity, minus zero, lone surrogates, too large, too
            deep, too many values, or a key too long.
    """
    if len(data) > max_bytes:
        raise FormatError(f"{what}: expected at most {max_bytes} bytes of JSON, got {len(data)}.")
    if len(data) == 0:
        raise FormatError(f"{what}: expected JSON, got an empty file.")
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{what}: expected UTF-8, got an invalid byte at offset {error.start}.") from None
    if (count := _count(text)) > max_values:
        raise FormatError(f"{what}: expected at most {max_values} commas and opening brackets, got {count}.")
    try:
        value = (_WATCHFUL if "-0" in text else _READER).decode(text)
        if _SURROGATE.search(text):  # in valid UTF-8, surrogates can come only from escapes
            _ENCODER.encode(value).encode()
    except RecursionError:
        raise FormatError(f"{what}: nested deeper than {max_depth} levels.") from None
    except UnicodeEncodeError:
        raise FormatError(f"{what}: a string contains a lone surrogate.") from None
    except ValueError as error:  # JSONDecodeError, one of _HOOKS, or an integer of thousands of digits
        raise FormatError(f"{what}: not valid JSON: {error}.") from None
    _check_shape(text, what, max_depth, any_key, lambda: value)
    return value


def decode(kind: Any, data: bytes, *, what: str, max_bytes: int = MAX_BYTES) -> Any:
    """Decode strict JSON to an attrs class, with the limits of ``loads``.

    Args:
        kind: The class. Fields with a default may be absent, except ``schema``.
        data: Output of ``dumps``, or another spelling of the same value.
        what: Name of the document, for messages.
        max_bytes: Largest document; checked before parsing.

    Raises:
        FormatError: Not strict JSON, another schema, or unknown, missing or mistyped fields; the message gives the
            path, the expected and the actual value.
    """
    with suppress(FormatError):  # raised again by the strict reader, which knows the path
        if len(data) <= max_bytes:
            return decode_canonical(kind, data.removesuffix(b"\n"), depth=MAX_DEPTH)
    return structure(kind, loads(data, what=what, max_bytes=max_bytes), what)


def decode_canonical(kind: Any, data: bytes, *, depth: int = MAX_DEPTH - 2) -> Any:
    """Decode a value that is written as ``dumps`` writes it, without the newline at the end.

    Args:
        kind: An attrs class, or an annotation that one uses.
        data: The bytes.
        depth: Deepest nesting; by default that of a part of a document.

    Raises:
        FormatError: Anything else; without a reason, which ``loads`` and ``structure`` give.
    """
    import msgspec

    try:
        text = data.decode()
        if _count(text) <= MAX_VALUES and unicodedata.is_normalized("NFC", text):
            value = decoder_of(kind).decode(data)
            if _ENCODER.encode(value) == text:
                _check_shape(text, "value", depth, False, lambda: msgspec.to_builtins(value))
                return value
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"The bytes are not the canonical JSON of this kind of value: {error}.") from None
    raise FormatError("The bytes are not the canonical JSON of this kind of value.")


def structure(kind: Any, value: Any, path: str) -> Any:
    """Convert a JSON value to ``kind``, an attrs class or an annotation that one uses.

    Fields with a default may be absent, except ``schema``; unknown fields are errors.

    Args:
        kind: The annotation.
        value: JSON value.
        path: Path of the value, for messages.

    Raises:
        FormatError: The value does not fit; the message gives the path, the expected and the actual value.
    """
    if attrs.has(kind) and isinstance(value, dict) and (field := attrs.fields_dict(kind).get("schema")):
        schema = value.get("schema")
        if type(schema) is not int or schema != field.default:
            hint = (
                "; it was written by a newer compatkit, upgrade to read it" if isinstance(schema, int) else ""
            )
            raise FormatError(f"{path}.schema: expected {field.default}, got {schema!r:.40}{hint}.")
    converted = _converted(kind, value, path)
    if isinstance(value, (dict, list)):
        _check_known(value, converted, path)
    return converted


def unstructure(value: Any) -> Any:
    """Convert to JSON values: attrs classes become objects (``json_fields``), tuples lists, text NFC, keys sorted.

    Raises:
        FormatError: See ``dumps``.
    """
    return _plain(value, "value", 0, False)


def _plain(value: Any, path: JsonPath, depth: int, floats: bool) -> Any:
    if value is None or isinstance(value, (bool, int)):
        # equal manifests must have equal bytes: the mean 0 is written as 0.0
        return float(value) if floats and type(value) is int and abs(value) <= sys.float_info.max else value
    if isinstance(value, str):
        return str(value) if value.isascii() else unicodedata.normalize("NFC", value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FormatError(f"{path_text(path)}: JSON has no {value}; only finite numbers can be stored.")
        return value
    if depth >= MAX_DEPTH:
        raise FormatError(f"{path_text(path)}: nested deeper than {MAX_DEPTH} levels.")
    if isinstance(value, (list, tuple)):
        return [_plain(item, (path, index), depth + 1, floats) for index, item in enumerate(value)]
    if type(value) is not dict and attrs.has(type(value)):
        floating = float_keys(type(value))
        return {
            name: _plain(item, (path, name), depth + 1, name in floating)
            for name, item in _members(value).items()
        }
    if not hasattr(value, "items"):
        raise FormatError(
            f"{path_text(path)}: expected a JSON value, got {type(value).__name__}: {value!r:.80}."
        )
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise FormatError(
                f"{path_text(path)}: keys must be strings, got {key!r:.80} ({type(key).__name__})."
            )
        name = str(key) if key.isascii() else unicodedata.normalize("NFC", key)
        if name in plain:
            raise FormatError(
                f"{path_text(path)}: two keys become {name!r:.80} in Unicode's composed form (NFC); rename one."
            )
        plain[name] = _plain(item, (path, name), depth + 1, False)
    return dict(sorted(plain.items()))


def _members(value: Any) -> dict[str, Any]:
    """Return the values of an attrs instance to write, sorted by key."""
    keys, values, optional = written_fields(type(value))
    members = dict(zip(keys, values(value), strict=False))
    for key, default in optional.items():
        if members[key] == default:
            del members[key]
    return members


_ENCODER = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_members
)


def _count(text: str) -> int:
    # includes those inside strings: finding the strings would take longer than parsing
    return text.count(",") + text.count("[") + text.count("{")


def _check_shape(text: str, what: str, max_depth: int, any_key: bool, read: Callable[[], Any]) -> None:
    """Raise if a JSON document is nested too deep or has a key too long.

    ``read`` parses the document. It is called only if the document has enough brackets, or a string long enough, to
    exceed a limit.
    """
    check_keys = not any_key and len(text) > MAX_KEY and bool(_LONG.search(text) or '\\"' in text)
    if not check_keys and text.count("[") + text.count("{") <= max_depth:
        return
    level = _containers([read()])
    for _ in range(max_depth):
        if check_keys:
            keys = (key for container in level if type(container) is dict for key in container)
            for key in (key for key in keys if len(key) > MAX_KEY):
                raise FormatError(
                    f"{what}: a key has {len(key)} characters; the limit is {MAX_KEY}: {key!r:.80}."
                )
        level = _containers(
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
        )
        if not level:
            return
    raise FormatError(f"{what}: nested deeper than {max_depth} levels.")


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if type(value) in (dict, list, tuple)]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice!r:.80} appears twice in one object")
    return built


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text:.40} is not a finite float")
    return number


def _whole(text: str) -> int:
    if text == "-0":
        raise ValueError("-0 is a whole number to some readers and a fraction to others; write 0")
    return int(text)


_HOOKS: Any = {"object_pairs_hook": _unique, "parse_constant": _finite, "parse_float": _finite}
_READER, _WATCHFUL = json.JSONDecoder(**_HOOKS), json.JSONDecoder(**_HOOKS, parse_int=_whole)


def _check_known(value: Any, known: Any, path: JsonPath) -> None:
    """Raise if a JSON list or object contains keys that ``known``, the value decoded from it, lacks."""
    if attrs.has(type(known)):
        keys, values, _ = written_fields(type(known))
        known = dict(zip(keys, values(known), strict=False))
    if type(value) is dict and not value.keys() <= known.keys():
        unknown = min(value.keys() - known.keys())
        raise FormatError(
            f"{path_text(path)}: unknown field {unknown!r:.100}; known are {', '.join(known)}. A newer "
            "compatkit may have written it; other programs must keep their values under 'extensions'."
        )
    for step, item in value.items() if type(value) is dict else enumerate(value):
        if (kind := type(item)) is dict or kind is list:
            _check_known(item, known[step], (path, step))


def _converted(kind: Any, value: Any, path: JsonPath) -> Any:
    """Convert a JSON value to ``kind``; an error names the innermost value that does not fit."""
    import msgspec

    try:
        return msgspec.convert(value, readable(kind))
    except FormatError as error:  # raised by a validator, begins with the field name
        fault = f"{path_text(path)}.{error}"
    except msgspec.ValidationError as error:
        expected = str(error).partition(", got ")[0].replace("`", "")
        if get_origin(kind) is Literal:
            expected = "expected one of " + ", ".join(map(repr, get_args(kind)))
        fault = f"{path_text(path)}: {expected[0].lower()}{expected[1:]}, got {value!r:.100}."
    for part in _parts(kind, value, path):
        _converted(*part)
    raise FormatError(fault)


def _parts(kind: Any, value: Any, path: JsonPath) -> Iterator[tuple[Any, Any, JsonPath]]:
    """Yield the direct children of a JSON value, each with its annotation and path."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, typing.Union):
        for option in arguments:
            yield from _parts(option, value, path)
    elif isinstance(value, dict) and attrs.has(kind):
        hints = hints_of(kind)
        yield from ((hints[name], item, (path, name)) for name, item in value.items() if name in hints)
    elif isinstance(value, dict) and origin is Mapping:
        yield from ((arguments[1], item, (path, name)) for name, item in value.items())
    elif isinstance(value, list) and origin is tuple:
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        yield from (
            (item_kind, item, (path, at))
            for at, (item_kind, item) in enumerate(zip(kinds, value, strict=False))
        )
