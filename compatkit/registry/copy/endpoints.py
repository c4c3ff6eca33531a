"""The two ends of a transfer: an origin, which is read and not trusted, and a target, which is also written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TypeVar

import attrs

from compatkit.contracts.manifest import Payload
from compatkit.errors import CompatkitError, EnvironmentFailure, IntegrityError
from compatkit.foundation.codec import MAX_BYTES
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry.copy.report import Refusal
from compatkit.registry.document_graph import How
from compatkit.registry.names import Reference
from compatkit.registry.refs import References, Tombstone
from compatkit.registry.weights.header import check_header
from compatkit.registry.weights.tensorfile import tensor_digest

Refused = TypeVar("Refused", bound=CompatkitError)
Copied = Callable[[int], None]
"""Called with the number of bytes of each piece; may raise to stop."""


@attrs.frozen
class ComponentBlob:
    """A blob that belongs to a component.

    Attributes:
        digest: Digest of the blob.
        how: How its document refers to it.
        owner: Component that it belongs to, for messages.
        size: Expected number of bytes, or None.
        payload: Description in the manifest, if the blob is weights.
        function: Function digest, if the blob is a manifest.
        children: Digests that the blob refers to.
    """

    digest: str
    how: How
    owner: str
    size: int | None = None
    payload: Payload | None = None
    function: str | None = None
    children: tuple[str, ...] = ()

    def check_size(self, actual: int) -> None:
        """Compare the size with the manifest's.

        Raises:
            IntegrityError: They differ.
        """
        if self.size is not None and actual != self.size:
            raise IntegrityError(
                f"{self.owner}: expected {self.size} bytes of {self.digest}, as in the manifest, got {actual}.",
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
                f"{self.owner}: expected {self.payload.count} tensors {self.payload.tensors} in {self.digest}, as in "
                f"the manifest, got {len(header.tensors)} tensors {actual}. It was not imported.",
                subject=self.digest,
            )


@attrs.frozen
class Incoming:
    """Open blob.

    Attributes:
        source: Path or address, for messages.
        size: Number of bytes.
        read: Returns up to the given number of further bytes; empty at the end.
    """

    source: str
    size: int
    read: Callable[[int], bytes]


@attrs.frozen
class SmallFile:
    """Small file that is created once.

    Attributes:
        path: Relative to the registry.
        data: Content.
        ready: Ensures that the blobs it refers to exist.
    """

    path: str
    data: bytes
    ready: Callable[[], object] | None = None


@attrs.define(eq=False)
class Origin(ABC):
    """Source of components: a registry or packages.

    Attributes:
        where: Address for messages, without secrets.
        advice: What to do if something in it is missing or damaged.
        references: Names and versions; for a remote, those passed to ``load``.
        refused: Entries that cannot be read.
        scratch: Local folder that mirrors the names of a remote for ``references``; empty for a local registry.
    """

    where: str = attrs.field(init=False)
    advice: str = attrs.field(init=False)
    references: References = attrs.field(init=False)
    scratch: str = attrs.field(init=False, default="")
    refused: list[Refusal] = attrs.field(init=False, factory=list)
    _by_digest: dict[str, list[Reference]] = attrs.field(init=False, factory=lambda: defaultdict(list))

    @abstractmethod
    def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes, or None."""

    @abstractmethod
    def open(self, digest: str, owner: str) -> AbstractContextManager[Incoming]:
        """Open a blob that a component needs.

        Raises:
            IntegrityError: It is missing, or not a plain file.
            EnvironmentFailure: It cannot be read.
        """

    @abstractmethod
    def small_files(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files in folders, relative to the registry, sorted."""

    @abstractmethod
    def small_file(self, path: str) -> bytes | None:
        """Return the content of a small file, truncated one byte after its limit; None if it is missing."""

    def read_small_files(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield paths and contents of small files; a remote fetches many at once."""
        for path in paths:
            yield path, self.small_file(path)

    def versions_of(self, digest: str) -> list[Reference]:
        """Return all readable versions with a manifest, including withdrawn ones."""
        if not self._by_digest:
            for name, version in self.references.each():
                with suppress(IntegrityError):  # raised where this version is requested
                    if (name_digest := self.references.digest(name, version)) is not None:
                        self._by_digest[name_digest].append(Reference(name, version, digest=name_digest))
        return self._by_digest.get(digest, [])

    def names(self) -> list[str]:
        """Return all names that have a version, sorted."""
        return self.references.names()

    def load(self, names: Iterable[str]) -> None:  # noqa: B027 - nothing to do for a local registry
        """Load the versions, tombstones and aliases of some names into ``references``."""

    def prefetch(self, digests: Iterable[str]) -> None:  # noqa: B027 - nothing to do for a local registry
        """Fetch the documents that are read next, many at once."""

    def is_withdrawn(self, reference: Reference) -> bool:
        """Return whether a version was withdrawn."""
        with self.translating():
            return reference.version in self.references.withdrawn(reference.name)

    def digest(self, reference: Reference) -> str | None:
        """Return the manifest digest of a version, or None.

        Raises:
            IntegrityError: The file does not contain a digest.
        """
        if reference.version is None:
            return None
        with self.translating():
            return self.references.digest(reference.name, reference.version)

    def tombstone(self, reference: Reference) -> Tombstone | None:
        """Return the tombstone of a version, or None."""
        if reference.version is None:
            return None
        with self.translating():
            return self.references.tombstone(reference.name, reference.version)

    def missing(self, digest: str, owner: str) -> IntegrityError:
        """Return the error for a missing blob that a component needs."""
        return IntegrityError(f"{owner}: {self.where} lacks {digest}. {self.advice}", subject=digest)

    def document(self, digest: str, owner: str) -> bytes:
        """Return the bytes of a manifest, result or other document that a component needs.

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
            message = (
                f"{incoming.source}: expected a document of {owner} of at most {MAX_BYTES} bytes, got more."
            )
            raise IntegrityError(message, subject=incoming.source)
        compare(digest, digest_of(data), incoming.source, owner)
        return bytes(data)

    def translated(self, error: Refused) -> Refused:
        """Replace the scratch folder in an error message by the address of the origin, unless this machine failed."""
        if not self.scratch or isinstance(error, EnvironmentFailure):
            return error
        error.args = (str(error).replace(self.scratch, self.where), *error.args[1:])
        return error

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Translate errors about ``references``; see ``translated``."""
        try:
            yield
        except CompatkitError as error:
            self.translated(error)
            raise


@attrs.define(eq=False)
class Target(Origin):
    """Registry that components are read from or copied to."""

    @abstractmethod
    def begin(self) -> None:
        """Prepare for writing; create the registry if it is missing.

        Raises:
            LayoutError: This version may not write its layout.
            EnvironmentFailure: It cannot be written.
        """

    @abstractmethod
    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return the size of each blob in bytes, or None."""

    @abstractmethod
    def has(self, digest: str) -> bool:
        """Return whether a copied blob still exists, and protect it from garbage collection."""

    @abstractmethod
    def copy(self, origin: Origin, blob: ComponentBlob, copied: Copied) -> bool:
        """Copy a blob unless a good copy exists; return whether it was copied.

        Args:
            origin: Origin that contains it.
            blob: Expected digest and size, and its component.
            copied: Called with the size of each piece that was copied.

        Raises:
            IntegrityError: Missing in the origin, or its bytes do not match.
            EnvironmentFailure: It cannot be read or written; no incomplete blob remains.
        """

    def settle(self) -> None:
        """Ensure that copied blobs can be read, before anything refers to them."""

    @abstractmethod
    def create(self, files: Sequence[SmallFile]) -> set[str]:
        """Create small files that must not exist; return the paths that existed.

        Raises:
            EnvironmentFailure: They cannot be written.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write a small file, or replace it."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a small file, if it exists."""

    def current_digest(self, reference: Reference) -> str | None:
        """Return the manifest digest of a version as it is now, even if ``references`` were read earlier."""
        return self.digest(reference)


def compare(expected: str, actual: str, source: str, owner: str) -> None:
    """Raise if the bytes of ``source``, which ``owner`` needs, do not have the expected digest.

    Raises:
        IntegrityError: The digests differ.
    """
    if actual != expected:
        raise IntegrityError(
            f"{owner}: expected {expected} in {source}, got {actual}. It was not imported; import from another copy.",
            subject=expected,
        )
