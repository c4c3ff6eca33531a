"""Read the content of a blob once, in pieces of bounded size."""

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
"""Bytes held at a time."""
FEW = 2**18
"""Smaller pieces are hashed in the same thread, which is faster than handing them over."""
Tick = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


@attrs.frozen
class Content:
    """Content of a blob.

    Attributes:
        digest: ``sha256:...`` of its bytes.
        tensors: Tensor digest, if a header was given.
    """

    digest: str
    tensors: str | None = None


def read_content(
    path: Path, root: Path, tick: Tick = lambda size: None, header: Header | None = None
) -> Content:
    """Read a blob completely.

    Args:
        path: Path of the blob.
        root: Folder of the registry.
        tick: Called with the number of bytes read since the last call.
        header: Header of a payload, to compute the tensor digest; None for other blobs.

    Raises:
        IntegrityError: The path is a link, folder, pipe or device.
        OSError: The file has gone, may not be read, or the device failed.
    """
    descriptor = durable.open_plain(path, root)
    if descriptor is None:
        raise FileNotFoundError(2, os.strerror(2), str(path))
    with os.fdopen(descriptor, "rb", buffering=FEW) as file, ThreadPoolExecutor(1) as beside:
        return _Reading(file, beside, tick).read(header)


def checked_header(path: Path) -> Header | str:
    """Return the header of a payload, or the reason for refusing it.

    Raises:
        IntegrityError: The file changed while it was read.
        EnvironmentFailure: The file has gone, may not be read, or the device failed.
    """
    try:
        return read_header(path)
    except FormatError as error:
        return str(error).removeprefix(f"{path}: ")


@attrs.define
class _Reading:
    """One pass over a file: another thread hashes the file while this one hashes the tensors."""

    file: BinaryIO
    beside: ThreadPoolExecutor
    tick: Tick
    whole: Any = attrs.field(factory=hashlib.sha256)

    def read(self, header: Header | None) -> Content:
        parts: list[tuple[str, str, tuple[int, ...], bytes]] = []
        at = 0
        for entry in header.tensors if header is not None else ():
            for _ in self._pieces(entry.start - at):
                pass
            tensor = hashlib.sha256()
            for piece in self._pieces(entry.stop - entry.start):
                tensor.update(piece)
            parts.append((entry.name, entry.dtype, entry.shape, tensor.digest()))
            at = entry.stop
        for _ in self._pieces(None):
            pass
        tensors = combine(iter(parts)) if header is not None else None
        return Content(f"sha256:{self.whole.hexdigest()}", tensors)

    def _pieces(self, size: int | None) -> Iterator[bytes]:
        """Yield the next ``size`` bytes, or all remaining ones; fewer if the file was truncated."""
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
