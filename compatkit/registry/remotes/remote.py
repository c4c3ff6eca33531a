"""A registry elsewhere, as an origin and as a target of components.

Names and versions are mirrored into a scratch folder, and then read by the rules of any registry. Only paths that a
registry may have are mirrored, so that nothing is written elsewhere; what is too long for its kind is cut off, so that
whoever reads it refuses it.
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
from compatkit.registry.copy.places import (
    Arrived,
    ComponentBlob,
    Incoming,
    Note,
    Origin,
    Target,
    compare,
    place,
)
from compatkit.registry.layout import MARKER, Layout
from compatkit.registry.names import VERSION, Reference, check_alias, check_name
from compatkit.registry.os_errors import environment
from compatkit.registry.reach import names as named_in
from compatkit.registry.refs import LIMIT, References
from compatkit.registry.remotes.files import FEW, Files

LARGE = 2**23
"""Bytes; larger blobs are uploaded from their file, in parts where the back end takes parts."""
KEPT = 2**20
"""Bytes; longer documents are not kept in memory between being read and being copied."""
KEPT_IN_ALL = 2**28
AHEAD = 4
"""Ranges of a large blob that are asked for at once, because remotes answer late; each is held in memory."""
_NUMBER = re.compile("[1-9][0-9]{0,8}")
_LISTED = ".listed"
"""A file that stands for the versions of a name that were listed and not fetched; it is no version."""


@attrs.define(eq=False)
class Remote(Origin):
    """A registry elsewhere; only read.

    Attributes:
        files: Its files.
        here: Blobs of this machine's registry: what is there already is not fetched.
    """

    files: Files
    here: Objects | None = None
    _folder: TemporaryDirectory[str] = attrs.field(init=False)
    _paths: dict[str, list[str]] | None = attrs.field(init=False, default=None)
    _fetched: set[str] = attrs.field(init=False, factory=set)
    _sizes: dict[str, int | None] = attrs.field(init=False, factory=dict)
    _kept: dict[str, bytes] = attrs.field(init=False, factory=dict)
    _kept_bytes: int = attrs.field(init=False, default=0)

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
        """Return what its ``compatkit.json`` says; None if it has none.

        Raises:
            LayoutError: This version cannot read it.
            FormatError: It is damaged.
        """
        data = self.files.read(MARKER, 0, layouts.LIMIT)
        return None if data is None else layouts.read(data, self.where, f"{self.where}/{MARKER}")

    def check(self) -> None:
        """Check that it is a registry.

        Raises:
            LayoutError: It is none, or one that this version cannot read.
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
        """Fetch the files of names that are listed, many at once."""
        listed = self._listed()
        wanted = [name for name in sorted(set(names) - self._fetched) if name in listed]
        if not wanted:
            return
        paths = [path for name in wanted for path in listed[name]]
        for path, content in self.files.at_once(lambda path: self.files.read(path, 0, LIMIT + 1), paths):
            if content is not None:
                write_scratch(self.scratch, path, content)
        self._fetched.update(wanted)
        self._named = {}

    def named(self, digest: str) -> list[Reference]:
        """Return all versions that point at a manifest: of names that are beside those looked at, else of all."""
        spaces = {name.partition("/")[0] for name in self._fetched}
        self.look(name for name in self.names() if name.partition("/")[0] in spaces)
        if not super().named(digest):
            self.look(self.names())
        return super().named(digest)

    def _listed(self) -> dict[str, list[str]]:
        """Return the paths of versions, tombstones, aliases and their logs by name; listed once."""
        if self._paths is None:
            found: dict[str, list[str]] = defaultdict(list)
            for path in self.files.listed("refs"):
                if (name := _owner(path)) is not None:
                    found[name].append(path)
            self._paths = {name: sorted(paths) for name, paths in found.items()}
            for name in self.names():
                write_scratch(self.scratch, f"refs/{name}/@versions/{_LISTED}", b"")
        return self._paths

    # --- blobs

    def size(self, digest: str) -> int | None:
        """Return the number of bytes that it has for a digest, or that are here already."""
        here = None if self.here is None else self.here.size(digest)
        return here if here is not None else self.sizes([digest])[digest]

    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return how many bytes the remote has for digests: asked one by one, or by a list of all blobs."""
        unknown = [one for one in digests if one not in self._sizes]
        if len(unknown) > FEW:
            listed = self.files.listed("blobs/sha256")
            self._sizes.update((one, listed.get(place(one))) for one in unknown)
        else:
            self._sizes.update(self.files.at_once(lambda one: self.files.size(place(one)), unknown))
        return {one: self._sizes[one] for one in digests}

    def expect(self, digests: Iterable[str]) -> None:
        """Fetch documents that are not here, many at once, and the sizes of what they name."""
        wanted = [one for one in dict.fromkeys(digests) if self._is_away(one)]
        sizes = self.sizes(wanted)
        short = [one for one in wanted if (sizes[one] or KEPT + 1) <= KEPT and self._kept_bytes < KEPT_IN_ALL]
        further: set[str] = set()
        for one, data in self.files.at_once(lambda one: self.files.read(place(one), 0, KEPT + 1), short):
            if data is not None:
                self._kept[one] = data
                self._kept_bytes += len(data)
                if digest_of(data) == one:
                    found = named_in(data, one, component=False)
                    further |= {name for name, how in found if how != "named" and self._is_away(name)}
        self.sizes(sorted(further))

    def _is_away(self, digest: str) -> bool:
        return digest not in self._kept and (self.here is None or self.here.size(digest) is None)

    def document(self, digest: str, whose: str) -> bytes:
        """Return the bytes of a document; from here, if it is here and good."""
        if self.here is not None and self.here.size(digest) is not None:
            try:
                return self.here.read(digest)
            except IntegrityError:
                self.expect([digest])  # it was moved to quarantine: a good copy takes its place
        if digest in self._kept:
            compare(digest, digest_of(self._kept[digest]), f"{self.where}/{place(digest)}", whose)
            return self._kept[digest]
        return super().document(digest, whose)

    @contextmanager
    def opened(self, digest: str, whose: str) -> Iterator[Incoming]:
        """Open a blob."""
        path, kept = place(digest), self._kept.get(digest)
        size = len(kept) if kept is not None else self.sizes([digest])[digest]
        if size is None:
            raise self.missing(digest, whose)

        def ask(at: int, count: int) -> bytes:
            data = kept[at : at + count] if kept is not None else self.files.read(path, at, count)
            if data is None:
                raise self.missing(digest, whose)
            return data

        with read_ahead(ask, size) as read:
            yield Incoming(f"{self.where}/{path}", size, read)

    # --- small files

    def notes(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files below folders."""
        found: set[str] = set()
        others: set[str] = set()
        for folder in folders:
            if folder.startswith("refs/"):
                name = folder.removeprefix("refs/").partition("/@")[0]
                found.update(one for one in self._listed().get(name, []) if one.startswith(f"{folder}/"))
            else:
                others.add(folder)
        if len(others) <= FEW:
            for _, sizes in self.files.at_once(self.files.listed, sorted(others)):
                found.update(sizes)
        else:
            wanted = tuple(f"{one}/" for one in others)
            for top in sorted({one.partition("/")[0] for one in others}):
                found.update(path for path in self.files.listed(top) if path.startswith(wanted))
        return sorted(found)

    def note(self, path: str) -> bytes | None:
        """Return a small file."""
        mirrored = Path(self.scratch, path)
        if path.startswith("refs/") and mirrored.is_file():
            return mirrored.read_bytes()
        return self.files.read(path, 0, LIMIT + 1)

    def read_notes(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield small files, many at once."""
        yield from self.files.at_once(self.note, paths)


@attrs.define(eq=False)
class RemoteTarget(Remote, Target):
    """A registry elsewhere, into which components of this machine's registry come.

    Attributes:
        objects: Blobs of this machine's registry, which are uploaded; each is verified before it leaves.
    """

    objects: Objects = attrs.field(kw_only=True)

    def begin(self) -> None:
        """Make it a registry if it is not one yet."""
        found = self.layout()
        if found is None:
            self.files.create(MARKER, dumps(attrs.asdict(layouts.fresh())))
            found = self.layout()
        if found is None:
            raise LayoutError(
                f"{self.where}: {MARKER} was written and cannot be read back.", subject=self.where
            )
        found.check_writer(self.where)

    def holds(self, digest: str) -> bool:
        """Return whether the remote has a blob."""
        return self._sizes.get(digest) is not None

    def bring(self, origin: Origin, one: ComponentBlob, arrived: Arrived) -> bool:
        """Upload a blob, unless the remote has one of its size."""
        data = memoryview(self.objects.view(one.digest))
        one.check_size(len(data))
        if self._sizes.get(one.digest) == len(data):
            return False
        path = place(one.digest)
        if len(data) <= LARGE:
            self.files.put(path, bytes(data))
            arrived(len(data))
        else:
            self.files.upload(path, self.objects.path(one.digest), arrived)
            if (came := self.files.size(path)) != len(data):
                raise EnvironmentFailure(
                    f"{self.where}/{path} should have {len(data)} bytes after it was written, it has {came}. "
                    "The same command goes on where it was.",
                    subject=path,
                )
        self._sizes[one.digest] = len(data)
        return True

    def settle(self) -> None:
        """Make sure that what was brought is there."""
        self.files.settle()

    def create(self, notes: Sequence[Note]) -> set[str]:
        """Create small files that must not exist, many at once."""
        return self.files.create_all([(note.path, note.data) for note in notes])

    def replace(self, path: str, data: bytes) -> None:
        """Put a small file in the place of another."""
        self.files.put(path, data)
        self.files.settle()

    def remove(self, path: str) -> None:
        """Remove a small file."""
        self.files.remove(path)

    def digest_now(self, one: Reference) -> str | None:
        """Return the manifest digest that a version points at, as of now."""
        path = f"refs/{one.name}/@versions/{one.version}"
        if not (data := self.files.read(path, 0, LIMIT + 1)):
            return None
        write_scratch(self.scratch, path, data)
        with self.translating():
            return super().digest_now(one)


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
    """Give a function that returns at most so many of the bytes that follow, none at the end.

    Args:
        ask: Returns at most so many bytes (second) from a place on (first).
        size: Bytes in all; no range reaches beyond.
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
            for one in waiting:
                one.cancel()


def _owner(path: str) -> str | None:
    """Return the name that a path below ``refs`` belongs to; None if no registry has such a file."""
    name, mark, rest = path.removeprefix("refs/").partition("/@")
    parts = rest.split("/")
    try:
        if not mark or not check_name(name):
            return None
        if parts[0] in ("versions", "tombstones"):
            return name if len(parts) == 2 and VERSION.fullmatch(parts[1]) else None
        if parts[0] == "aliases":
            return name if len(parts) == 2 and check_alias(parts[1]) else None
        if parts[0] == "log" and len(parts) == 3 and _NUMBER.fullmatch(parts[2]):
            return name if check_alias(parts[1]) else None
    except InvalidName:
        return None
    return None
