"""A remote registry as an origin or target.

Names and versions are mirrored into a scratch folder and read like those of a local registry. Only valid paths of a
registry are mirrored, so nothing is written elsewhere; too long files are truncated, and then refused on reading.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from compatkit.errors import EnvironmentFailure, IntegrityError, InvalidName, LayoutError
from compatkit.foundation import cache
from compatkit.foundation.codec import digest as digest_of
from compatkit.foundation.codec import dumps
from compatkit.registry import layout as layouts
from compatkit.registry.blobs import Objects, blob_path
from compatkit.registry.copy.endpoints import (
    ComponentBlob,
    CopyProgress,
    OpenBlob,
    Origin,
    SmallFile,
    Target,
    check_digest,
)
from compatkit.registry.copy.report import race_note
from compatkit.registry.document_graph import names as named_in
from compatkit.registry.layout import MARKER, Layout
from compatkit.registry.log import LIMIT
from compatkit.registry.names import ENTRY_NAME, VERSION, Reference, check_alias, check_name
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import References
from compatkit.registry.remotes.files import MAX_REQUESTS, Files
from compatkit.registry.remotes.read_ahead import read_ahead

LARGE_BLOB = 2**23
"""Size in bytes above which blobs are uploaded from their file, in parts if the back end supports that."""
LARGEST_CACHED = 2**20
"""Maximum size of a cached document in bytes; longer ones are read again when they are copied."""
CACHE_SIZE = 2**28
"""Maximum size of all cached documents in bytes."""
_MIRRORED = re.compile(
    rf"refs/(?P<name>[^@]+)/@(?:versions/{VERSION.pattern}|tombstones/{ENTRY_NAME.pattern}|"
    rf"dropped/{VERSION.pattern}/[1-9][0-9]{{0,8}}|published/{VERSION.pattern}|"
    r"aliases/(?P<alias>[^/]+)|log/(?P<moved>[^/]+)/[1-9][0-9]{0,8})"
)
_LISTED = ".listed"
"""Placeholder in the mirror for versions that were listed and not fetched."""


@attrs.define(eq=False)
class Remote(Target):
    """A remote registry.

    Attributes:
        files: Files of the remote.
        local: Blobs of the local registry: an origin does not fetch these, a target receives these. Empty by default.
    """

    files: Files
    _folder: TemporaryDirectory[str] = attrs.field(init=False, factory=lambda: scratch_folder())
    local: Objects = attrs.field(
        default=attrs.Factory(lambda self: Objects(Path(self._folder.name)), takes_self=True)
    )
    _paths: dict[str, list[str]] | None = attrs.field(init=False, default=None)
    _fetched: set[str] = attrs.field(init=False, factory=set)
    _sizes: dict[str, int | None] = attrs.field(init=False, factory=dict)
    _cached: dict[str, bytes] = attrs.field(init=False, factory=dict)
    _cached_bytes: int = attrs.field(init=False, default=0)
    _marker: bytes | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.address, self.scratch = self.files.url, self._folder.name
        self.references = References(Path(self.scratch))
        self.advice = "Push it there again from a registry that has it, or pull from another remote."

    def close(self) -> None:
        """Remove the scratch folder, and end connections."""
        self._folder.cleanup()
        self.files.close()

    def layout(self) -> Layout | None:
        """Return the layout in ``compatkit.json``, or None if it is missing.

        Raises:
            LayoutError: This version of compatkit cannot read the layout.
            FormatError: The file is damaged.
        """
        data = self._marker = self.files.read(MARKER, 0, layouts.LIMIT)
        return None if data is None else layouts.read(data, self.address, f"{self.address}/{MARKER}")

    def check(self) -> None:
        """Check that the address is a registry.

        Raises:
            LayoutError: The address is not a registry, or this version of compatkit cannot read it.
        """
        if self.layout() is None:
            raise LayoutError(
                f"{self.address} is not a registry: it has no {MARKER}. Push to it first, or check the address.",
                subject=self.address,
            )

    # --- names and versions

    def names(self) -> list[str]:
        """Return all names that have a version, sorted."""
        listed = self._listed().items()
        return sorted(name for name, paths in listed if any("/@versions/" in path for path in paths))

    def load(self, names: Iterable[str]) -> None:
        """Fetch the small files of names in parallel."""
        listed = self._listed()
        wanted = [name for name in sorted(set(names) - self._fetched) if name in listed]
        if not wanted:
            return
        paths = [path for name in wanted for path in listed[name]]
        for path, content in self.files.in_parallel(lambda path: self.files.read(path, 0, LIMIT + 1), paths):
            if content is not None:
                write_scratch(self.scratch, path, content)
        self._fetched.update(wanted)
        self._by_digest.clear()

    def versions_of(self, digest: str) -> list[Reference]:
        """Return all versions of a manifest, among all names."""
        self.load(self.names())
        return super().versions_of(digest)

    def _listed(self) -> dict[str, list[str]]:
        """Return the paths of versions, tombstones, aliases and their logs by name; listed once."""
        if self._paths is None:
            by_name: dict[str, list[str]] = defaultdict(list)
            for path in self.files.sizes("refs"):
                if (name := _owner(path)) is not None:
                    by_name[name].append(path)
            self._paths = {name: sorted(paths) for name, paths in by_name.items()}
            for name in self.names():
                write_scratch(self.scratch, f"refs/{name}/@versions/{_LISTED}", b"")
        return self._paths

    # --- blobs

    def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes, in the local registry or the remote, or None."""
        local = self.local.size(digest)
        return local if local is not None else self.sizes([digest])[digest]

    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return the sizes of blobs in the remote: one request each, or one listing of all blobs."""
        unknown = [digest for digest in digests if digest not in self._sizes]
        if len(unknown) > MAX_REQUESTS:
            listed = self.files.sizes("blobs/sha256")
            self._sizes.update((digest, listed.get(blob_path(digest))) for digest in unknown)
        else:
            self._sizes.update(
                self.files.in_parallel(lambda digest: self.files.size(blob_path(digest)), unknown)
            )
        return {digest: self._sizes[digest] for digest in digests}

    def prefetch(self, digests: Iterable[str]) -> None:
        """Fetch missing documents in parallel, and the sizes of blobs that they refer to."""
        wanted = [digest for digest in dict.fromkeys(digests) if self._is_missing(digest)]
        sizes = self.sizes(wanted)
        short = [
            digest
            for digest in wanted
            if (sizes[digest] or LARGEST_CACHED + 1) <= LARGEST_CACHED and self._cached_bytes < CACHE_SIZE
        ]
        edges: set[str] = set()
        for digest, data in self.files.in_parallel(
            lambda digest: self.files.read(blob_path(digest), 0, LARGEST_CACHED + 1), short
        ):
            if data is not None:
                self._cached[digest] = data
                self._cached_bytes += len(data)
                if digest_of(data) == digest:
                    references = named_in(data, digest, component=False)
                    edges |= {name for name, how in references if how != "named" and self._is_missing(name)}
        self.sizes(sorted(edges))

    def _is_missing(self, digest: str) -> bool:
        return digest not in self._cached and self.local.size(digest) is None

    def document(self, digest: str, owner: str) -> bytes:
        """Return the bytes of a document, from the local registry if it has an intact copy."""
        if self.local.size(digest) is not None:
            try:
                return self.local.read(digest)
            except IntegrityError:
                self.prefetch([digest])  # it was moved to quarantine: fetch an intact copy
        if digest in self._cached:
            check_digest(
                digest, digest_of(self._cached[digest]), f"{self.address}/{blob_path(digest)}", owner
            )
            return self._cached[digest]
        return super().document(digest, owner)

    @contextmanager
    def open(self, digest: str, owner: str) -> Iterator[OpenBlob]:
        """Open a blob."""
        path, cached = blob_path(digest), self._cached.get(digest)
        size = len(cached) if cached is not None else self.sizes([digest])[digest]
        if size is None:
            raise self.missing(digest, owner)

        def read_range(start: int, count: int) -> bytes:
            data = (
                cached[start : start + count] if cached is not None else self.files.read(path, start, count)
            )
            if data is None:
                raise self.missing(digest, owner)
            return data

        with read_ahead(read_range, size) as read:
            yield OpenBlob(f"{self.address}/{path}", size, read)

    # --- small files

    def list_small_files(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files below folders."""
        paths: set[str] = set()
        others: set[str] = set()
        for folder in folders:
            if folder.startswith("refs/"):
                name = folder.removeprefix("refs/").partition("/@")[0]
                paths.update(path for path in self._listed().get(name, []) if path.startswith(f"{folder}/"))
            else:
                others.add(folder)
        if len(others) <= MAX_REQUESTS:
            for _, sizes in self.files.in_parallel(self.files.sizes, sorted(others)):
                paths.update(sizes)
        else:
            wanted = tuple(f"{other}/" for other in others)
            for top in sorted({other.partition("/")[0] for other in others}):
                paths.update(path for path in self.files.sizes(top) if path.startswith(wanted))
        return sorted(paths)

    def read_small_file(self, path: str) -> bytes | None:
        """Return a small file."""
        mirrored = Path(self.scratch, path)
        if path.startswith("refs/") and mirrored.is_file():
            return mirrored.read_bytes()
        return self.files.read(path, 0, LIMIT + 1)

    def read_small_files(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield paths and contents of small files, read in parallel."""
        yield from self.files.in_parallel(self.read_small_file, paths)

    # --- writing

    def begin(self) -> None:
        """Create the registry if it is missing."""
        layout = self.layout()
        if is_new := layout is None:
            self.files.create(MARKER, dumps(attrs.asdict(layouts.fresh())))
            layout = self.layout()
        if layout is None:
            raise LayoutError(
                f"{self.address}: could not read {MARKER} after writing it.", subject=self.address
            )
        layout.check_writer(self.address)
        if is_new:
            self._try_exclusive()

    def has(self, digest: str) -> bool:
        """Return whether the remote has a blob."""
        return self._sizes.get(digest) is not None

    def copy(self, origin: Origin, blob: ComponentBlob, copied: CopyProgress) -> bool:
        """Upload a verified blob of the local registry, unless the remote has one of its size."""
        if blob.size is not None and self._sizes.get(blob.digest) == blob.size:
            return False
        origin.fetch(blob)
        data = memoryview(self.local.view(blob.digest))
        blob.check_size(len(data))
        if self._sizes.get(blob.digest) == len(data):
            return False
        path = blob_path(blob.digest)
        if len(data) <= LARGE_BLOB:
            self.files.put(path, bytes(data))
            copied(len(data))
        else:
            self.files.upload(path, self.local.path(blob.digest), copied)
            if (size := self.files.size(path)) != len(data):
                raise EnvironmentFailure(
                    f"{self.address}/{path}: expected {len(data)} bytes after writing, got {size}. Repeat the command "
                    "to continue.",
                    subject=path,
                )
        self._sizes[blob.digest] = len(data)
        return True

    def settle(self) -> None:
        """Ensure that copied blobs can be read."""
        self.files.settle()

    def create(self, files: Sequence[SmallFile]) -> set[str]:
        """Create small files in parallel; return the paths that existed already."""
        if files:
            self._try_exclusive()
        return self.files.create_all([(file.path, file.data) for file in files])

    @property
    def notes(self) -> list[str]:
        """What a user should know about the remote after writing to it."""
        return [race_note(self.address)] if self.files.exclusive is False else []

    def _try_exclusive(self) -> None:
        """Find out whether files are created exclusively, by creating the registry's marker again.

        Its content stays the same where the condition is ignored, and nobody needs the right to remove a file.
        """
        marker, self._marker = self._marker, None
        if marker is not None:
            self.files.try_exclusive(MARKER, marker)

    def replace(self, path: str, data: bytes) -> None:
        """Write or replace a small file."""
        self.files.put(path, data)
        self.files.settle()

    def remove(self, path: str) -> None:
        """Remove a small file."""
        self.files.remove(path)

    def current_digest(self, reference: Reference) -> str | None:
        """Return the manifest digest of a version as it is now."""
        path = f"refs/{reference.name}/@versions/{reference.version}"
        if not (data := self.files.read(path, 0, LIMIT + 1)):
            return None
        write_scratch(self.scratch, path, data)
        return self.digest(reference)


def scratch_folder() -> TemporaryDirectory[str]:
    """Return a new temporary folder, in the user's cache folder if that is writable.

    Raises:
        EnvironmentFailure: The system's folder for temporary files is not writable either.
    """
    try:
        cache.above().mkdir(parents=True, exist_ok=True)
        return TemporaryDirectory(prefix="remote-", dir=cache.above())
    except OSError:
        with environment("create a folder in", cache.above()):
            return TemporaryDirectory(prefix="compatkit-")


def write_scratch(folder: str, path: str, data: bytes) -> None:
    """Write a file into a scratch folder, at a path relative to it."""
    file = Path(folder, path)
    with environment("write", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _owner(path: str) -> str | None:
    """Return the component name of a path in ``refs``; None if the path is not part of the layout."""
    match = _MIRRORED.fullmatch(path)
    if match is None:
        return None
    try:
        if alias := match["alias"] or match["moved"]:
            check_alias(alias)
        return check_name(match["name"])
    except InvalidName:
        return None
