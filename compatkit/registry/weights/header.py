"""The header of a safetensors file, checked strictly with nothing but the standard library.

The format: 8 bytes little-endian header length, a JSON header, the tensors. The safetensors library itself
accepts duplicate header keys, names such as ``../../x`` and unknown entry fields; here all are refused.
``read_header`` looks at a file of any size and reads nothing but its header.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

from compatkit.contracts.codec import loads, structure
from compatkit.errors import EnvironmentFailure, FormatError, IntegrityError
from compatkit.registry.os_errors import environment
from compatkit.registry.weights.entries import DTYPES, Entry, check_cover, check_tensor_name, entries_of
from compatkit.registry.weights.signatures import foreign

__all__ = [
    "DTYPES",
    "MAX_HEADER",
    "MAX_TENSORS",
    "Buffer",
    "Entry",
    "Header",
    "check_header",
    "check_tensor_name",
    "opened",
    "read_header",
    "read_whole",
]

Buffer = bytes | bytearray | memoryview

MAX_HEADER = 100_000_000
"""Bytes; the safetensors library has the same limit."""
MAX_TENSORS = 100_000
MAX_VALUES = 40 * MAX_TENSORS
"""Commas and opening brackets: no tensor has more."""
SNIFFED = 512
"""First bytes that tell what a file is."""
_READ_ONLY = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NEVER_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


@attrs.frozen
class Header:
    """A checked header.

    Attributes:
        tensors: In the order of their bytes.
        metadata: Strings to strings.
        start: Where the tensors begin, in bytes from the beginning of the file.
        size: Bytes of the whole file.
    """

    tensors: tuple[Entry, ...]
    metadata: Mapping[str, str]
    start: int
    size: int


def check_header(data: Buffer) -> Header:
    """Check that ``data`` is a whole, unambiguous safetensors file and return what it holds.

    Nothing is allocated by sizes that the file merely claims.

    Raises:
        FormatError: Another format (named), truncated, trailing bytes, header too long or not strict JSON,
            duplicate or unsafe names, unknown dtype, sizes that do not match, overlaps, holes.
    """
    view = memoryview(data).cast("B")
    length = _length(bytes(view[:SNIFFED]), len(view))
    return _parsed(view[8 : 8 + length], len(view))


def read_header(path: str | os.PathLike[str]) -> Header:
    """Check a safetensors file like ``check_header``, without reading the tensors: 100 GB take no longer than 1 MB.

    Args:
        path: Of any file; links are followed, pipes and devices are not opened.

    Raises:
        FormatError: See ``check_header``; or a folder, pipe, socket or device.
        IntegrityError: The file changed while it was read.
        EnvironmentFailure: No such file, no right to read, device failed.
    """
    with _checked(path) as (_, header):
        return header


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """Return all bytes of a safetensors file from anywhere, its header checked before the tensors are read.

    Args:
        path: Of any file; links are followed, pipes and devices are not opened.

    Raises:
        FormatError: See ``check_header``; or a folder, pipe, socket or device.
        IntegrityError: The file changed while it was read.
        EnvironmentFailure: No such file, no right to read, device failed.
    """
    with _checked(path) as (file, header):
        file.seek(0)
        return _exactly(file, header.size, Path(path))


@contextmanager
def _checked(path: str | os.PathLike[str]) -> Iterator[tuple[io.FileIO, Header]]:
    """Open a file whose header is sound."""
    place = Path(path)
    try:
        with environment("read", place), opened(place) as (file, state):
            length = _length(_exactly(file, min(SNIFFED, state.st_size), place), state.st_size)
            file.seek(8)
            yield file, _parsed(memoryview(_exactly(file, length, place)), state.st_size)
    except FormatError as error:
        raise FormatError(f"{place}: {error}", subject=place) from None


@contextmanager
def opened(path: Path) -> Iterator[tuple[io.FileIO, os.stat_result]]:
    """Open a regular file without waiting at a pipe, with its state; at the end it must be the same, unchanged."""
    try:
        before = _regular(os.stat(path))
        descriptor = os.open(path, _READ_ONLY | _NEVER_WAIT)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise EnvironmentFailure(
                f"could not read {path}: there is no such file; check the path.", subject=path
            ) from None
        raise
    except ValueError as error:
        raise EnvironmentFailure(f"could not read {str(path)!r}: no path ({error}).", subject=path) from None
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        state = _regular(os.fstat(descriptor))
        try:
            yield file, state
        finally:  # of a file that changes, nothing else that was found is true
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
        f"expected a safetensors file, got {kinds.get(stat.S_IFMT(state.st_mode), 'no plain file')}; name the file."
    )


def _exactly(file: io.FileIO, size: int, path: Path) -> bytes:
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
        f"{path} changed while it was read; wait until it is written, and try again.", subject=path
    )


def _length(head: bytes, total: int) -> int:
    """Return the length of the header of a file that begins with ``head`` and has ``total`` bytes."""
    if kind := foreign(head):
        raise FormatError(f"expected a safetensors file, got {kind}")
    if total < 8:
        raise FormatError(f"safetensors: a file has at least 8 bytes, got {total}: truncated or empty.")
    length = int.from_bytes(head[:8], "little")
    if not 2 <= length <= min(MAX_HEADER, total - 8):
        raise FormatError(
            f"safetensors: the header claims {length} bytes, where 2 to {MAX_HEADER} are allowed and the "
            f"file has {total - 8} after its length: truncated, or no safetensors file."
        )
    if head[8:9] != b"{":
        raise FormatError(
            "safetensors: the header must begin with '{': no safetensors file, or one with padding."
        )
    return length


def _parsed(raw: memoryview, total: int) -> Header:
    """Return what the JSON header of a file of ``total`` bytes says."""
    content = loads(
        raw,
        what="safetensors header",
        max_bytes=MAX_HEADER,
        max_depth=4,
        max_values=MAX_VALUES,
        any_key=True,  # names have a rule of their own
    )
    metadata = structure(Mapping[str, str], content.pop("__metadata__", {}), "safetensors.__metadata__")
    if len(content) > MAX_TENSORS:
        raise FormatError(
            f"safetensors: at most {MAX_TENSORS} tensors are read, the header lists {len(content)}."
        )
    base = 8 + len(raw)
    entries = entries_of(content, base)
    check_cover(entries, base, total)
    return Header(tuple(entries), metadata, base, total)
