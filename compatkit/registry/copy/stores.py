"""Registries in folders, as origins and targets of components."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import attrs

from compatkit.errors import IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.copy.places import (
    Arrived,
    ComponentBlob,
    Incoming,
    Note,
    Origin,
    Target,
    compare,
    opened_file,
    place,
)
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import LIMIT
from compatkit.registry.store import Store


@attrs.define(eq=False)
class StoreOrigin(Origin):
    """A registry in a folder; only read.

    Attributes:
        store: The registry.
    """

    store: Store

    def __attrs_post_init__(self) -> None:
        """Name it by its path."""
        self.where, self.references = str(self.store.root), self.store.references
        self.advice = f"Run `compatkit --registry {self.where} verify` there, or import from another copy."

    def size(self, digest: str) -> int | None:
        """Return the number of bytes that it has for a digest; None if it has none."""
        for path in self._paths(digest):
            if os.path.lexists(path):
                return os.lstat(path).st_size
        return None

    def opened(self, digest: str, whose: str) -> AbstractContextManager[Incoming]:
        """Open a blob."""
        for path in self._paths(digest):
            if (incoming := opened_file(path, self.store.root)) is not None:
                return incoming
        raise self.missing(digest, whose)

    def notes(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files below folders, without following a link."""
        found: list[str] = []
        root = self.store.root
        for folder in folders:
            durable.check_folders(root / folder, root)
            with environment("read", root / folder):
                for above, _, files in os.walk(root / folder, onerror=_unless_missing):
                    found.extend(f"{Path(above).relative_to(root).as_posix()}/{name}" for name in files)
        return sorted(found)

    def note(self, path: str) -> bytes | None:
        """Return a small file."""
        found = durable.read(self.store.root / path, self.store.root, limit=LIMIT + 1)
        return None if found is None else found[0]

    def _paths(self, digest: str) -> Iterator[Path]:
        """Yield where a blob may be: at its place, or where an interrupted collection put it."""
        root, name = self.store.root, digest.removeprefix("sha256:")
        yield root / place(digest)
        trash = root / "trash"
        durable.check_folders(trash, root)
        with environment("read", trash):
            taken = sorted(os.listdir(trash)) if trash.is_dir() else []
        yield from (trash / one for one in taken if one.startswith(f"{name}-"))


@attrs.define(eq=False)
class StoreTarget(StoreOrigin, Target):
    """A registry in a folder, into which components come.

    Attributes:
        store: The registry.
    """

    examines = True

    def begin(self) -> None:
        """Check that it may be written."""
        self.store.layout.check_writer(self.store.root)

    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return how many bytes it has for digests, without what a collection took out."""
        return {one: self.store.objects.size(one) for one in digests}

    def holds(self, digest: str) -> bool:
        """Return whether a blob is here, and make sure that it stays."""
        return self.store.objects.hold(digest)

    def bring(self, origin: Origin, one: ComponentBlob, arrived: Arrived) -> bool:
        """Copy a blob, verified before it gets its name here, unless a good one is here."""
        objects = self.store.objects
        if (data := self._good(one.digest)) is not None:
            one.check_size(len(data))
            one.check_weights(data)
            return False

        def keep(draft: Path, _: list[object]) -> None:
            if one.payload is not None:
                with open(draft, "rb") as file:
                    one.check_weights(_mapped(file.fileno()))
            objects.place(draft, one.digest)

        with environment("write below", objects.root):
            durable.drafted(objects.root, _Arriving(origin, one, arrived), keep)
        return True

    def _good(self, digest: str) -> memoryview | None:
        """Return a blob that is here and good; a bad one is moved to quarantine, and a good copy takes its place."""
        objects = self.store.objects
        with suppress(IntegrityError):
            return memoryview(objects.view(digest)) if objects.hold(digest) else None
        return None

    def create(self, notes: Sequence[Note]) -> set[str]:
        """Create small files that must not exist, one after the other, durably."""
        root = self.store.root
        taken: set[str] = set()
        for note in notes:
            with environment("create", root / note.path):
                if not durable.create_once(root / note.path, note.data, root, note.ready):
                    taken.add(note.path)
        return taken

    def replace(self, path: str, data: bytes) -> None:
        """Put a small file in the place of another, atomically."""
        file = self.store.root / path
        with environment("create", file):
            durable.make_folder(file.parent, self.store.root)
        durable.replace_file(file, data, root=self.store.root)

    def remove(self, path: str) -> None:
        """Remove a small file."""
        durable.discard(self.store.root / path)


@attrs.frozen
class _Arriving:
    """The bytes of a blob, opened anew by each iteration; size and digest are compared as they come."""

    origin: Origin
    one: ComponentBlob
    arrived: Arrived

    def __iter__(self) -> Iterator[bytes]:
        """Yield pieces.

        Raises:
            IntegrityError: The origin lacks the blob, or gives other bytes.
        """
        one, hashed, count = self.one, hashlib.sha256(), 0
        with self.origin.opened(one.digest, one.whose) as incoming:
            one.check_size(incoming.size)
            while piece := incoming.read(durable.CHUNK):
                count += len(piece)
                hashed.update(piece)
                if count > incoming.size:
                    one.check_size(count)
                self.arrived(len(piece))
                yield piece
        compare(one.digest, f"sha256:{hashed.hexdigest()}", incoming.place, one.whose)


def _mapped(descriptor: int) -> memoryview:
    """Return the content of a draft, which nobody else changes; freed with its last view, which an error may keep."""
    if os.fstat(descriptor).st_size == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
