"""A registry in a folder, as a source and as a target of components."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import attrs

from compatkit.errors import IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.copy.places import Incoming, Note, Source, Target, by_digest, opened_file, place
from compatkit.registry.copy.transfer import Transfer
from compatkit.registry.names import Reference, Version
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import LIMIT, References
from compatkit.registry.store import Store


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

    @property
    def advice(self) -> str:
        """What to do where something in it is missing or damaged."""
        return f"Run `compatkit --registry {self.where} verify` there, or import from another copy."

    def size(self, digest: str) -> int | None:
        """Return the number of bytes that it has for a digest; None if it has none."""
        for path in self._places(digest):
            if os.path.lexists(path):
                return os.lstat(path).st_size
        return None

    def opened(self, digest: str, whose: str) -> AbstractContextManager[Incoming]:
        """Open a blob."""
        for path in self._places(digest):
            with environment("read", path):
                descriptor = durable.open_plain(path, self.root)
            if descriptor is not None:
                return opened_file(descriptor, path)
        raise IntegrityError(f"{whose}: {self.root} lacks {digest}. {self.advice}", subject=digest)

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

    def _places(self, digest: str) -> Iterator[Path]:
        """Yield where a blob may be: at its place, or where a collection put it that was cut off."""
        name = digest.removeprefix("sha256:")
        yield self.root / place(digest)
        trash = self.root / "trash"
        durable.check_folders(trash, self.root)
        with environment("read", trash):
            taken = sorted(os.listdir(trash)) if trash.is_dir() else []
        yield from (trash / one for one in taken if one.startswith(f"{name}-"))


@attrs.frozen(eq=False)
class IntoFolder(Folder, Target):
    """A registry in a folder, into which components come.

    Attributes:
        store: The registry.
    """

    store: Store
    examines = True

    def begin(self) -> None:
        """See that it may be written."""
        self.store.layout.check_writer(self.store.root)

    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return how many bytes it has for digests, without what a collection took out."""
        return {one: self.store.objects.size(one) for one in digests}

    def carrier(self, source: Source, arrived: Callable[[int], None]) -> Transfer:
        """Return what copies blobs into this registry."""
        return Transfer(source, self.store.objects, arrived)

    def create(self, notes: Sequence[Note]) -> set[str]:
        """Create small files that must not exist, one after the other, durably."""
        taken: set[str] = set()
        for note in notes:
            path = self.root / note.path
            with environment("create", path):
                if not durable.create_once(path, note.data, self.root, note.ready):
                    taken.add(note.path)
        return taken

    def replace(self, path: str, data: bytes) -> None:
        """Put a small file in the place of another, atomically."""
        with environment("create", self.root / path):
            durable.make_folder((self.root / path).parent, self.root)
        durable.replace_file(self.root / path, data, root=self.root)

    def remove(self, path: str) -> None:
        """Remove a small file."""
        durable.discard(self.root / path)

    def digest_now(self, name: str, version: Version) -> str | None:
        """Return the manifest digest that a version points at."""
        return self.store.references.digest(name, version)


def _but_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
