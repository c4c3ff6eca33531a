"""Canonical JSON: one value, one sequence of bytes; and a strict reader that refuses what is ambiguous."""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from typing import Any, NoReturn

from compatkit.errors import FormatError

MAX_BYTES = 64 * 2**20
"""Largest JSON document that is read, in bytes."""
MAX_DEPTH = 100
"""Deepest nesting of lists and objects that is written or read."""


def digest(data: bytes | bytearray | memoryview) -> str:
    """Return ``"sha256:<64 hex digits>"`` of ``data``."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


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
    data: bytes | bytearray | memoryview, *, what: str, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH
) -> Any:
    """Read JSON strictly.

    Args:
        data: UTF-8 bytes.
        what: What the bytes are, for messages: ``"manifest sha256:..."``.
        max_bytes: Larger documents are refused before they are parsed.
        max_depth: Deeper documents are refused.

    Raises:
        FormatError: Not UTF-8, not JSON, duplicate keys, NaN or infinity, lone surrogates, too large or deep.
    """
    if len(data) > max_bytes:
        raise FormatError(f"{what}: at most {max_bytes} bytes of JSON are read, got {len(data)}.")
    if len(data) == 0:
        raise FormatError(f"{what}: expected JSON, got an empty file.")
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{what}: expected UTF-8, got byte {error.start} that is none.") from None
    try:
        value = json.loads(
            text, object_pairs_hook=_unique(what), parse_constant=_constant(what), parse_float=_finite(what)
        )
    except RecursionError:
        raise FormatError(f"{what}: nested deeper than {max_depth} levels.") from None
    except ValueError as error:  # JSONDecodeError, or an integer of thousands of digits
        raise FormatError(f"{what}: not valid JSON: {error}.") from None
    _check_depth(value, what, max_depth)
    if "\\ud" in text or "\\uD" in text:  # only an escape can bring a surrogate into UTF-8
        _check_surrogates(value, what)
    return value


def _plain(value: Any, path: str, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FormatError(f"{path}: JSON has no {value}; only finite numbers can be stored.")
        return value
    if depth >= MAX_DEPTH:
        raise FormatError(f"{path}: nested deeper than {MAX_DEPTH} levels.")
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if hasattr(value, "items"):
        return _object(value, path, depth)
    raise FormatError(f"{path}: expected a JSON value, got {type(value).__name__}: {value!r:.80}.")


def _object(value: Any, path: str, depth: int) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise FormatError(f"{path}: keys must be strings, got {key!r} ({type(key).__name__}).")
        name = _text(key, path)
        if name in plain:
            raise FormatError(
                f"{path}: two keys become {name!r} in Unicode's composed form (NFC); rename one."
            )
        plain[name] = _plain(item, f"{path}.{name}", depth + 1)
    return plain


def _text(value: str, path: str) -> str:
    if value.isascii():
        return str(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FormatError(
            f"{path}: {value!r:.80} holds half a surrogate pair, which UTF-8 cannot store."
        ) from None
    return unicodedata.normalize("NFC", value)


def _unique(what: str) -> Any:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))
            raise FormatError(f"{what}: the key {twice!r:.80} appears twice in one object.")
        return built

    return build


def _constant(what: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise FormatError(f"{what}: {name} is not JSON; only finite numbers are read.")

    return refuse


def _finite(what: str) -> Any:
    def parse(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise FormatError(f"{what}: the number {text:.40} does not fit a float.")
        return number

    return parse


def _check_depth(value: Any, what: str, max_depth: int) -> None:
    level: list[Any] = [value]
    for _ in range(max_depth):
        level = [
            item
            for one in level
            if isinstance(one, (dict, list))
            for item in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    if any(isinstance(one, (dict, list)) for one in level):
        raise FormatError(f"{what}: nested deeper than {max_depth} levels.")


def _check_surrogates(value: Any, what: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise FormatError(f"{what}: a string holds half a surrogate pair.") from None
