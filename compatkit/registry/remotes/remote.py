"""A remote registry as an origin and as a target.

Names and versions are mirrored into a scratch folder and read by the rules of any registry. Only valid paths of a
registry are mirrored, so nothing is written elsewhere; files longer than their limit are cut off, so that reading
refuses them.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from compatkit.errors import EnvironmentFailure, IntegrityError, InvalidName, LayoutError
from compatkit.foundation import cache
from compatkit.foundation.codec import digest as digest_of
from compatkit.foundation.codec import dumps
from compatkit.registry import disk as durable
from compatkit.registry import layout as layouts
from compatkit.registry.blobs import Objects
from compatkit.registry.copy.endpoints import (
    Arrived,
    ComponentBlob,
    Incoming,
    Origin,
    SmallFile,
    Target,
    blob_path,
    compare,
)
from compatkit.registry.layout import MARKER, Layout
from compatkit.registry.names import VERSION, Reference, check_alias, check_name
from compatkit.registry.os_errors import environment
from compatkit.registry.reach import names as named_in
from compatkit.registry.refs import LIMIT, References
from compatkit.registry.remotes.files import FEW, Files

LARGE = 2**23
"""Bytes; larger blobs are uploaded from their file, in parts if the back end takes parts."""
LARGEST_CACHED = 2**20
"""Bytes; longer documents are read again when they are copied."""
CACHED_IN_ALL = 2**28
AHEAD = 4
"""Ranges of a large blob requested at once, to hide latency; each is in memory."""
_MIRRORED = re.compile(
    rf"refs/(?P<name>[^@]+)/@(?:(?:versions|tombstones)/{VERSION.pattern}|"
    r"aliases/(?P<alias>[^/]+)|log/(?P<moved>[^/]+)/[1-9][0-9]{0,8})"
)
_LISTED = ".listed"
"""Placeholder in the mirror for versions that were listed and not fetched."""


@attrs.define(eq=False)
class Remote(Origin):
    """A remote registry, as an origin.

    Attributes:
        files: Its files.
        here: Blobs of the local registry, which are not fetched.
    """

    files: Files
    here: Objects | None = None
    _folder: TemporaryDirectory[str] = attrs.field(init=False)
    _paths: dict[str, list[str]] | None = attrs.field(init=False, default=None)
    _fetched: set[str] = attrs.field(init=False, factory=set)
    _sizes: dict[str, int | None] = attrs.field(init=False, factory=dict)
    _cached: dict[str, bytes] = attrs.field(init=False, factory=dict)
    _cached_bytes: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        """Make the scratch folder; nothing is read yet."""
        self._folder = scratch_folder()
        self.where, self.scratch = self.files.url, self._folder.name
        self.references = References(Path(self.scratch))
        self.advice = "Push it there again from a registry that holds it, or pull from another remote."

    def close(self) -> None:
        """Remove the scratch folder."""
        self._folder.cleanup()

    def layout(self) -> Layout | None:
        """Return its ``compatkit.json``, or None.

        Raises:
            LayoutError: This version cannot read it.
            FormatError: It is damaged.
        """
        data = self.files.read(MARKER, 0, layouts.LIMIT)
        return None if data is None else layouts.read(data, self.where, f"{self.where}/{MARKER}")

    def check(self) -> None:
        """Check that it is a registry.

        Raises:
            LayoutError: It is not, or this version cannot read it.
        """
        if self.layout() is None:
            raise LayoutError(
                f"{self.where} is no registry: it holds no {MARKER}. Push to it first, or check the address.",
                subject=self.where,
            )

    # --- names and versions

    def names(self) -> list[str]:
        """Return all names that have a version."""
        listed = self._listed().items()
        return sorted(name for name, paths in listed if any("/@versions/" in path for path in paths))

    def look(self, names: Iterable[str]) -> None:
        """Fetch the small files of names, many at once."""
        listed = self._listed()
        wanted = [name for name in sorted(set(names) - self._fetched) if name in listed]
        if not wanted:
            return
        paths = [path for name in wanted for path in listed[name]]
        for path, content in self.files.at_once(lambda path: self.files.read(path, 0, LIMIT + 1), paths):
            if content is not None:
                write_scratch(self.scratch, path, content)
        self._fetched.update(wanted)
        self._by_digest = {}

    def versions_of(self, digest: str) -> list[Reference]:
        """Return all versions of a manifest, among all names."""
        self.look(self.names())
        return super().versions_of(digest)

    def _listed(self) -> dict[str, list[str]]:
        """Return the paths of versions, tombstones, aliases and their logs by name; listed once."""
        if self._paths is None:
            by_name: dict[str, list[str]] = defaultdict(list)
            for path in self.files.listed("refs"):
                if (name := _owner(path)) is not None:
                    by_name[name].append(path)
            self._paths = {name: sorted(paths) for name, paths in by_name.items()}
            for name in self.names():
                write_scratch(self.scratch, f"refs/{name}/@versions/{_LISTED}", b"")
        return self._paths

    # --- blobs

    def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes, here or in the remote, or None."""
        here = None if self.here is None else self.here.size(digest)
        return here if here is not None else self.sizes([digest])[digest]

    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return the sizes of blobs in the remote: one request each, or one listing of all blobs."""
        unknown = [digest for digest in digests if digest not in self._sizes]
        if len(unknown) > FEW:
            listed = self.files.listed("blobs/sha256")
            self._sizes.update((digest, listed.get(blob_path(digest))) for digest in unknown)
        else:
            self._sizes.update(self.files.at_once(lambda digest: self.files.size(blob_path(digest)), unknown))
        return {digest: self._sizes[digest] for digest in digests}

    def expect(self, digests: Iterable[str]) -> None:
        """Fetch missing documents, many at once, and the sizes of blobs that they name."""
        wanted = [digest for digest in dict.fromkeys(digests) if self._is_away(digest)]
        sizes = self.sizes(wanted)
        short = [
            digest
            for digest in wanted
            if (sizes[digest] or LARGEST_CACHED + 1) <= LARGEST_CACHED and self._cached_bytes < CACHED_IN_ALL
        ]
        further: set[str] = set()
        for digest, data in self.files.at_once(
            lambda digest: self.files.read(blob_path(digest), 0, LARGEST_CACHED + 1), short
        ):
            if data is not None:
                self._cached[digest] = data
                self._cached_bytes += len(data)
                if digest_of(data) == digest:
                    references = named_in(data, digest, component=False)
                    further |= {name for name, how in references if how != "named" and self._is_away(name)}
        self.sizes(sorted(further))

    def _is_away(self, digest: str) -> bool:
        return digest not in self._cached and (self.here is None or self.here.size(digest) is None)

    def document(self, digest: str, owner: str) -> bytes:
        """Return the bytes of a document, the local ones if they are intact."""
        if self.here is not None and self.here.size(digest) is not None:
            try:
                return self.here.read(digest)
            except IntegrityError:
                self.expect([digest])  # it was moved to quarantine: fetch a good copy
        if digest in self._cached:
            compare(digest, digest_of(self._cached[digest]), f"{self.where}/{blob_path(digest)}", owner)
            return self._cached[digest]
        return super().document(digest, owner)

    @contextmanager
    def open(self, digest: str, owner: str) -> Iterator[Incoming]:
        """Open a blob."""
        path, cached = blob_path(digest), self._cached.get(digest)
        size = len(cached) if cached is not None else self.sizes([digest])[digest]
        if size is None:
            raise self.missing(digest, owner)

        def ask(at: int, count: int) -> bytes:
            data = cached[at : at + count] if cached is not None else self.files.read(path, at, count)
            if data is None:
                raise self.missing(digest, owner)
            return data

        with read_ahead(ask, size) as read:
            yield Incoming(f"{self.where}/{path}", size, read)

    # --- small files

    def small_files(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files below folders."""
        paths: set[str] = set()
        others: set[str] = set()
        for folder in folders:
            if folder.startswith("refs/"):
                name = folder.removeprefix("refs/").partition("/@")[0]
                paths.update(path for path in self._listed().get(name, []) if path.startswith(f"{folder}/"))
            else:
                others.add(folder)
        if len(others) <= FEW:
            for _, sizes in self.files.at_once(self.files.listed, sorted(others)):
                paths.update(sizes)
        else:
            wanted = tuple(f"{other}/" for other in others)
            for top in sorted({other.partition("/")[0] for other in others}):
                paths.update(path for path in self.files.listed(top) if path.startswith(wanted))
        return sorted(paths)

    def small_file(self, path: str) -> bytes | None:
        """Return a small file."""
        mirrored = Path(self.scratch, path)
        if path.startswith("refs/") and mirrored.is_file():
            return mirrored.read_bytes()
        return self.files.read(path, 0, LIMIT + 1)

    def read_small_files(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield small files, many at once."""
        yield from self.files.at_once(self.small_file, paths)


@attrs.define(eq=False)
class RemoteTarget(Remote, Target):
    """A remote registry, as a target.

    Attributes:
        objects: Blobs of the local registry; each is verified before it is uploaded.
    """

    objects: Objects = attrs.field(kw_only=True)

    def begin(self) -> None:
        """Make it a registry unless it is one."""
        layout = self.layout()
        if layout is None:
            self.files.create(MARKER, dumps(attrs.asdict(layouts.fresh())))
            layout = self.layout()
        if layout is None:
            raise LayoutError(
                f"{self.where}: {MARKER} was written and cannot be read back.", subject=self.where
            )
        layout.check_writer(self.where)

    def holds(self, digest: str) -> bool:
        """Return whether the remote has a blob."""
        return self._sizes.get(digest) is not None

    def bring(self, origin: Origin, blob: ComponentBlob, arrived: Arrived) -> bool:
        """Upload a blob, unless the remote has one of its size."""
        data = memoryview(self.objects.view(blob.digest))
        blob.check_size(len(data))
        if self._sizes.get(blob.digest) == len(data):
            return False
        path = blob_path(blob.digest)
        if len(data) <= LARGE:
            self.files.put(path, bytes(data))
            arrived(len(data))
        else:
            self.files.upload(path, self.objects.path(blob.digest), arrived)
            if (size := self.files.size(path)) != len(data):
                raise EnvironmentFailure(
                    f"{self.where}/{path} should have {len(data)} bytes after it was written, it has {size}. "
                    "The same command goes on where it was.",
                    subject=path,
                )
        self._sizes[blob.digest] = len(data)
        return True

    def settle(self) -> None:
        """Make sure that copied blobs can be read."""
        self.files.settle()

    def create(self, files: Sequence[SmallFile]) -> set[str]:
        """Create small files that must not exist, many at once."""
        return self.files.create_all([(file.path, file.data) for file in files])

    def replace(self, path: str, data: bytes) -> None:
        """Write a small file, or replace it."""
        self.files.put(path, data)
        self.files.settle()

    def remove(self, path: str) -> None:
        """Remove a small file."""
        self.files.remove(path)

    def digest_now(self, reference: Reference) -> str | None:
        """Return the current manifest digest of a version."""
        path = f"refs/{reference.name}/@versions/{reference.version}"
        if not (data := self.files.read(path, 0, LIMIT + 1)):
            return None
        write_scratch(self.scratch, path, data)
        with self.translating():
            return super().digest_now(reference)


def scratch_folder() -> TemporaryDirectory[str]:
    """Return a new folder of this process, in the user's cache folder if that can be written.

    Raises:
        EnvironmentFailure: The system's folder for temporary files cannot be written either.
    """
    try:
        cache.above().mkdir(parents=True, exist_ok=True)
        return TemporaryDirectory(prefix="remote-", dir=cache.above())
    except OSError:
        with environment("make a folder beside", cache.above()):
            return TemporaryDirectory(prefix="compatkit-")


def write_scratch(folder: str, path: str, data: bytes) -> None:
    """Write a file into a scratch folder.

    Args:
        folder: The scratch folder.
        path: Relative to it.
        data: The content.

    Raises:
        EnvironmentFailure: It cannot be written.
    """
    file = Path(folder, path)
    with environment("write", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


@contextmanager
def read_ahead(ask: Callable[[int, int], bytes], size: int) -> Iterator[Callable[[int], bytes]]:
    """Yield a function that returns at most as many of the next bytes as asked, none at the end.

    Args:
        ask: Called with start and count of a range.
        size: Size of the blob; no range reaches beyond.
    """
    if size <= durable.CHUNK:
        yield BytesIO(ask(0, size) if size else b"").read
        return
    waiting: deque[Future[bytes]] = deque()
    starts = iter(range(0, size, durable.CHUNK))
    rest = b""

    def read(count: int) -> bytes:
        nonlocal rest
        while len(waiting) < AHEAD and (at := next(starts, None)) is not None:
            waiting.append(pool.submit(ask, at, min(durable.CHUNK, size - at)))
        data = rest or (waiting.popleft().result() if waiting else b"")
        rest = data[count:]
        return data[:count]

    with ThreadPoolExecutor(AHEAD) as pool:
        try:
            yield read
        finally:
            for future in waiting:
                future.cancel()


def _owner(path: str) -> str | None:
    """Return the component name of a path below ``refs``; None if it is no path of a registry."""
    match = _MIRRORED.fullmatch(path)
    if match is None:
        return None
    try:
        if alias := match["alias"] or match["moved"]:
            check_alias(alias)
        return check_name(match["name"])
    except InvalidName:
        return None
