"""Check safetensors headers strictly, with the standard library alone.

Format: header length (8 bytes, little-endian), JSON header, tensors. The safetensors library accepts duplicate header
keys, names such as ``../../x`` and unknown fields; all are refused here.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import EnvironmentFailure, FormatError, IntegrityError
from compatkit.foundation.addresses import local
from compatkit.foundation.codec import loads, structure
from compatkit.registry.os_errors import environment

Buffer = bytes | bytearray | memoryview

MAX_HEADER = 100_000_000
"""Size of a header in bytes at most, as in the safetensors library."""
MAX_TENSORS = 50_000
MAX_VALUES = 40 * MAX_TENSORS
"""Commas and opening brackets at most; a tensor needs fewer than 40."""
MAX_RANK = 32
MAX_NAME = 512
DETECTION_BYTES = 512
"""Number of first bytes to detect a file's format with."""
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
"""Torch's name and bytes per element by dtype code. Dtypes below one byte are not supported."""
_READ_ONLY = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NONBLOCKING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_INVISIBLE = frozenset(["Cc", "Cf", "Cs", "Zl", "Zp"])
"""Categories of characters that move the cursor, change the text direction or are invisible."""
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*", re.ASCII)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|^/|^[A-Za-z]:|(^|/)\.\.?(/|$)")
_PICKLE = "unpickling runs code, so compatkit never does it; save the weights as safetensors"
_CONVERT = "convert its weights to safetensors."
_NO_WEIGHTS = "which holds no weights."
_MAGIC = {
    b"PK\x03\x04": f"a zip archive, which is what torch.save writes ({_PICKLE}).",
    b"version https://git-lfs": "a git-lfs pointer, not the file itself; run `git lfs pull`.",
    b"\x89HDF\r\n": f"an HDF5 file; {_CONVERT}",
    b"GGUF": f"a GGUF file; {_CONVERT}",
    b"\x93NUMPY": f"a NumPy array; {_CONVERT}",
    b"\x1f\x8b": "a gzip archive; unpack it first.",
    b"\x89PNG\r\n\x1a\n": f"a PNG picture, {_NO_WEIGHTS}",
    b"\xff\xd8\xff": f"a JPEG picture, {_NO_WEIGHTS}",
    b"GIF8": f"a GIF picture, {_NO_WEIGHTS}",
    b"%PDF": f"a PDF document, {_NO_WEIGHTS}",
}
"""Description of a file by its first bytes, and advice."""
_TEXT = re.compile(rb"[\t\n\r -~]{8}")


@attrs.frozen
class TensorEntry:
    """Tensor of a file.

    Attributes:
        name: Name of the tensor.
        dtype: Dtype code, such as ``"F32"``.
        shape: Length of each axis; empty for a scalar.
        start: Offset of the first byte in the file.
        stop: Offset after the last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@attrs.frozen
class Header:
    """Checked header of a file.

    Attributes:
        tensors: Tensors in the order of their bytes.
        metadata: Strings by key.
        start: Offset of the tensors in the file.
        size: Size of the file in bytes.
    """

    tensors: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]
    start: int
    size: int


def check_header(data: Buffer) -> Header:
    """Check that bytes are a complete, unambiguous safetensors file, and return the header.

    Memory use does not depend on the sizes in the header.

    Args:
        data: Bytes of the file.

    Raises:
        FormatError: Another format (named), truncated, trailing bytes, header too long or not strict JSON,
            duplicate or unsafe names, unknown dtype, inconsistent sizes, overlaps, or gaps.
    """
    view = memoryview(data).cast("B")
    length = _length(bytes(view[:DETECTION_BYTES]), len(view))
    return _parse(view[8 : 8 + length], len(view))


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read and check the header of a safetensors file, as ``check_header`` does.

    Args:
        path: Path of the file; links are followed, pipes and devices are not opened.

    Raises:
        FormatError: See ``check_header``; or the path is a directory, pipe, socket or device.
        IntegrityError: The file changed while it was read.
        EnvironmentFailure: No such file, no read permission, or the device failed.
    """
    with _checked(path) as (_, header):
        return header


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """Return all bytes of a safetensors file after checking its header; see ``read_header``."""
    with _checked(path) as (file, header):
        file.seek(0)
        return _read_exactly(file, header.size, Path(path))


