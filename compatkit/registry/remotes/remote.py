"""A registry that is far, as a source and as a target of components; what is uploaded is verified before it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs

from compatkit.contracts.codec import digest as digest_of
from compatkit.contracts.codec import dumps
from compatkit.errors import EnvironmentFailure, IntegrityError, LayoutError, UsageError
from compatkit.registry import layout as layouts
from compatkit.registry.blobs import Objects
from compatkit.registry.copy.folders import Folder
from compatkit.registry.copy.places import (
    Examine,
    Incoming,
    Note,
    Source,
    Target,
    by_digest,
    check_size,
    compare,
    place,
)
from compatkit.registry.layout import MARKER, Layout
from compatkit.registry.names import Reference, Version
from compatkit.registry.reach import names as named_in
from compatkit.registry.refs import LIMIT, References
from compatkit.registry.remotes.files import FEW, Files
from compatkit.registry.remotes.mirror import Mirror, mirrored
from compatkit.registry.remotes.readahead import reading

LARGE = 2**23
"""Bytes; larger blobs are uploaded from their file, in parts where the back end takes parts."""
KEPT = 2**20
"""Bytes; longer documents are not kept in memory between being read and being copied."""
KEPT_IN_ALL = 2**28


@attrs.define(eq=False)
class Remote(Source):
    """A registry that is far; only read.

    Attributes:
        files: Its files.
        here: Blobs of this machine's registry: what is there already is not read from afar.
    """

    files: Files
    here: Objects | None = None
    _mirror: Mirror = attrs.field(init=False)
    _listed: bool = attrs.field(init=False, default=False)
    _sizes: dict[str, int | None] = attrs.field(init=False, factory=dict)
    _kept: dict[str, bytes] = attrs.field(init=False, factory=dict)
    _kept_bytes: int = attrs.field(init=False, default=0)
    _by_digest: dict[str, list[Reference]] = attrs.field(init=False, factory=dict)
    _known: int = attrs.field(init=False, default=-1)

    def __attrs_post_init__(self) -> None:
        """Look at nothing yet."""
        self._mirror = Mirror(self.files)

    def close(self) -> None:
        """Remove what was mirrored."""
        self._mirror.close()

    @property
    def where(self) -> str:
        """Its address, without secrets."""
        return self.files.url

    @property
    def advice(self) -> str:
        """What to do where something in it is missing or damaged."""
        return "Push it there again from a registry that holds it, or pull from another remote."

    @property
    def references(self) -> References:
        """Names and versions, as they were when they were looked at."""
        return self._mirror.references

    def layout(self) -> Layout | None:
        """Return what its ``compatkit.json`` says; None if it has none.

        Raises:
            LayoutError: This version cannot read it.
            FormatError: It is damaged.
        """
        data = self.files.read(MARKER, 0, layouts.LIMIT)
        return None if data is None else layouts.read(data, self.where, f"{self.where}/{MARKER}")

    def check(self) -> None:
        """See that it is a registry.

        Raises:
            LayoutError: It is none, or one that this version cannot read.
        """
        if self.layout() is None:
            raise LayoutError(
                f"{self.where} is no registry: it holds no {MARKER}. Push to it first, or check the address.",
                subject=self.where,
            )

    def names(self) -> list[str]:
        """Return all names that have a version."""
        self._list()
        return self._mirror.names()

    def look(self, names: Iterable[str]) -> None:
        """Fetch what ``references`` has to know of some names."""
        self._list()
        self._mirror.fetch(names)

    @property
    def scratch(self) -> str:
        """The folder of this machine in which names and versions are mirrored."""
        return str(self._mirror.root)

    def size(self, digest: str) -> int | None:
        """Return the number of bytes that it has for a digest, or that are here already."""
        here = None if self.here is None else self.here.size(digest)
        return here if here is not None else self.sizes([digest])[digest]

    def expect(self, digests: Iterable[str]) -> None:
        """Fetch documents that are not here, many at once, and look how long what they name is."""
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
        missing = IntegrityError(f"{whose}: {self.where} lacks {digest}. {self.advice}", subject=digest)
        if size is None:
            raise missing

        def ask(at: int, count: int) -> bytes:
            data = kept[at : at + count] if kept is not None else self.files.read(path, at, count)
            if data is None:
                raise missing
            return data

        with reading(ask, size) as read:
            yield Incoming(f"{self.where}/{path}", size, read)

    def notes(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files below folders."""
        inside = [one for one in folders if one.startswith("refs/")]
        found = {path for path in self._refs(inside)}
        others = sorted(set(folders) - set(inside))
        if len(others) <= FEW:
            found.update(path for _, sizes in self.files.at_once(self.files.listed, others) for path in sizes)
        else:
            for top in sorted({one.partition("/")[0] for one in others}):
                wanted = tuple(f"{one}/" for one in others)
                found.update(path for path in self.files.listed(top) if path.startswith(wanted))
        return sorted(found)

    def note(self, path: str) -> bytes | None:
        """Return a small file."""
        mirrored = self._mirror.root / path
        if path.startswith("refs/") and mirrored.is_file():
            return mirrored.read_bytes()
        return self.files.read(path, 0, LIMIT + 1)

    def read_notes(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield small files, many at once."""
        yield from self.files.at_once(self.note, paths)

    def named(self, digest: str) -> list[Reference]:
        """Return all versions that point at a manifest: of names that are beside those looked at, else of all."""
        spaces = {name.partition("/")[0] for name in self._mirror.fetched}
        self.look(name for name in self.names() if name.partition("/")[0] in spaces)
        if digest not in self._naming():
            self.look(self.names())
        return self._naming().get(digest, [])

    def _naming(self) -> dict[str, list[Reference]]:
        if self._known != len(self._mirror.fetched):
            self._by_digest, self._known = by_digest(self.references), len(self._mirror.fetched)
        return self._by_digest

    def _list(self) -> None:
        if not self._listed:
            self._mirror.refresh()
            self._listed = True

    def _refs(self, folders: Sequence[str]) -> Iterator[str]:
        self._list()
        for folder in folders:
            name = folder.removeprefix("refs/").partition("/@")[0]
            yield from (path for path in self._mirror.listed.get(name, []) if path.startswith(f"{folder}/"))

    def _is_away(self, digest: str) -> bool:
        return digest not in self._kept and (self.here is None or self.here.size(digest) is None)

    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return how many bytes the remote has for digests: asked one by one, or by a list of all blobs."""
        unknown = [one for one in digests if one not in self._sizes]
        if len(unknown) > FEW:
            listed = self.files.listed("blobs/sha256")
            self._sizes.update((one, listed.get(place(one))) for one in unknown)
        else:
            self._sizes.update(self.files.at_once(lambda one: self.files.size(place(one)), unknown))
        return {one: self._sizes[one] for one in digests}


@attrs.define(eq=False)
class IntoRemote(Remote, Target):
    """A registry that is far, into which components come."""

    def begin(self) -> None:
        """Make it a registry if it is none yet."""
        found = self.layout()
        if found is None:
            self.files.create(MARKER, dumps(attrs.asdict(layouts.fresh())))
            found = self.layout()
        if found is None:
            raise LayoutError(
                f"{self.where}: {MARKER} was written and cannot be read back.", subject=self.where
            )
        found.check_writer(self.where)

    def carrier(self, source: Source, arrived: Callable[[int], None]) -> Upload:
        """Return what copies blobs there."""
        if not isinstance(source, Folder):
            raise UsageError(
                f"components go to {self.where} from a registry in a folder; pull them into one first."
            )
        return Upload(source.store.objects, self.files, self._sizes, arrived)

    def create(self, notes: Sequence[Note]) -> set[str]:
        """Create small files that must not exist, many at once."""
        return self.files.create_all([(note.path, note.data) for note in notes])

    def settle(self) -> None:
        """See that what was brought is there."""
        self.files.settle()

    def replace(self, path: str, data: bytes) -> None:
        """Put a small file in the place of another."""
        self.files.replace(path, data)

    def remove(self, path: str) -> None:
        """Remove a small file."""
        self.files.remove(path)

    def digest_now(self, name: str, version: Version) -> str | None:
        """Return the manifest digest that a version points at, as of now."""
        path = f"refs/{name}/@versions/{version}"
        data = self.files.read(path, 0, LIMIT + 1)
        if not data:
            return None
        mirrored(self._mirror.root, path, data)
        with self.speaking():
            return self.references.digest(name, version)


@attrs.frozen(eq=False)
class Upload:
    """Copies blobs to a remote.

    Attributes:
        source: Blobs of this machine's registry.
        files: Of the remote.
        there: Bytes that the remote has for digests, as far as that is known; kept up to date.
        arrived: Told how many bytes have left; may raise to stop.
    """

    source: Objects
    files: Files
    there: dict[str, int | None]
    arrived: Callable[[int], None]

    def holds(self, digest: str) -> bool:
        """Tell whether the remote has a blob."""
        return self.there.get(digest) is not None

    def bring(self, digest: str, size: int | None, whose: str, examine: Examine | None = None) -> bool:
        """See to it that the remote has a blob; True if it was copied.

        Raises:
            IntegrityError: It is missing or damaged here, or of another size than its manifest says.
            EnvironmentFailure: It cannot be read or written.
        """
        data = memoryview(self.source.view(digest))
        check_size(digest, size, len(data), whose)
        if self.there.get(digest) == len(data):
            return False
        path = place(digest)
        if len(data) <= LARGE:
            self.files.put(path, bytes(data))
            self.arrived(len(data))
        else:
            self._upload(path, digest, len(data))
        self.there[digest] = len(data)
        return True

    def _upload(self, path: str, digest: str, size: int) -> None:
        self.files.upload(path, self.source.path(digest), self.arrived)
        came = self.files.size(path)
        if came != size:
            raise EnvironmentFailure(
                f"{self.files.url}/{path} should have {size} bytes after it was written, it has {came}. "
                "The same command goes on where it was.",
                subject=path,
            )
