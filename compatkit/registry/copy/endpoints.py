"""Interfaces of the two ends of a transfer: origins, which are read and not trusted, and targets."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import attrs

from compatkit.contracts.manifest import Payload
from compatkit.errors import CompatkitError, EnvironmentFailure, IntegrityError
from compatkit.foundation.codec import MAX_BYTES
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry import disk as durable
from compatkit.registry.copy.report import Refusal
from compatkit.registry.names import Reference
from compatkit.registry.os_errors import environment
from compatkit.registry.reach import How
from compatkit.registry.refs import References
from compatkit.registry.weights.header import check_header
from compatkit.registry.weights.tensorfile import tensor_digest

Refused = TypeVar("Refused", bound=CompatkitError)
Arrived = Callable[[int], None]
"""Called with the number of bytes of each piece; may raise to stop."""


@attrs.frozen
class ComponentBlob:
    """A blob that belongs to a component.

    Attributes:
        digest: Of its bytes.
        how: Kind of the reference to it.
        owner: Component that it belongs to, for messages.
        size: Expected number of bytes, or None.
        payload: The manifest's description of it, if it is weights.
        function: Function digest, if it is a manifest.
        further: Digests that it refers to.
    """

    digest: str
    how: How
    owner: str
    size: int | None = None
    payload: Payload | None = None
    function: str | None = None
    further: tuple[str, ...] = ()

    def check_size(self, actual: int) -> None:
        """Compare the size with the manifest's.

        Raises:
            IntegrityError: They differ.
        """
        if self.size is not None and actual != self.size:
            raise IntegrityError(
                f"{self.owner}: its manifest gives {self.digest} {self.size} bytes, the blob has {actual}.",
                subject=self.digest,
            )

    def check_weights(self, data: memoryview) -> None:
        """Compare weights with the tensors of their manifest.

        Raises:
            IntegrityError: The tensors differ.
            FormatError: Not a strict safetensors file.
        """
        if self.payload is None:
            return
        header = check_header(data)
        actual = tensor_digest(data, header)
        if (actual, len(header.tensors)) != (self.payload.tensors, self.payload.count):
            raise IntegrityError(
                f"{self.owner}: the manifest promises {self.payload.count} tensors {self.payload.tensors}, "
                f"{self.digest} holds {len(header.tensors)} tensors {actual}. It was not imported.",
                subject=self.digest,
            )


@attrs.frozen
class Incoming:
    """The bytes of one blob while they are read.

    Attributes:
        source: Where they are read, for messages.
        size: Number of bytes.
        read: Returns at most as many of the next bytes as asked; none at the end.
    """

    source: str
    size: int
    read: Callable[[int], bytes]


@attrs.frozen
class SmallFile:
    """A small file, created once with its whole content.

    Attributes:
        path: Relative to the registry.
        data: Its content.
        ready: Makes sure that the blobs it refers to exist.
    """

    path: str
    data: bytes
    ready: Callable[[], object] | None = None


@attrs.define(eq=False)
class Origin(ABC):
    """A source of components.

    Attributes:
        where: Address for messages, without secrets.
        advice: What to do if something in it is missing or damaged.
        references: Its names and versions; of a remote, those passed to ``look``.
        refused: Entries that cannot be read.
        scratch: Local folder that mirrors the names of a remote for ``references``; empty for a folder.
    """

    where: str = attrs.field(init=False)
    advice: str = attrs.field(init=False)
    references: References = attrs.field(init=False)
    scratch: str = attrs.field(init=False, default="")
    refused: list[Refusal] = attrs.field(init=False, factory=list)
    _by_digest: dict[str, list[Reference]] = attrs.field(init=False, factory=dict)

    @abstractmethod
    def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes, or None."""

    @abstractmethod
    def open(self, digest: str, owner: str) -> AbstractContextManager[Incoming]:
        """Open a blob.

        Args:
            digest: Of the blob.
            owner: Component that needs it, for messages.

        Raises:
            IntegrityError: It is missing, or not a plain file.
            EnvironmentFailure: It cannot be read.
        """

    @abstractmethod
    def small_files(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files below folders, relative to the registry, sorted."""

    @abstractmethod
    def small_file(self, path: str) -> bytes | None:
        """Return a small file, cut off one byte beyond its limit; None if it is missing."""

    def read_small_files(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield paths and contents of small files; a remote fetches many at once."""
        for path in paths:
            yield path, self.small_file(path)

    def versions_of(self, digest: str) -> list[Reference]:
        """Return all versions of a manifest, withdrawn ones included."""
        if not self._by_digest:
            self._by_digest = by_digest(self.references)
        return self._by_digest.get(digest, [])

    def names(self) -> list[str]:
        """Return all names that have a version, sorted."""
        return self.references.names()

    def look(self, names: Iterable[str]) -> None:  # noqa: B027 - a folder has nothing to do
        """Load the versions, tombstones and aliases of some names into ``references``."""

    def expect(self, digests: Iterable[str]) -> None:  # noqa: B027 - a folder has nothing to do
        """Announce the documents read next, so that a remote can fetch many at once."""

    def is_withdrawn(self, reference: Reference) -> bool:
        """Return whether a version was withdrawn."""
        return reference.version in self.references.withdrawn(reference.name)

    def missing(self, digest: str, owner: str) -> IntegrityError:
        """Return the error for a missing blob.

        Args:
            digest: Of the blob.
            owner: Component that needs it.
        """
        return IntegrityError(f"{owner}: {self.where} lacks {digest}. {self.advice}", subject=digest)

    def document(self, digest: str, owner: str) -> bytes:
        """Return the bytes of a manifest, result or other document.

        Args:
            digest: Of the document.
            owner: Component that needs it, for messages.

        Raises:
            IntegrityError: Missing, too long for a document, or its bytes do not match the digest.
            EnvironmentFailure: It cannot be read.
        """
        with self.open(digest, owner) as incoming:
            data = bytearray()
            if incoming.size <= MAX_BYTES:
                while len(data) <= MAX_BYTES and (piece := incoming.read(MAX_BYTES + 1 - len(data))):
                    data += piece
        if max(len(data), incoming.size) > MAX_BYTES:
            raise IntegrityError(
                f"{incoming.source} has more than {MAX_BYTES} bytes, too many for a document of {owner}.",
                subject=incoming.source,
            )
        compare(digest, digest_of(data), incoming.source, owner)
        return bytes(data)

    def translated(self, error: Refused) -> Refused:
        """Name the origin instead of the scratch folder in an error, unless this machine failed."""
        if not self.scratch or isinstance(error, EnvironmentFailure):
            return error
        error.args = (str(error).replace(self.scratch, self.where), *error.args[1:])
        return error

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Name the origin instead of the scratch folder in errors about ``references``."""
        try:
            yield
        except CompatkitError as error:
            self.translated(error)
            raise


@attrs.define(eq=False)
class Target(Origin):
    """A registry that receives components.

    Attributes:
        examines: Whether existing weights are compared with a new manifest.
    """

    examines = False

    @abstractmethod
    def begin(self) -> None:
        """Make it a registry unless it is one.

        Raises:
            LayoutError: It is one that this version may not write.
            EnvironmentFailure: It cannot be written.
        """

    @abstractmethod
    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return the size of each blob in bytes, or None."""

    @abstractmethod
    def holds(self, digest: str) -> bool:
        """Return whether a copied blob still exists, and protect it from garbage collection."""

    @abstractmethod
    def bring(self, origin: Origin, blob: ComponentBlob, arrived: Arrived) -> bool:
        """Copy a blob unless a good copy exists; return whether it was copied.

        Args:
            origin: Where to read it.
            blob: Expected digest and size, and its component.
            arrived: Called with the size of each piece that was copied.

        Raises:
            IntegrityError: Missing in the origin, or its bytes do not match.
            EnvironmentFailure: It cannot be read or written; nothing is kept.
        """

    def settle(self) -> None:
        """Make sure that copied blobs can be read, before anything refers to them."""

    @abstractmethod
    def create(self, files: Sequence[SmallFile]) -> set[str]:
        """Create small files that must not exist; return the paths that existed.

        Raises:
            EnvironmentFailure: They cannot be written.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write a small file, or replace it.

        Args:
            path: Relative to the root.
            data: New content.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a small file, if it exists."""

    def digest_now(self, reference: Reference) -> str | None:
        """Return the current manifest digest of a version.

        Raises:
            IntegrityError: The file does not hold a digest.
        """
        return (
            None if reference.version is None else self.references.digest(reference.name, reference.version)
        )


def blob_path(digest: str) -> str:
    """Return the path of a blob relative to the registry's root."""
    name = digest.removeprefix("sha256:")
    return f"blobs/sha256/{name[:2]}/{name}"


def open_file(path: Path, root: Path) -> AbstractContextManager[Incoming] | None:
    """Open a plain file below ``root``; return None if there is none.

    Args:
        path: Of the file.
        root: Folder below which no link is followed.
    """
    with environment("read", path):
        descriptor = durable.open_plain(path, root)
    return None if descriptor is None else _incoming(descriptor, path)


@contextmanager
def _incoming(descriptor: int, path: Path) -> Iterator[Incoming]:
    def read(count: int) -> bytes:
        with environment("read", path):
            return os.read(descriptor, count)

    try:
        yield Incoming(str(path), os.fstat(descriptor).st_size, read)
    finally:
        os.close(descriptor)


def by_digest(references: References) -> dict[str, list[Reference]]:
    """Return all readable versions by manifest digest."""
    versions: dict[str, list[Reference]] = {}
    for name, version in references.each():
        with suppress(IntegrityError):  # raised where this version is asked for
            if (digest := references.digest(name, version)) is not None:
                versions.setdefault(digest, []).append(Reference(name, version, digest=digest))
    return versions


def compare(expected: str, actual: str, source: str, owner: str) -> None:
    """Compare the digest of copied bytes with the expected one.

    Args:
        expected: Expected digest.
        actual: Digest of the bytes.
        source: Where they were read.
        owner: Component that needs them.

    Raises:
        IntegrityError: They differ.
    """
    if actual != expected:
        raise IntegrityError(
            f"{owner}: the bytes of {source} do not match its name: expected {expected}, got {actual}. It was not "
            "imported; import from another copy.",
            subject=expected,
        )