@contextmanager
def _checked(path: str | os.PathLike[str]) -> Iterator[tuple[io.FileIO, Header]]:
    """Open a safetensors file and check its header."""
    location = Path(local(path, "a file of weights"))
    try:
        with environment("read", location), open_regular(location) as (file, state):
            length = _length(
                _read_exactly(file, min(DETECTION_BYTES, state.st_size), location), state.st_size
            )
            file.seek(8)
            yield file, _parse(memoryview(_read_exactly(file, length, location)), state.st_size)
    except FormatError as error:
        raise FormatError(f"{location}: {error}", subject=location) from None


@contextmanager
def open_regular(path: Path) -> Iterator[tuple[io.FileIO, os.stat_result]]:
    """Open a regular file without blocking; on exit check that it did not change.

    Yields:
        File, and its state.
    """
    try:
        before = _regular(os.stat(path))
        descriptor = os.open(path, _READ_ONLY | _NONBLOCKING)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise EnvironmentFailure(
                f"could not read {path}: there is no such file; check the path.", subject=path
            ) from None
        raise
    except ValueError as error:
        raise EnvironmentFailure(
            f"could not read {str(path)!r}: not a path ({error}).", subject=path
        ) from None
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        state = _regular(os.fstat(descriptor))
        try:
            yield file, state
        finally:  # replaces errors from reading a changing file
            if _stamp(os.fstat(descriptor)) != _stamp(state) or _stamp(before) != _stamp(state):
                raise _changed(path)


def _regular(state: os.stat_result) -> os.stat_result:
    if stat.S_ISREG(state.st_mode):
        return state
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    raise FormatError(
        f"expected a safetensors file, got {kinds.get(stat.S_IFMT(state.st_mode), 'no regular file')}."
    )


def _read_exactly(file: io.FileIO, size: int, path: Path) -> bytes:
    parts: list[bytes] = []
    while size:
        part = file.read(size)
        if not part:
            raise _changed(path)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _stamp(state: os.stat_result) -> tuple[int, ...]:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def _changed(path: Path) -> IntegrityError:
    return IntegrityError(
        f"{path} changed while it was read; wait until it is complete, and try again.", subject=path
    )


def _length(head: bytes, total: int) -> int:
    """Return the header length of a file from its first bytes and its size."""
    if kind := foreign_format(head):
        raise FormatError(f"expected a safetensors file, got {kind}")
    if total < 8:
        raise FormatError(f"safetensors: expected at least 8 bytes, got {total}: truncated or empty.")
    length = int.from_bytes(head[:8], "little")
    if not 2 <= length <= min(MAX_HEADER, total - 8):
        raise FormatError(
            f"safetensors: the header claims {length} bytes, but 2 to {MAX_HEADER} are allowed and the file has "
            f"{total - 8} after the length: truncated, or not a safetensors file."
        )
    if head[8:9] != b"{":
        raise FormatError(
            "safetensors: the header must begin with '{': not a safetensors file, or one with padding."
        )
    return length


def _parse(raw: memoryview, total: int) -> Header:
    """Parse the JSON header of a file of ``total`` bytes."""
    content = loads(
        raw,
        what="safetensors header",
        max_bytes=MAX_HEADER,
        max_depth=4,
        max_values=MAX_VALUES,
        any_key=True,  # names are checked separately
    )
    metadata = structure(Mapping[str, str], content.pop("__metadata__", {}), "safetensors.__metadata__")
    if len(content) > MAX_TENSORS:
        raise FormatError(
            f"safetensors: expected at most {MAX_TENSORS} tensors, the header lists {len(content)}."
        )
    base = 8 + len(raw)
    entries = [_entry(name, entry, base) for name, entry in content.items()]
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    _check_cover(entries, base, total)
    return Header(tuple(entries), metadata, base, total)


def check_tensor_name(name: str) -> None:
    """Refuse a tensor name that could act as a path, look like another name, or control a terminal.

    Raises:
        FormatError: Empty, ``__metadata__``, control or invisible characters, path-like, too long, or not in NFC.
    """
    if isinstance(name, str) and _PLAIN.fullmatch(name) and len(name) <= MAX_NAME:
        return  # fast path
    if not isinstance(name, str) or not name or name == "__metadata__" or _UNSAFE.search(name):
        fault = "is not safe: no empty name, '__metadata__', control character, backslash, absolute path or '..' part"
    elif len(name.encode("utf-8", "surrogatepass")) > MAX_NAME:
        fault = f"has {len(name)} characters; at most {MAX_NAME} bytes are allowed"
    elif name.isascii():
        return
    elif not unicodedata.is_normalized("NFC", name):
        fault = "is not in Unicode's composed form (NFC), so that names could look equal"
    elif any(unicodedata.category(character) in _INVISIBLE for character in name):
        fault = "contains a character that is invisible or changes the text direction"
    else:
        return
    raise FormatError(f"tensor name {name!a:.100} {fault}; rename the parameter.")


