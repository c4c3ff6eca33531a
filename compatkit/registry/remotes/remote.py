"""A remote registry as an origin or target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from compatkit.errors import EnvironmentFailure, IntegrityError, LayoutError
from compatkit.foundation import cache
from compatkit.foundation.codec import digest as digest_of
from compatkit.foundation.codec import dumps
from compatkit.registry import disk as durable
from compatkit.registry import layout as layouts
from compatkit.registry import resolving
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
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import References
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.mirror import Mirror, write_scratch
from compatkit.registry.remotes.read_ahead import read_ahead
from compatkit.registry.signing.signatures import FOLDER as SIGNATURES

LARGE_BLOB = 2**23
"""Size in bytes above which blobs are uploaded from their file, in parts if the back end supports that."""
LARGEST_CACHED = 2**20
"""Maximum size of a cached document in bytes; longer ones are read again when they are copied."""
CACHE_SIZE = 2**28
"""Maximum size of all cached documents in bytes."""


@attrs.define(eq=False)
class Remote(Target):
    """A remote registry.

    Attributes:
        files: Files of the remote.
        local: Blobs of the local registry: an origin does not fetch these, a target receives these. Empty by default.
        mirror: Names and versions of the remote.
    """

    files: Files
    _folder: TemporaryDirectory[str] = attrs.field(init=False, factory=lambda: scratch_folder())
    local: Objects = attrs.field(
        default=attrs.Factory(lambda self: Objects(Path(self._folder.name)), takes_self=True)
    )
    mirror: Mirror = attrs.field(init=False)
    _listings: dict[str, Mapping[str, int]] = attrs.field(init=False, factory=dict)
    _sizes: dict[str, int | None] = attrs.field(init=False, factory=dict)
    _cached: dict[str, bytes] = attrs.field(init=False, factory=dict)
    _cached_bytes: int = attrs.field(init=False, default=0)
    _marker: bytes | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.address, self.scratch = self.files.url, self._folder.name
        self.references, self.mirror = References(Path(self.scratch)), Mirror(self.files, self.scratch)
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

    def check(self) -> Layout:
        """Return the layout of the registry at the address.

        Raises:
            LayoutError: The address is not a registry, or this version of compatkit cannot read it.
        """
        layout = self.layout()
        if layout is None:
            raise LayoutError(
                f"{self.address} is not a registry: it has no {MARKER}. Push to it first, or check the address.",
                subject=self.address,
            )
        return layout

    # --- names and versions

    def names(self) -> list[str]:
        """Return all names that have a version, sorted."""
        return self.mirror.names()

    def matching(self, pattern: str) -> list[str]:
        """Return the names that a pattern matches; a name without wildcards is looked up by itself."""
        name = resolving.split(pattern)[0]
        if resolving.is_pattern(name) or not self.mirror.has(check_name(name)):
            return resolving.matching_names(pattern, self.names())
        return [name]

    def load(self, names: Iterable[str]) -> None:
        """Fetch the small files of names in parallel."""
        self.mirror.load(names)

    def versions_of(self, digest: str) -> list[Reference]:
        """Return all versions of a manifest, among all names."""
        return self._loaded(digest, self.mirror.versions(digest))

    def is_in_use(self, digest: str) -> bool:
        """Return whether a manifest is known to have a version that was not withdrawn."""
        known = self._loaded(digest, self.mirror.known_versions(digest))
        return not all(map(self.is_withdrawn, known))

    def _loaded(self, digest: str, versions: Sequence[tuple[str, Version]]) -> list[Reference]:
        self.load({name for name, _ in versions})
        return [Reference(name, version, digest=digest) for name, version in versions]

    # --- blobs

    def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes, in the local registry or the remote, or None."""
        local = self.local.size(digest)
        return local if local is not None else self.sizes([digest])[digest]

    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return the sizes of blobs in the remote: one request each, or one listing of all blobs."""
        unknown = [digest for digest in digests if digest not in self._sizes]
        if self._lists_blobs(unknown):
            listed = self._list("blobs")
            self._sizes.update((digest, listed.get(blob_path(digest))) for digest in unknown)
        else:
            self._sizes.update(
                self.files.in_parallel(lambda digest: self.files.size(blob_path(digest)), unknown)
            )
        return {digest: self._sizes[digest] for digest in digests}

    def prefetch(self, digests: Iterable[str]) -> None:
        """Fetch missing documents in parallel, and the sizes of blobs that they refer to."""
        wanted = [digest for digest in dict.fromkeys(digests) if self._is_missing(digest)]
        if self._lists_blobs(wanted):
            sizes = self.sizes(wanted)
            wanted = [digest for digest in wanted if (sizes[digest] or LARGEST_CACHED + 1) <= LARGEST_CACHED]
        if self._cached_bytes >= CACHE_SIZE:
            return
        edges: set[str] = set()
        for digest, data in self.files.in_parallel(
            lambda digest: self.files.read(blob_path(digest), 0, LARGEST_CACHED + 1), wanted
        ):
            if data is None:
                self._sizes[digest] = None
            elif len(data) <= LARGEST_CACHED:
                self._cached[digest], self._sizes[digest] = data, len(data)
                self._cached_bytes += len(data)
                if digest_of(data) == digest:
                    edges |= self._edges_to_look_at(digest, data)
        self.sizes(sorted(edges))

    def _edges_to_look_at(self, digest: str, data: bytes) -> set[str]:
        """Return the blobs that a document refers to, and whose size is needed before they are read."""
        roles = dict(named_in(data, digest, component=False))
        weights = {name for name, role in roles.items() if role == "payload"}
        if weights:  # a manifest; its weights may have been collected
            wanted = set() if self.is_in_use(digest) else weights
        else:
            wanted = {name for name, role in roles.items() if role != "named"}
        return {name for name in wanted if self._is_missing(name)}

    def _lists_blobs(self, digests: Sequence[str]) -> bool:
        """Return whether the sizes of blobs cost less by listing all."""
        return "blobs" in self._listings or (len(digests) > 1 and len(digests) > self.mirror.pages("blobs"))

    def _list(self, top: str) -> Mapping[str, int]:
        """Return the sizes of all files in a top-level folder, listed once."""
        if top not in self._listings:
            self._listings[top] = self.files.sizes(top)
            self.mirror.count(top, 0, of=len(self._listings[top]))
        return self._listings[top]

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
        path, start_of = blob_path(digest), self._cached.get(digest)
        if (
            start_of is None and digest not in self._sizes
        ):  # most blobs are short enough to need no look at their size
            start_of = self.files.read(path, 0, durable.CHUNK)
            if start_of is None or len(start_of) < durable.CHUNK:
                self._sizes[digest] = None if start_of is None else len(start_of)
        size = self.sizes([digest])[digest]
        if size is None:
            raise self.missing(digest, owner)

        def read_range(start: int, count: int) -> bytes:
            nonlocal start_of
            if start_of is not None and start + count <= len(start_of):
                data: bytes | None = start_of[start : start + count]
                start_of = None if start + count < size else start_of
            else:
                data = self.files.read(path, start, count)
            if data is None:
                raise self.missing(digest, owner)
            return data

        with read_ahead(read_range, size) as read:
            yield OpenBlob(f"{self.address}/{path}", size, read)

    # --- small files

    def list_small_files(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files below folders."""
        paths: set[str] = set()
        others: dict[str, set[str]] = defaultdict(set)
        for folder in folders:
            if folder.startswith("refs/"):
                name = folder.removeprefix("refs/").partition("/@")[0]
                paths.update(path for path in self.mirror.paths(name) if path.startswith(f"{folder}/"))
            else:
                others[folder.partition("/")[0]].add(folder)
        for top, below in others.items():
            if top in self._listings or len(below) >= self.mirror.pages(top):
                wanted = tuple(f"{folder}/" for folder in below)
                paths.update(path for path in self._list(top) if path.startswith(wanted))
            else:
                for _, sizes in self.files.in_parallel(self.files.sizes, sorted(below)):
                    paths.update(sizes)
        return sorted(paths)

    def read_small_file(self, path: str) -> bytes | None:
        """Return a small file."""
        mirrored = Path(self.scratch, path)
        if path.startswith("refs/"):
            if mirrored.is_file():
                return mirrored.read_bytes()
            if self.mirror.lacks(path):
                return None
        if path.startswith(f"{SIGNATURES}/"):  # the name has the digest of the content
            own = durable.read(self.local.root / path, self.local.root, limit=LIMIT + 1)
            if own is not None and path.endswith(f"{digest_of(own[0]).removeprefix('sha256:')}.json"):
                return own[0]
        return self.files.read(path, 0, LIMIT + 1)

    def read_small_files(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield paths and contents of small files, read in parallel."""
        yield from self.files.in_parallel(self.read_small_file, paths)

    # --- writing

    def identity(self) -> str:
        """Return the identity of the registry; empty if it is missing."""
        layout = self.layout()
        return "" if layout is None else layout.id

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
            self.mirror.counts.update(dict.fromkeys(("refs", "blobs", "signatures", "evidence"), 0))
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
        self.mirror.count("blobs", 1)
        return True

    def settle(self) -> None:
        """Ensure that copied blobs can be read."""
        self.files.settle()

    def create(self, files: Sequence[SmallFile]) -> set[str]:
        """Create small files in parallel; return the paths that existed already."""
        if files:
            self._try_exclusive()
        taken = self.files.create_all([(file.path, file.data) for file in files])
        for file in files:
            if file.path not in taken:
                self.mirror.write(file.path, file.data)
                self.mirror.count(file.path.partition("/")[0], 1)
        return taken

    @property
    def notes(self) -> list[str]:
        """What a user should know about the remote after writing to it."""
        race = [race_note(self.address)] if self.files.exclusive is False else []
        return [*race, *self.mirror.notes]

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
        self.mirror.write(path, data)

    def remove(self, path: str) -> None:
        """Remove a small file."""
        self.files.remove(path)
        self.mirror.write(path, None)

    def finish(self) -> None:
        """Keep what the next transfer has to know about names and versions, so that it takes few requests."""
        self.mirror.save()

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
