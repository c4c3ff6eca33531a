"""Copying one blob from a registry that is not trusted: streamed, and verified before it gets its name here."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from compatkit.errors import IntegrityError
from compatkit.registry import durable
from compatkit.registry.canonical import MAX_BYTES
from compatkit.registry.canonical import digest as digest_of
from compatkit.registry.manifest import Payload
from compatkit.registry.objects import Objects
from compatkit.registry.surroundings import environment
from compatkit.registry.tensors.header import check_header
from compatkit.registry.tensors.tensorfile import tensor_digest

Examine = Callable[[memoryview], None]


@attrs.define(eq=False)
class Transfer:
    """Copies blobs; the source is only read, and nothing in it is believed.

    Attributes:
        source: Root of the other registry.
        target: Blobs of this one.
        copied: Number of blobs that were copied.
        bytes: Their bytes.
    """

    source: Path
    target: Objects
    copied: int = 0
    bytes: int = 0

    def document(self, digest: str, whose: str) -> bytes:
        """Return the bytes of a manifest, result or other document.

        Raises:
            IntegrityError: Missing, other bytes than promised, or more than a document has.
            EnvironmentFailure: It cannot be read.
        """
        descriptor, path = self._open(digest, whose)
        try:
            with environment("read", path), os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(data) > MAX_BYTES:
            raise IntegrityError(
                f"{path} has more than {MAX_BYTES} bytes, too many for a document of {whose}."
            )
        _compare(digest, digest_of(data), path, whose)
        return data

    def size(self, digest: str) -> int | None:
        """Return the number of bytes that the other registry has for a digest; None if it has none."""
        for path in self._places(digest):
            if os.path.lexists(path):
                return os.lstat(path).st_size
        return None

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
        _check_size(digest, size, len(data), whose)
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
                    written = self._write(draft, digest, size, whose)
                    if examine is not None:
                        _on_file(draft, examine)
                    self.target.place(draft, digest)
                except FileNotFoundError:
                    continue  # the draft, or a folder that was still empty, was cleaned away
                finally:
                    durable.discard(draft)
                self.copied, self.bytes = self.copied + 1, self.bytes + written
                return
            raise FileNotFoundError(errno.ENOENT, "temporary files vanish; give up", str(scratch))

    def _write(self, draft: Path, digest: str, size: int | None, whose: str) -> int:
        """Write a draft with the bytes of a blob, comparing size and digest as they come; return their number."""
        descriptor, path = self._open(digest, whose)
        hashed, count = hashlib.sha256(), 0

        def pieces() -> Iterator[bytes]:
            nonlocal count
            while True:
                with environment("read", path):
                    piece = os.read(descriptor, durable.CHUNK)
                if not piece:
                    return
                count += len(piece)
                hashed.update(piece)
                if size is not None and count > size:
                    _check_size(digest, size, max(count, os.fstat(descriptor).st_size), whose)
                yield piece

        try:
            if size is not None:
                _check_size(digest, size, os.fstat(descriptor).st_size, whose)
            durable.write(draft, pieces(), root=self.target.root)
        finally:
            os.close(descriptor)
        _compare(digest, f"sha256:{hashed.hexdigest()}", path, whose)
        return count

    def _open(self, digest: str, whose: str) -> tuple[int, Path]:
        for path in self._places(digest):
            with environment("read", path):
                descriptor = durable.open_plain(path, self.source)
            if descriptor is not None:
                return descriptor, path
        raise IntegrityError(
            f"{whose}: {self.source} lacks {digest}. Run `compatkit --registry {self.source} verify` there, or import "
            "from another copy.",
            subject=digest,
        )

    def _places(self, digest: str) -> list[Path]:
        """Return where a blob may be: at its place, or where a collection put it that was cut off."""
        name = digest.removeprefix("sha256:")
        durable.check_folders(self.source / "trash", self.source)
        taken = sorted((self.source / "trash").glob(f"{name}-*"))
        return [self.source / "blobs" / "sha256" / name[:2] / name, *taken]


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


def _check_size(digest: str, expected: int | None, actual: int, whose: str) -> None:
    if expected is not None and actual != expected:
        raise IntegrityError(
            f"{whose}: its manifest gives {digest} {expected} bytes, the blob has {actual}.", subject=digest
        )


def _compare(expected: str, actual: str, path: Path, whose: str) -> None:
    if actual != expected:
        raise IntegrityError(
            f"{whose}: {path} holds other bytes than its name promises: expected {expected}, got {actual}. It was not "
            "imported; import from another copy.",
            subject=expected,
        )
