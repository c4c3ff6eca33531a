"""Where components come from and go to: a folder, a remote, an image layout. Nothing that is read is believed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import attrs

from compatkit.contracts.codec import MAX_BYTES
from compatkit.contracts.codec import digest as digest_of
from compatkit.errors import CompatkitError, EnvironmentFailure, IntegrityError
from compatkit.registry.names import Reference, Version
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import References

Refused = TypeVar("Refused", bound=CompatkitError)
Examine = Callable[[memoryview], None]
"""Raises if bytes must not come in."""


@attrs.frozen
class Incoming:
    """The bytes of one blob, as they arrive.

    Attributes:
        place: Where they come from, for messages.
        size: Their number, where it is known before they are read.
        read: Returns at most so many of those that follow; none at the end.
    """

    place: str
    size: int | None
    read: Callable[[int], bytes]


@attrs.frozen
class Note:
    """A small file that is created once, with its whole content.

    Attributes:
        path: Relative to the registry.
        data: Its content.
        ready: Sees to it that what it refers to is there.
    """

    path: str
    data: bytes
    ready: Callable[[], object] | None = None


class Carrier(Protocol):
    """Takes blobs from the source to where they shall be too."""

    def holds(self, digest: str) -> bool:
        """Tell whether a blob is there, and see to it that it stays."""
        ...

    def bring(self, digest: str, size: int | None, whose: str, examine: Examine | None = None) -> bool:
        """See to it that a blob is there and good; True if it was copied."""
        ...


class Source(ABC):
    """Something that components can be copied from."""

    @property
    @abstractmethod
    def references(self) -> References:
        """Names and versions; of a source that is far, those that ``look`` was told of."""

    @property
    @abstractmethod
    def where(self) -> str:
        """What people call it, without secrets."""

    @property
    @abstractmethod
    def advice(self) -> str:
        """What to do where something in it is missing or damaged."""

    @property
    def scratch(self) -> str:
        """The folder of this machine that ``references`` reads in its place; empty where there is none."""
        return ""

    @abstractmethod
    def size(self, digest: str) -> int | None:
        """Return the number of bytes that it has for a digest; None if it has none."""

    @abstractmethod
    def opened(self, digest: str, whose: str) -> AbstractContextManager[Incoming]:
        """Open a blob.

        Raises:
            IntegrityError: There is none, or something else stands in its place.
            EnvironmentFailure: It cannot be read.
        """

    @abstractmethod
    def notes(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files below folders, relative to the registry, sorted."""

    @abstractmethod
    def note(self, path: str) -> bytes | None:
        """Return a small file, at most one byte more than it may have; None if there is none."""

    @abstractmethod
    def named(self, digest: str) -> list[Reference]:
        """Return all versions that point at a manifest, withdrawn ones included."""

    def names(self) -> list[str]:
        """Return all names that have a version, sorted."""
        return self.references.names()

    def look(self, names: Iterable[str]) -> None:  # noqa: B027 - a source that is near has nothing to do
        """See that ``references`` knows the versions, tombstones and aliases of some names."""

    def retold(self, error: Refused) -> Refused:
        """Return an error about ``references`` that names the place that people know, unless this machine failed."""
        if not self.scratch or isinstance(error, EnvironmentFailure):
            return error
        return type(error)(str(error).replace(self.scratch, self.where), subject=error.subject)

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Let errors about ``references`` name the place that people know."""
        try:
            yield
        except CompatkitError as error:
            if (told := self.retold(error)) is error:
                raise
            raise told from None

    def withdrawn(self, name: str, version: Version) -> bool:
        """Tell whether a version was withdrawn."""
        return version in self.references.withdrawn(name)

    def expect(self, digests: Iterable[str]) -> None:  # noqa: B027 - a source that is near has nothing to do
        """Be told which documents are read next, so that a source that is far may fetch them together."""

    def read_notes(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield small files; a source that is far fetches them together."""
        for path in paths:
            yield path, self.note(path)

    def document(self, digest: str, whose: str) -> bytes:
        """Return the bytes of a manifest, result or other document.

        Raises:
            IntegrityError: Missing, other bytes than promised, or more than a document has.
            EnvironmentFailure: It cannot be read.
        """
        with self.opened(digest, whose) as incoming:
            if incoming.size is not None and incoming.size > MAX_BYTES:
                raise _too_long(incoming.place, whose)
            data = bytearray()
            while len(data) <= MAX_BYTES and (piece := incoming.read(MAX_BYTES + 1 - len(data))):
                data += piece
        if len(data) > MAX_BYTES:
            raise _too_long(incoming.place, whose)
        compare(digest, digest_of(data), incoming.place, whose)
        return bytes(data)


class Target(Source):
    """A registry that components can be copied to.

    Attributes:
        examines: Whether what is there already is held against what a new manifest promises of it.
    """

    examines = False

    @abstractmethod
    def begin(self) -> None:
        """Make it a registry if it is none yet.

        Raises:
            LayoutError: It is one that this version may not write.
            EnvironmentFailure: It cannot be written.
        """

    @abstractmethod
    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return how many bytes it has for digests; None where it has none."""

    def lacking(self, expected: Mapping[str, int | None]) -> list[str]:
        """Return which blobs are not there, or have another size than expected (None: any)."""
        there = self.sizes(list(expected))
        return [one for one, size in expected.items() if there[one] is None or size not in (None, there[one])]

    @abstractmethod
    def carrier(self, source: Source, arrived: Callable[[int], None]) -> Carrier:
        """Return what takes blobs from a source to here; ``arrived`` is told of bytes, and may raise to stop."""

    def settle(self) -> None:
        """See that what was brought is there, before anything refers to it."""

    @abstractmethod
    def create(self, notes: Sequence[Note]) -> set[str]:
        """Create small files that must not exist, and return the paths that were taken.

        Raises:
            EnvironmentFailure: They cannot be written.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Put a small file in the place of another, or of none."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a small file, if it is there."""

    @abstractmethod
    def digest_now(self, name: str, version: Version) -> str | None:
        """Return the manifest digest that a version points at, as of now.

        Raises:
            IntegrityError: The file does not hold a digest.
        """


def place(digest: str) -> str:
    """Return where a registry keeps a blob, relative to its root."""
    name = digest.removeprefix("sha256:")
    return f"blobs/sha256/{name[:2]}/{name}"


@contextmanager
def opened_file(descriptor: int, path: Path) -> Iterator[Incoming]:
    """Give the bytes of an open file, and close it."""

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
        try:
            digest = references.digest(name, version)
        except IntegrityError:
            continue  # whoever asks for this version is told
        if digest is not None:
            found.setdefault(digest, []).append(Reference(name, version, digest=digest))
    return found


def compare(expected: str, actual: str, place: str, whose: str) -> None:
    """Refuse other bytes than a digest promises.

    Raises:
        IntegrityError: Names both digests, and where the bytes came from.
    """
    if actual != expected:
        raise IntegrityError(
            f"{whose}: {place} holds other bytes than its name promises: expected {expected}, got {actual}. It was not "
            "imported; import from another copy.",
            subject=expected,
        )


def check_size(digest: str, expected: int | None, actual: int, whose: str) -> None:
    """Refuse another number of bytes than a manifest gives.

    Raises:
        IntegrityError: Names both.
    """
    if expected is not None and actual != expected:
        raise IntegrityError(
            f"{whose}: its manifest gives {digest} {expected} bytes, the blob has {actual}.", subject=digest
        )


def _too_long(place: str, whose: str) -> IntegrityError:
    return IntegrityError(
        f"{place} has more than {MAX_BYTES} bytes, too many for a document of {whose}.", subject=place
    )
