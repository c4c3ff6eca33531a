"""The content of a blob, read once and in pieces, so that the memory needed does not grow with the blob."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from compatkit.errors import FormatError
from compatkit.registry import disk as durable
from compatkit.registry.weights.header import Header, read_header
from compatkit.registry.weights.tensorfile import combine

PIECE = 2**22
"""Bytes that are held at a time."""
FEW = 2**18
"""Smaller pieces are hashed in this thread: handing them over would take longer."""
Tick = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""


@attrs.frozen
class Content:
    """What was read from a blob.

    Attributes:
        digest: ``sha256:...`` of the bytes that were read.
        tensors: Tensor digest, where a header said where the tensors are.
    """

    digest: str
    tensors: str | None = None


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
        at = 0
        for one in header.tensors if header is not None else ():
            for _ in self._pieces(one.start - at):
                pass
            tensor = hashlib.sha256()
            for piece in self._pieces(one.stop - one.start):
                tensor.update(piece)
            parts.append((one.name, one.dtype, one.shape, tensor.digest()))
            at = one.stop
        for _ in self._pieces(None):
            pass
        tensors = combine(iter(parts)) if header is not None else None
        return Content(f"sha256:{self.whole.hexdigest()}", tensors)

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
