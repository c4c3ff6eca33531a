"""The header of a safetensors file, checked strictly with nothing but the standard library.

The format: 8 bytes little-endian header length, a JSON header, the tensors. The safetensors library itself
accepts duplicate header keys, names such as ``../../x`` and unknown entry fields; here all are refused.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

import attrs

from compatkit.errors import FormatError
from compatkit.registry.canonical import loads
from compatkit.registry.signatures import foreign

Buffer = bytes | bytearray | memoryview

MAX_HEADER = 100_000_000
"""Bytes; the safetensors library has the same limit."""
MAX_TENSORS = 100_000
MAX_RANK = 32
MAX_NAME = 512
DTYPES: Mapping[str, tuple[str, int]] = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "F32": ("float32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F64": ("float64", 8),
    "C64": ("complex64", 8),
}
"""Code in the file to torch's name and bytes an element. Types below one byte are not stored."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|^/|^[A-Za-z]:|(^|/)\.\.?(/|$)")
_FIELDS = {"dtype", "shape", "data_offsets"}


@attrs.frozen
class Entry:
    """One tensor of a file.

    Attributes:
        dtype: Code in the file, ``"F32"``.
        shape: Elements along each axis; empty for a scalar.
        start: First byte, counted from the beginning of the file.
        stop: First byte after it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@attrs.frozen
class Header:
    """A checked header: tensors in the order of their bytes, and the metadata (at most strings)."""

    tensors: tuple[Entry, ...]
    metadata: Mapping[str, str]


def check_header(data: Buffer) -> Header:
    """Check that ``data`` is a whole, unambiguous safetensors file and return what it holds.

    Nothing is allocated by sizes that the file merely claims.

    Raises:
        FormatError: Another format (named), truncated, trailing bytes, header too long or not strict JSON,
            duplicate or unsafe names, unknown dtype, sizes that do not match, overlaps, holes.
    """
    view = memoryview(data).cast("B")
    if kind := foreign(bytes(view[:512])):
        raise FormatError(f"expected a safetensors file, got {kind}")
    if len(view) < 8:
        raise FormatError(f"safetensors: a file has at least 8 bytes, got {len(view)}: truncated or empty.")
    length = int.from_bytes(view[:8], "little")
    if not 2 <= length <= min(MAX_HEADER, len(view) - 8):
        raise FormatError(
            f"safetensors: the header claims {length} bytes, where 2 to {MAX_HEADER} are allowed and the "
            f"file has {len(view) - 8} after its length: truncated, or no safetensors file."
        )
    raw = view[8 : 8 + length]
    if raw[0] != ord("{"):
        raise FormatError(
            "safetensors: the header must begin with '{': no safetensors file, or one with padding."
        )
    content = loads(raw, what="safetensors header", max_bytes=MAX_HEADER, max_depth=4)
    meta = _metadata(content.pop("__metadata__", {}))
    if len(content) > MAX_TENSORS:
        raise FormatError(
            f"safetensors: at most {MAX_TENSORS} tensors are read, the header lists {len(content)}."
        )
    base = 8 + length
    entries = sorted(
        (_entry(name, value, base) for name, value in content.items()), key=lambda one: (one.start, one.stop)
    )
    _check_cover(entries, base, len(view))
    return Header(tuple(entries), meta)


def check_tensor_name(name: str) -> None:
    """Refuse a tensor name that could be a path, hide a twin, or upset a terminal.

    Raises:
        FormatError: Empty, ``__metadata__``, control characters, path-like, too long, or not in NFC.
    """
    if not isinstance(name, str) or not name or name == "__metadata__" or _UNSAFE.search(name):
        raise FormatError(
            f"tensor name {name!r:.100} is not safe: no empty name, '__metadata__', control character, "
            "backslash, absolute path or '..' part; rename the parameter."
        )
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise FormatError(f"tensor name {name!r:.100} holds half a surrogate pair.") from None
    if size > MAX_NAME:
        raise FormatError(f"tensor name {name[:40]!r}... has {size} bytes; at most {MAX_NAME} are allowed.")
    if not unicodedata.is_normalized("NFC", name):
        raise FormatError(
            f"tensor name {name!r} is not in Unicode's composed form (NFC), so that twins could hide."
        )


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise FormatError(
            "safetensors: __metadata__ must map strings to strings, got "
            f"{json.dumps(value, default=repr)[:100]}."
        )
    return value


def _entry(name: str, value: Any, base: int) -> Entry:
    check_tensor_name(name)
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        got = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise FormatError(
            f"safetensors: {name!r} must have exactly dtype, shape and data_offsets, got {got!r:.200}."
        )
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise FormatError(f"safetensors: {name!r} has dtype {code!r:.40}; known are {', '.join(DTYPES)}.")
    if not _counts(shape) or len(shape) > MAX_RANK:
        raise FormatError(
            f"safetensors: {name!r} has shape {shape!r:.80}; expected at most {MAX_RANK} whole numbers."
        )
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError(f"safetensors: {name!r} has data_offsets {offsets!r:.80}; expected [begin, end].")
    size = DTYPES[code][1]
    for length in shape:
        size *= length
    if size != offsets[1] - offsets[0] or (size == 0 and any(length > 2**40 for length in shape)):
        raise FormatError(
            f"safetensors: {name!r} of {code} {shape!r:.80} needs {size!s:.40} bytes, its data_offsets give "
            f"{offsets[1] - offsets[0]}."
        )
    return Entry(name, code, tuple(shape), base + offsets[0], base + offsets[1])


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and 0 <= one < 2**63 for one in value)


def _check_cover(entries: list[Entry], base: int, total: int) -> None:
    reached, before = base, "the header"
    for one in entries:
        if one.start != reached:
            fault = "overlaps" if one.start < reached else "leaves a hole after"
            raise FormatError(
                f"safetensors: {one.name!r} {fault} {before}: begins at {one.start}, expected {reached}."
            )
        reached, before = one.stop, repr(one.name)
    if reached != total:
        fault = "is truncated" if total < reached else "has trailing bytes"
        raise FormatError(
            f"safetensors: the file {fault}: the header describes {reached} bytes, the file has {total}."
        )
