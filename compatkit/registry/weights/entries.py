"""One tensor in the header of a safetensors file: its name, dtype, shape and place, each checked strictly."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import attrs

from compatkit.contracts.codec import structure
from compatkit.errors import FormatError

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

_UNSEEN = frozenset(["Cc", "Cf", "Cs", "Zl", "Zp"])
"""Categories of characters that move the cursor, turn the writing around, or are not seen at all."""
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|^/|^[A-Za-z]:|(^|/)\.\.?(/|$)")


@attrs.frozen
class _Stated:
    """One tensor as the header states it."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


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


def check_tensor_name(name: str) -> None:
    """Raise if a tensor name could be a path, hide a twin, or upset a terminal.

    Raises:
        FormatError: Empty, ``__metadata__``, control or invisible characters, path-like, too long, or not in NFC.
    """
    if not isinstance(name, str) or not name or name == "__metadata__" or _UNSAFE.search(name):
        fault = "is not safe: no empty name, '__metadata__', control character, backslash, absolute path or '..' part"
    elif len(name.encode("utf-8", "surrogatepass")) > MAX_NAME:
        fault = f"has {len(name)} characters; at most {MAX_NAME} bytes are allowed"
    elif name.isascii():
        return
    elif not unicodedata.is_normalized("NFC", name):
        fault = "is not in Unicode's composed form (NFC), so that twins could hide"
    elif any(unicodedata.category(one) in _UNSEEN for one in name):
        fault = "holds a character that cannot be seen or that turns the writing around"
    else:
        return
    raise FormatError(f"tensor name {name!a:.100} {fault}; rename the parameter.")


def entries_of(content: Mapping[str, Any], base: int) -> list[Entry]:
    """Return the tensors of a header, in the order of their bytes.

    Args:
        content: What the header says, without its metadata.
        base: Where the tensors begin, in bytes from the beginning of the file.

    Raises:
        FormatError: Unsafe name, unknown or missing fields, unknown dtype, sizes that do not match.
    """
    for name in content:
        check_tensor_name(name)
    found: Mapping[str, _Stated] = structure(Mapping[str, _Stated], content, "safetensors")
    return sorted(
        (_entry(name, one, base) for name, one in found.items()), key=lambda one: (one.start, one.stop)
    )


def _entry(name: str, stated: _Stated, base: int) -> Entry:
    code, shape, (begin, end) = stated.dtype, stated.shape, stated.data_offsets
    if code not in DTYPES:
        raise FormatError(f"safetensors: {name!r} has dtype {code!r:.40}; known are {', '.join(DTYPES)}.")
    if len(shape) > MAX_RANK or min(begin, end, *shape) < 0 or max(begin, end, *shape) >= 2**63:
        raise FormatError(
            f"safetensors: {name!r} has shape {shape!r:.80} and data_offsets {begin!r:.40} to {end!r:.40}; expected "
            f"numbers from 0, below 2**63, and at most {MAX_RANK} axes."
        )
    size = DTYPES[code][1] * prod(shape)
    if size != end - begin:
        raise FormatError(
            f"safetensors: {name!r} of {code} {shape!r:.80} needs {size!s:.40} bytes, its data_offsets give "
            f"{end - begin}."
        )
    if size == 0 and (max(shape) > 2**40 or DTYPES[code][1] * prod(filter(None, shape)) >= 2**63):
        raise FormatError(
            f"safetensors: {name!r} of {code} {shape!r:.80} needs 0 bytes, and its other lengths are beyond any "
            "tensor: at most 2**40 each, and below 2**63 bytes together."
        )
    return Entry(name, code, shape, base + begin, base + end)


def check_cover(entries: Sequence[Entry], base: int, total: int) -> None:
    """Check that entries, in the order of their bytes, cover a file from ``base`` to its end.

    Raises:
        FormatError: Overlap, hole, truncated file, trailing bytes.
    """
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
