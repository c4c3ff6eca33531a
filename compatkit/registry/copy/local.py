"""Registry in a folder, as an origin or target of a transfer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import attrs

from compatkit.errors import IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.copy.endpoints import (
    ComponentBlob,
    CopyProgress,
    OpenBlob,
    Origin,
    SmallFile,
    Target,
)
from compatkit.registry.copy.verified import opened_file, write_verified
from compatkit.registry.log import LIMIT
from compatkit.registry.os_errors import environment
from compatkit.registry.remotes.fetching import fetch
from compatkit.registry.store import Store


@attrs.define(eq=False)
class LocalRegistry(Target):
    """Registry in a folder, as an origin or target.

    Attributes:
        store: Files of the registry.
    """

    store: Store

    def __attrs_post_init__(self) -> None:
        self.address, self.references = str(self.store.root), self.store.references
        self.advice = f"Run `compatkit --registry {self.address} verify` there, or import from another copy."

    def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes, or None."""
        for path in self._paths(digest):
            if os.path.lexists(path):
                return os.lstat(path).st_size
        return None

    def open(self, digest: str, owner: str) -> AbstractContextManager[OpenBlob]:
        """Open a blob."""
        for path in self._paths(digest):
            with environment("read", path):
                descriptor = durable.open_plain(path, self.store.root)
            if descriptor is not None:
                return opened_file(descriptor, path)
        raise self.missing(digest, owner)

    def fetch(self, blob: ComponentBlob) -> None:
        """Fetch weights that were left in this registry's remote."""
        if blob.payload is not None:
            fetch(self.store.objects, self.store.id, blob)

    def list_small_files(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files in folders, relative to the registry, sorted; links are not followed."""
        paths: list[str] = []
        root = self.store.root
        for folder in folders:
            durable.check_folders(root / folder, root)
            with environment("read", root / folder):
                for folder_path, _, files in os.walk(root / folder, onerror=_unless_missing):
                    paths.extend(f"{Path(folder_path).relative_to(root).as_posix()}/{name}" for name in files)
        return sorted(paths)

    def read_small_file(self, path: str) -> bytes | None:
        """Return a small file."""
        content = durable.read(self.store.root / path, self.store.root, limit=LIMIT + 1)
        return None if content is None else content[0]

    def identity(self) -> str:
        """Return the identity of the registry."""
        return self.store.id

    def begin(self) -> None:
        """Check that this version may write the layout."""
        self.store.layout.check_writer(self.store.root)

    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return the size of each blob in bytes, or None; blobs in ``trash`` do not count."""
        return {digest: self.store.objects.size(digest) for digest in digests}

    def has(self, digest: str) -> bool:
        """Return whether a blob exists, and protect it from garbage collection."""
        return self.store.objects.retain(digest)

    def copy(self, origin: Origin, blob: ComponentBlob, copied: CopyProgress) -> bool:
        """Copy a blob unless a valid copy exists; verify it before it gets its name."""
        objects = self.store.objects
        if (data := self._verified(blob.digest)) is not None:
            blob.check_size(len(data))
            blob.check_weights(data)
            return False

        origin.fetch(blob)
        write_verified(objects, lambda: origin.open(blob.digest, blob.owner), blob, copied)
        return True

    def _verified(self, digest: str) -> memoryview | None:
        """Return a verified blob, or None; a damaged one is moved to quarantine."""
        objects = self.store.objects
        with suppress(IntegrityError):
            return memoryview(objects.view(digest)).toreadonly() if objects.retain(digest) else None
        return None

    def create(self, files: Sequence[SmallFile]) -> set[str]:
        """Create small files durably, one after another; return the paths that existed already."""
        root = self.store.root
        taken: set[str] = set()
        for file in files:
            with environment("create", root / file.path):
                if not durable.create_once(root / file.path, file.data, root, file.prepare):
                    taken.add(file.path)
        return taken

    def replace(self, path: str, data: bytes) -> None:
        """Write or replace a small file atomically."""
        file = self.store.root / path
        with environment("create", file):
            durable.make_folder(file.parent, self.store.root)
        durable.replace_file(file, data, root=self.store.root)

    def remove(self, path: str) -> None:
        """Remove a small file."""
        durable.discard(self.store.root / path)

    def _paths(self, digest: str) -> Iterator[Path]:
        """Yield possible paths of a blob: its own, then those in ``trash`` after an interrupted garbage collection."""
        root, name = self.store.root, digest.removeprefix("sha256:")
        yield self.store.objects.path(digest)
        trash = root / "trash"
        durable.check_folders(trash, root)
        with environment("read", trash):
            entries = sorted(os.listdir(trash)) if trash.is_dir() else []
        yield from (trash / entry for entry in entries if entry.startswith(f"{name}-"))


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
