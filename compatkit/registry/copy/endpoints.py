"""Where components come from and go to: registries in folders, remotes, image layouts.

Origins are only read, and nothing that they say is believed.
"""

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
from compatkit.registry.names import Reference
from compatkit.registry.os_errors import environment
from compatkit.registry.reach import How
from compatkit.registry.refs import References
from compatkit.registry.weights.header import check_header
from compatkit.registry.weights.tensorfile import tensor_digest

Refused = TypeVar("Refused", bound=CompatkitError)
Arrived = Callable[[int], None]
"""Called with the number of bytes that came, piece by piece; may raise to stop."""


@attrs.frozen
class ComponentBlob:
    """A blob that belongs to a component.

    Attributes:
        digest: Of its bytes.
        how: As what it is referred to.
        whose: Component that it belongs to, for messages.
        size: Bytes that it must have; None if nobody says.
        payload: What a manifest promises of it, if it is weights.
        function: Function digest, if it is a manifest.
        further: Digests that it refers to in turn.
    """

    digest: str
    how: How
    whose: str
    size: int | None = None
    payload: Payload | None = None
    function: str | None = None
    further: tuple[str, ...] = ()

    def check_size(self, actual: int) -> None:
        """Refuse another number of bytes than a manifest gives.

        Raises:
            IntegrityError: Names both.
        """
        if self.size is not None and actual != self.size:
            raise IntegrityError(
                f"{self.whose}: its manifest gives {self.digest} {self.size} bytes, the blob has {actual}.",
                subject=self.digest,
            )

    def check_weights(self, data: memoryview) -> None:
        """Refuse weights that are no strict safetensors file with the tensors that their manifest promises.

        Raises:
            IntegrityError: Other tensors.
            FormatError: No strict safetensors file.
        """
        if self.payload is None:
            return
        header = check_header(data)
        found = tensor_digest(data, header)
        if (found, len(header.tensors)) != (self.payload.tensors, self.payload.count):
            raise IntegrityError(
                f"{self.whose}: the manifest promises {self.payload.count} tensors {self.payload.tensors}, "
                f"{self.digest} holds {len(header.tensors)} tensors {found}. It was not imported.",
                subject=self.digest,
            )


@attrs.frozen
class Incoming:
    """The bytes of one blob, as they arrive.

    Attributes:
        place: Where they come from, for messages.
        size: Their number.
        read: Returns at most so many of those that follow; none at the end.
    """

    place: str
    size: int
    read: Callable[[int], bytes]


@attrs.frozen
class Note:
    """A small file that is created once, with its whole content.

    Attributes:
        path: Relative to the registry.
        data: Its content.
        ready: Makes sure that what it refers to is there.
    """

    path: str
    data: bytes
    ready: Callable[[], object] | None = None


