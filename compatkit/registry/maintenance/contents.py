"""The content of a blob, read once and in pieces, so that the memory needed does not grow with the blob."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from compatkit.errors import FormatError
from compatkit.registry import disk as durable
from compatkit.registry.weights.header import Header, read_header
from compatkit.registry.weights.tensorfile import combine

PIECE = 2**22
"""Bytes that are held at a time; a multiple of every element's size."""
FEW = 2**18
"""Smaller pieces are hashed in this thread: handing them over would take longer."""
NAMED = 5
_SPECIAL: Mapping[str, tuple[str, int, int]] = {
    "F64": ("<u8", 0x7FF0000000000000, 0x7FF0000000000000),
    "F32": ("<u4", 0x7F800000, 0x7F800000),
    "C64": ("<u4", 0x7F800000, 0x7F800000),
    "F16": ("<u2", 0x7C00, 0x7C00),
    "BF16": ("<u2", 0x7F80, 0x7F80),
    "F8_E5M2": ("u1", 0x7C, 0x7C),
    "F8_E4M3": ("u1", 0x7F, 0x7F),
    "F8_E4M3FNUZ": ("u1", 0xFF, 0x80),
    "F8_E5M2FNUZ": ("u1", 0xFF, 0x80),
}
"""Per dtype: the element as a whole number, a mask, and what remains of NaN and infinity under it."""

Tick = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""


@attrs.frozen
class Content:
    """What was read from a blob.

    Attributes:
        digest: ``sha256:...`` of the bytes that were read.
        tensors: Tensor digest, where a header said where the tensors are.
        not_finite: Names of tensors that hold NaN or infinity, at most a few.
    """

    digest: str
    tensors: str | None = None
    not_finite: tuple[str, ...] = ()


def read_content(
    path: Path, root: Path, tick: Tick = lambda size: None, header: Header | None = None
) -> Content:
    """Read a blob from its first byte to its last.

    Args:
        path: Of the blob.
        root: Of the registry.
        tick: Called with the number of bytes that were read since the last call.
        header: Of a payload: where its tensors are. None for any other blob.

    Raises:
        IntegrityError: A link, folder, pipe or device stands in its place.
        OSError: It is gone, may not be read, or the device failed.
    """
    descriptor = durable.open_plain(path, root)
    if descriptor is None:
        raise FileNotFoundError(2, os.strerror(2), str(path))
    with os.fdopen(descriptor, "rb", buffering=FEW) as file, ThreadPoolExecutor(1) as beside:
        return _Reading(file, beside, tick).read(header)


def checked_header(path: Path) -> Header | str:
    """Return the header of a payload, or why it is refused.

    Raises:
        IntegrityError: It changed while it was read.
        EnvironmentFailure: It is gone, may not be read, or the device failed.
    """
    try:
        return read_header(path)
    except FormatError as error:
        return str(error).removeprefix(f"{path}: ")


@attrs.define
class _Reading:
    """One pass over one file: the file's hash grows in another thread while this one looks at the tensors."""

    file: BinaryIO
    beside: ThreadPoolExecutor
    tick: Tick
    whole: Any = attrs.field(factory=hashlib.sha256)

    def read(self, header: Header | None) -> Content:
        parts: list[tuple[str, str, tuple[int, ...], bytes]] = []
        not_finite: list[str] = []
        at = 0
        for one in header.tensors if header is not None else ():
            for _ in self._pieces(one.start - at):
                pass
            tensor, special, bad = hashlib.sha256(), _SPECIAL.get(one.dtype), False
            for piece in self._pieces(one.stop - one.start):
                tensor.update(piece)
                bad = bad or (special is not None and _holds(piece, *special))
            parts.append((one.name, one.dtype, one.shape, tensor.digest()))
            if bad and len(not_finite) < NAMED:
                not_finite.append(one.name)
            at = one.stop
        for _ in self._pieces(None):
            pass
        tensors = combine(iter(parts)) if header is not None else None
        return Content(f"sha256:{self.whole.hexdigest()}", tensors, tuple(not_finite))

    def _pieces(self, size: int | None) -> Iterator[bytes]:
        """Yield the next ``size`` bytes, or all that are left; fewer where the file became shorter."""
        while size is None or size > 0:
            piece = self.file.read(PIECE if size is None else min(size, PIECE))
            if not piece:
                return
            size = None if size is None else size - len(piece)
            if len(piece) < FEW:
                self.whole.update(piece)
                yield piece
            else:
                hashed = self.beside.submit(self.whole.update, piece)
                yield piece
                hashed.result()
            self.tick(len(piece))


def _holds(piece: bytes, dtype: str, mask: int, special: int) -> bool:
    import numpy as np

    numbers = np.frombuffer(piece[: len(piece) - len(piece) % np.dtype(dtype).itemsize], dtype)
    return bool(((numbers & numbers.dtype.type(mask)) == special).any())
