"""Write a blob under its digest, after its size, bytes and tensors were verified."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from compatkit.registry import disk as durable
from compatkit.registry.copy.endpoints import ComponentBlob, CopyProgress, OpenBlob, check_digest
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.blobs import Objects

Open = Callable[[], AbstractContextManager[OpenBlob]]
"""Function that opens the blob to copy; a second call reads it again."""


def write_verified(objects: Objects, open_blob: Open, blob: ComponentBlob, copied: CopyProgress) -> None:
    """Write a blob that is missing; it gets its name once it is verified.

    Args:
        objects: Blobs to add it to.
        open_blob: Function that opens its bytes, which are not trusted.
        blob: Expected digest, size and tensors.
        copied: Called with the number of bytes of each copied piece.

    Raises:
        IntegrityError: The bytes differ.
        FormatError: Weights are not a strict safetensors file.
        EnvironmentFailure: It cannot be read or written; no incomplete blob remains.
    """

    def finish(draft: Path) -> None:
        if blob.payload is not None:
            with open(draft, "rb") as file:
                blob.check_weights(_mapped(file.fileno()))
        objects.link(draft, blob.digest)

    with environment("write below", objects.root):
        durable.drafted(objects.root, _VerifiedPieces(open_blob, blob, copied), finish)


@attrs.frozen
class _VerifiedPieces:
    """Pieces of a blob; each iteration reads the origin again, and verifies size and digest."""

    open_blob: Open
    blob: ComponentBlob
    copied: CopyProgress

    def __iter__(self) -> Iterator[bytes]:
        blob, hashed, count = self.blob, hashlib.sha256(), 0
        with self.open_blob() as opened:
            blob.check_size(opened.size)
            while piece := opened.read(durable.CHUNK):
                count += len(piece)
                hashed.update(piece)
                if count > opened.size:
                    blob.check_size(count)
                self.copied(len(piece))
                yield piece
        check_digest(blob.digest, f"sha256:{hashed.hexdigest()}", opened.source, blob.owner)


@contextmanager
def opened_file(descriptor: int, path: Path) -> Iterator[OpenBlob]:
    """Yield an open file as a blob, and close it.

    Args:
        descriptor: Open file.
        path: Path, for messages.
    """

    def read(count: int) -> bytes:
        with environment("read", path):
            return os.read(descriptor, count)

    try:
        yield OpenBlob(str(path), os.fstat(descriptor).st_size, read)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int) -> memoryview:
    """Return the memory-mapped content of a draft; no other process changes it."""
    if os.fstat(descriptor).st_size == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