@attrs.define(eq=False)
class Origin(ABC):
    """Something that components can be copied from.

    Attributes:
        where: What messages call it, without secrets.
        advice: What to do where something in it is missing or damaged.
        references: Its names and versions; of a remote, those that ``look`` was called with.
        scratch: The folder of this machine that ``references`` reads in place of a remote; empty for a folder.
    """

    where: str = attrs.field(init=False)
    advice: str = attrs.field(init=False)
    references: References = attrs.field(init=False)
    scratch: str = attrs.field(init=False, default="")
    _named: dict[str, list[Reference]] = attrs.field(init=False, factory=dict)

    @abstractmethod
    def size(self, digest: str) -> int | None:
        """Return the number of bytes that it has for a digest; None if it has none."""

    @abstractmethod
    def opened(self, digest: str, whose: str) -> AbstractContextManager[Incoming]:
        """Open a blob.

        Args:
            digest: Of the blob.
            whose: Component that needs it, for messages.

        Raises:
            IntegrityError: It is missing, or something else stands in its place.
            EnvironmentFailure: It cannot be read.
        """

    @abstractmethod
    def notes(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files below folders, relative to the registry, sorted."""

    @abstractmethod
    def note(self, path: str) -> bytes | None:
        """Return a small file, at most one byte more than it may have; None if it is missing."""

    def read_notes(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield small files; a remote fetches them together."""
        for path in paths:
            yield path, self.note(path)

    def named(self, digest: str) -> list[Reference]:
        """Return all versions that point at a manifest, withdrawn ones included."""
        if not self._named:
            self._named = by_digest(self.references)
        return self._named.get(digest, [])

    def names(self) -> list[str]:
        """Return all names that have a version, sorted."""
        return self.references.names()

    def look(self, names: Iterable[str]) -> None:  # noqa: B027 - a folder has nothing to do
        """Make sure that ``references`` knows the versions, tombstones and aliases of some names."""

    def expect(self, digests: Iterable[str]) -> None:  # noqa: B027 - a folder has nothing to do
        """Announce documents that are read next, so that a remote may fetch them together."""

    def is_withdrawn(self, one: Reference) -> bool:
        """Return whether a version was withdrawn."""
        return one.version in self.references.withdrawn(one.name)

    def missing(self, digest: str, whose: str) -> IntegrityError:
        """Return the error about a blob that it lacks.

        Args:
            digest: Of the blob.
            whose: Component that needs it.
        """
        return IntegrityError(f"{whose}: {self.where} lacks {digest}. {self.advice}", subject=digest)

    def document(self, digest: str, whose: str) -> bytes:
        """Return the bytes of a manifest, result or other document.

        Args:
            digest: Of the document.
            whose: Component that needs it, for messages.

        Raises:
            IntegrityError: Missing, other bytes than promised, or too many for a document.
            EnvironmentFailure: It cannot be read.
        """
        with self.opened(digest, whose) as incoming:
            data = bytearray()
            if incoming.size <= MAX_BYTES:
                while len(data) <= MAX_BYTES and (piece := incoming.read(MAX_BYTES + 1 - len(data))):
                    data += piece
        if max(len(data), incoming.size) > MAX_BYTES:
            raise IntegrityError(
                f"{incoming.place} has more than {MAX_BYTES} bytes, too many for a document of {whose}.",
                subject=incoming.place,
            )
        compare(digest, digest_of(data), incoming.place, whose)
        return bytes(data)

    def translated(self, error: Refused) -> Refused:
        """Return an error about ``references`` that names the place that people know, unless this machine failed."""
        if not self.scratch or isinstance(error, EnvironmentFailure):
            return error
        error.args = (str(error).replace(self.scratch, self.where), *error.args[1:])
        return error

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Let errors about ``references`` name the place that people know."""
        try:
            yield
        except CompatkitError as error:
            if (translated := self.translated(error)) is error:
                raise
            raise translated from None


@attrs.define(eq=False)
class Target(Origin):
    """A registry that components can be copied to.

    Attributes:
        examines: Whether bytes that are there already are compared with what a new manifest promises of them.
    """

    examines = False

    @abstractmethod
    def begin(self) -> None:
        """Make it a registry if it is not one yet.

        Raises:
            LayoutError: It is one that this version may not write.
            EnvironmentFailure: It cannot be written.
        """

    @abstractmethod
    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return how many bytes it has for digests; None where it has none."""

    @abstractmethod
    def holds(self, digest: str) -> bool:
        """Return whether a blob that was brought is still there, and make sure that it stays."""

    @abstractmethod
    def bring(self, origin: Origin, one: ComponentBlob, arrived: Arrived) -> bool:
        """Make sure that a blob is there and good; True if it was copied.

        Args:
            origin: Where to read it.
            one: Digest and size that are expected, and its component.
            arrived: Called with the size of each piece that was copied.

        Raises:
            IntegrityError: Missing in the origin, or other bytes than promised.
            EnvironmentFailure: It cannot be read or written; nothing is kept.
        """

    def settle(self) -> None:
        """Make sure that what was brought is there, before anything refers to it."""

    @abstractmethod
    def create(self, notes: Sequence[Note]) -> set[str]:
        """Create small files that must not exist; return the paths that were taken.

        Raises:
            EnvironmentFailure: They cannot be written.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Put a small file in the place of another, or of none.

        Args:
            path: Relative to the root.
            data: New content.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a small file, if it is there."""

    def digest_now(self, one: Reference) -> str | None:
        """Return the manifest digest that a version points at, as of now.

        Raises:
            IntegrityError: The file does not hold a digest.
        """
        return None if one.version is None else self.references.digest(one.name, one.version)


def place(digest: str) -> str:
    """Return where a registry keeps a blob, relative to its root."""
    name = digest.removeprefix("sha256:")
    return f"blobs/sha256/{name[:2]}/{name}"


def opened_file(path: Path, root: Path) -> AbstractContextManager[Incoming] | None:
    """Open a plain file below ``root``; None if there is none.

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
    """Return all versions by the digest that they point at; one that cannot be read names nothing here."""
    found: dict[str, list[Reference]] = {}
    for name, version in references.each():
        with suppress(IntegrityError):  # whoever asks for this version meets the error
            if (digest := references.digest(name, version)) is not None:
                found.setdefault(digest, []).append(Reference(name, version, digest=digest))
    return found


def compare(expected: str, actual: str, place: str, whose: str) -> None:
    """Refuse other bytes than a digest promises.

    Args:
        expected: Digest by which the bytes were asked for.
        actual: Digest of the bytes that came.
        place: Where they came from.
        whose: Component that needs them.

    Raises:
        IntegrityError: Names both digests, and where the bytes came from.
    """
    if actual != expected:
        raise IntegrityError(
            f"{whose}: {place} holds other bytes than its name promises: expected {expected}, got {actual}. It was not "
            "imported; import from another copy.",
            subject=expected,
        )