def _entry(name: str, value: Any, base: int) -> TensorEntry:
    """Return a tensor of a header; tensors begin at offset ``base``.

    Raises:
        FormatError: Unsafe name, unknown or missing fields, unknown dtype, or inconsistent sizes.
    """
    check_tensor_name(name)
    code, shape, begin, end = _fields(name, value)
    if code not in DTYPES:
        raise FormatError(f"safetensors: {name!r} has dtype {code!r:.40}; known are {', '.join(DTYPES)}.")
    out_of_range = shape and not 0 <= min(shape) <= max(shape) < 2**63
    if len(shape) > MAX_RANK or out_of_range or min(begin, end) < 0 or max(begin, end) >= 2**63:
        raise FormatError(
            f"safetensors: {name!r} has shape {shape!r:.80} and data_offsets {begin!r:.40} to {end!r:.40}; expected "
            f"numbers from 0, below 2**63, and at most {MAX_RANK} axes."
        )
    width = DTYPES[code][1]
    size = width * prod(shape)
    if size != end - begin:
        raise FormatError(
            f"safetensors: {name!r} of {code} {shape!r:.80} needs {size!s:.40} bytes, its data_offsets give "
            f"{end - begin}."
        )
    if size == 0 and (max(shape) > 2**40 or width * prod(filter(None, shape)) >= 2**63):
        raise FormatError(
            f"safetensors: {name!r} of {code} {shape!r:.80} needs 0 bytes, but its other axes are too long: at most "
            "2**40 each, and below 2**63 bytes together."
        )
    return TensorEntry(name, code, tuple(shape), base + begin, base + end)


def _fields(name: str, value: Any) -> tuple[str, Sequence[int], int, int]:
    """Return dtype, shape and offsets of a tensor in the header."""
    with suppress(KeyError, TypeError, ValueError):
        code, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
        if len(value) == 3 and type(code) is str and type(shape) is list:
            if {type(begin), type(end), *map(type, shape)} == {int}:
                return code, shape, begin, end
    raise FormatError(
        f"safetensors.{name:.80}: should state dtype (text), shape (whole numbers) and data_offsets (two whole "
        f"numbers), and nothing else; got {value!r:.200}."
    )


def _check_cover(entries: Sequence[TensorEntry], base: int, total: int) -> None:
    """Check that entries in the order of their bytes cover a file from ``base`` to its end, without gaps.

    Raises:
        FormatError: Overlap, gap, truncated file, or trailing bytes.
    """
    stop, previous = base, "the header"
    for entry in entries:
        if entry.start != stop:
            fault = "overlaps" if entry.start < stop else "leaves a gap after"
            raise FormatError(
                f"safetensors: {entry.name!r} {fault} {previous}: begins at {entry.start}, expected {stop}."
            )
        stop, previous = entry.stop, repr(entry.name)
    if stop != total:
        fault = "is truncated" if total < stop else "has trailing bytes"
        raise FormatError(
            f"safetensors: the file {fault}: the header describes {stop} bytes, the file has {total}."
        )


def foreign_format(head: bytes) -> str | None:
    """Detect another format by the first bytes of a file.

    Args:
        head: First bytes of the file, up to ``DETECTION_BYTES``.

    Returns:
        Description and advice, as the end of a sentence; None for safetensors and unknown formats.
    """
    if (kind := next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)) is not None:
        return kind
    # Protocols 2 to 5. A safetensors header of 640 bytes begins with the same two bytes, but has JSON at byte 8.
    if len(head) >= 3 and head[0] == 0x80 and 2 <= head[1] <= 5 and head[8:9] != b"{":
        return f"a pickle ({_PICKLE})."
    start = head.lstrip()[:64].lower()
    if start.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "a web page, probably an error or login page in place of the download; download it again."
    if len(head) >= 8 and not any(head):
        return "zero bytes, probably from an interrupted copy or a disk failure; copy it again."
    if _TEXT.fullmatch(head[:8]):  # as the length of a header, eight such bytes are over 10**17
        return (
            f"text that begins with {head[:40].decode('latin-1')!r}; is this a message in place of the file?"
        )
    return None
