"""Hash the content of a blob, in pieces of bounded size."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from compatkit.errors import FormatError
from compatkit.registry import disk as durable
from compatkit.registry.weights.header import Header, read_header
from compatkit.registry.weights.tensorfile import combine

CHUNK_SIZE = 2**22
"""Bytes read at a time."""
Tick = Callable[[int], None]
"""Function called with the number of bytes read since the last call."""


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
        OSError: The file is missing or unreadable.
    """
    descriptor = durable.open_plain(path, root)
    if descriptor is None:
        raise FileNotFoundError(2, os.strerror(2), str(path))
    with os.fdopen(descriptor, "rb") as file:
        digest = f"sha256:{_hashed(file, None, tick).hexdigest()}"
        if header is None:
            return Content(digest)
        parts: list[tuple[str, str, tuple[int, ...], bytes]] = []
        for entry in header.tensors:
            file.seek(entry.start)
            hashed = _hashed(file, entry.stop - entry.start)
            parts.append((entry.name, entry.dtype, entry.shape, hashed.digest()))
        return Content(digest, combine(parts))


def header_or_fault(path: Path) -> Header | str:
    """Return the header of a payload, or its fault.

    Raises:
        IntegrityError: The file changed while it was read.
        EnvironmentFailure: The file is missing or unreadable.
    """
    try:
        return read_header(path)
    except FormatError as error:
        return str(error).removeprefix(f"{path}: ")


def _hashed(file: BinaryIO, size: int | None, tick: Tick = lambda size: None) -> Any:
    """Return the sha256 of the next ``size`` bytes, or of all remaining ones; of fewer if the file was truncated."""
    hashed = hashlib.sha256()
    while piece := file.read(CHUNK_SIZE if size is None else min(size, CHUNK_SIZE)):
        hashed.update(piece)
        size = None if size is None else size - len(piece)
        tick(len(piece))
    return hashed
