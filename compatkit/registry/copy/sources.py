"""Where components are copied from: another folder, a remote, an image layout. Nothing in it is believed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs

from compatkit.contracts.codec import MAX_BYTES
from compatkit.contracts.codec import digest as digest_of
from compatkit.errors import CompatkitError, IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.names import Reference, Version
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import LIMIT, References

if TYPE_CHECKING:
    from compatkit.registry.store import Store

Refused = TypeVar("Refused", bound=CompatkitError)


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
    def advice(self) -> str:
        """What to do where something in it is missing or damaged."""
        return f"Run `compatkit --registry {self.where} verify` there, or import from another copy."

    @abstractmethod
    def size(self, digest: str) -> int | None:
        """Return the number of bytes that it has for a digest; None if it has none."""

    @abstractmethod
    def opened(self, digest: str, whose: str, start: int = 0) -> AbstractContextManager[Incoming]:
        """Open a blob, at a byte.

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
        """Return an error about ``references`` that names the place that people know."""
        return error

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Let errors about ``references`` name the place that people know."""
        try:
            yield
        except CompatkitError as error:
            told = self.retold(error)
            if str(told) == str(error):
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


@attrs.frozen(eq=False)
class Folder(Source):
    """Another registry in a folder.

    Attributes:
        store: The registry; only read.
    """

    store: Store
    _by_digest: dict[str, list[Reference]] = attrs.field(init=False, factory=dict)

    @property
    def references(self) -> References:
        """Its names and versions."""
        return self.store.references

    @property
    def root(self) -> Path:
        """Its folder."""
        return self.store.root

    @property
    def where(self) -> str:
        """Its path."""
        return str(self.store.root)

    def size(self, digest: str) -> int | None:
        """Return the number of bytes that it has for a digest; None if it has none."""
        for path in self._places(digest):
            if os.path.lexists(path):
                return os.lstat(path).st_size
        return None

    @contextmanager
    def opened(self, digest: str, whose: str, start: int = 0) -> Iterator[Incoming]:
        """Open a blob."""
        descriptor, path = self._open(digest, whose)

        def read(count: int) -> bytes:
            with environment("read", path):
                return os.read(descriptor, count)

        try:
            os.lseek(descriptor, start, os.SEEK_SET)
            yield Incoming(str(path), os.fstat(descriptor).st_size, read)
        finally:
            os.close(descriptor)

    def notes(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files below folders, without following a link."""
        found: list[str] = []
        for folder in folders:
            durable.check_folders(self.root / folder, self.root)
            with environment("read", self.root / folder):
                for above, _, files in os.walk(self.root / folder, onerror=_but_missing):
                    relative = Path(above).relative_to(self.root).as_posix()
                    found.extend(f"{relative}/{name}" for name in files)
        return sorted(found)

    def note(self, path: str) -> bytes | None:
        """Return a small file."""
        found = durable.read(self.root / path, self.root, limit=LIMIT + 1)
        return None if found is None else found[0]

    def named(self, digest: str) -> list[Reference]:
        """Return all versions that point at a manifest."""
        if not self._by_digest:
            self._by_digest.update(by_digest(self.references))
        return self._by_digest.get(digest, [])

    def _open(self, digest: str, whose: str) -> tuple[int, Path]:
        for path in self._places(digest):
            with environment("read", path):
                descriptor = durable.open_plain(path, self.root)
            if descriptor is not None:
                return descriptor, path
        raise IntegrityError(f"{whose}: {self.root} lacks {digest}. {self.advice}", subject=digest)

    def _places(self, digest: str) -> Iterator[Path]:
        """Yield where a blob may be: at its place, or where a collection put it that was cut off."""
        name = digest.removeprefix("sha256:")
        yield self.root / f"blobs/sha256/{name[:2]}/{name}"
        trash = self.root / "trash"
        durable.check_folders(trash, self.root)
        with environment("read", trash):
            taken = sorted(os.listdir(trash)) if trash.is_dir() else []
        yield from (trash / one for one in taken if one.startswith(f"{name}-"))


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


def _too_long(place: str, whose: str) -> IntegrityError:
    return IntegrityError(
        f"{place} has more than {MAX_BYTES} bytes, too many for a document of {whose}.", subject=place
    )


def _but_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
