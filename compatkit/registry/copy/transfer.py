"""Copying one blob from a source that is not trusted: streamed, and verified before it gets its name here."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from compatkit.contracts.manifest import Payload
from compatkit.errors import IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.copy.places import Examine, Source, check_size, compare
from compatkit.registry.os_errors import environment
from compatkit.registry.weights.header import check_header
from compatkit.registry.weights.tensorfile import tensor_digest


@attrs.frozen(eq=False)
class Transfer:
    """Copies blobs; the source is only read, and nothing in it is believed.

    Attributes:
        source: Where they are.
        target: Blobs of this registry.
        arrived: Told how many bytes have come, piece by piece; may raise to stop.
    """

    source: Source
    target: Objects
    arrived: Callable[[int], None]

    def holds(self, digest: str) -> bool:
        """Tell whether a blob is here, and see to it that it stays."""
        return self.target.hold(digest)

    def bring(self, digest: str, size: int | None, whose: str, examine: Examine | None = None) -> bool:
        """See to it that a blob is here and good; True if it was copied.

        Args:
            digest: Of the blob.
            size: Bytes that it must have; None if nobody said.
            whose: Component that it belongs to, for messages.
            examine: Refuses content that must not get in, by an exception.

        Raises:
            IntegrityError: Missing in the source, other bytes than promised, or refused.
            EnvironmentFailure: It cannot be read or written; nothing is kept.
        """
        data = self._there(digest)
        if data is None:
            self._copy(digest, size, whose, examine)
            return True
        check_size(digest, size, len(data), whose)
        if examine is not None:
            examine(data)
        return False

    def _there(self, digest: str) -> memoryview | None:
        if not self.target.hold(digest):
            return None
        try:
            return memoryview(self.target.view(digest))
        except IntegrityError:
            return None  # it was moved to quarantine: a good copy takes its place

    def _copy(self, digest: str, size: int | None, whose: str, examine: Examine | None) -> None:
        scratch = self.target.root / "tmp"
        with environment("write below", self.target.root):
            for _ in range(durable.TRIES):
                durable.make_folder(scratch, self.target.root)
                draft = durable.temporary(scratch)
                try:
                    self._write(draft, digest, size, whose)
                    if examine is not None:
                        _on_file(draft, examine)
                    self.target.place(draft, digest)
                except FileNotFoundError:
                    continue  # the draft, or a folder that was still empty, was cleaned away
                finally:
                    durable.discard(draft)
                return
            raise FileNotFoundError(errno.ENOENT, "temporary files vanish; give up", str(scratch))

    def _write(self, draft: Path, digest: str, size: int | None, whose: str) -> None:
        """Write a draft with the bytes of a blob, comparing size and digest as they come."""
        hashed, count = hashlib.sha256(), 0
        with self.source.opened(digest, whose) as incoming:
            if incoming.size is not None:
                check_size(digest, size, incoming.size, whose)

            def pieces() -> Iterator[bytes]:
                nonlocal count
                while piece := incoming.read(durable.CHUNK):
                    count += len(piece)
                    hashed.update(piece)
                    if size is not None and count > size:
                        check_size(digest, size, max(count, incoming.size or 0), whose)
                    self.arrived(len(piece))
                    yield piece

            durable.write(draft, pieces(), root=self.target.root)
        compare(digest, f"sha256:{hashed.hexdigest()}", incoming.place, whose)


def promised(payload: Payload, whose: str) -> Examine:
    """Return what refuses weights that are not a strict safetensors file with the tensors that a manifest promises."""

    def examine(data: memoryview) -> None:
        header = check_header(data)
        found = tensor_digest(data, header)
        if (found, len(header.tensors)) != (payload.tensors, payload.count):
            raise IntegrityError(
                f"{whose}: the manifest promises {payload.count} tensors {payload.tensors}, {payload.file.blob} holds "
                f"{len(header.tensors)} tensors {found}. It was not imported.",
                subject=payload.file.blob,
            )

    return examine


def _on_file(path: Path, examine: Examine) -> None:
    """Show the content of a draft, which nobody else changes."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            examine(memoryview(b""))
        else:  # closed when the last view of it is gone, which an error may keep
            examine(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
