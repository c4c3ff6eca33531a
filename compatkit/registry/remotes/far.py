"""A registry that is far, as a source and as a target of components."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import attrs

from compatkit.contracts.codec import digest as digest_of
from compatkit.contracts.codec import dumps
from compatkit.errors import CompatkitError, IntegrityError, LayoutError, UsageError
from compatkit.registry import disk as durable
from compatkit.registry import layout as layouts
from compatkit.registry.blobs import Objects
from compatkit.registry.copy.sources import Folder, Incoming, Source, by_digest, compare
from compatkit.registry.copy.targets import Note, Target
from compatkit.registry.documents import names as named_in
from compatkit.registry.layout import MARKER, Layout
from compatkit.registry.names import Reference, Version
from compatkit.registry.refs import LIMIT, References
from compatkit.registry.remotes.ahead import reading
from compatkit.registry.remotes.files import FEW, Files
from compatkit.registry.remotes.mirror import Mirror
from compatkit.registry.remotes.upload import Upload

Refused = TypeVar("Refused", bound=CompatkitError)
KEPT = 2**20
"""Bytes; longer documents are not kept in memory between being read and being copied."""
KEPT_IN_ALL = 2**28
_LINE = re.compile(rb"sha256:[0-9a-f]{64}\n")


def place(digest: str) -> str:
    """Return where a registry keeps a blob, relative to its root."""
    name = digest.removeprefix("sha256:")
    return f"blobs/sha256/{name[:2]}/{name}"


@attrs.define(eq=False)
class Far(Source):
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

    def retold(self, error: Refused) -> Refused:
        """Return an error about ``references`` that names the remote."""
        scratch = str(self._mirror.root)
        return type(error)(str(error).replace(scratch, self.where), subject=error.subject)

    def size(self, digest: str) -> int | None:
        """Return the number of bytes that it has for a digest, or that are here already."""
        here = None if self.here is None else self.here.size(digest)
        return here if here is not None else self._sizes_of([digest])[digest]

    def expect(self, digests: Iterable[str]) -> None:
        """Fetch documents that are not here, many at once, and look how long what they name is."""
        wanted = [one for one in dict.fromkeys(digests) if self._is_away(one)]
        sizes = self._sizes_of(wanted)
        short = [one for one in wanted if (sizes[one] or KEPT + 1) <= KEPT and self._kept_bytes < KEPT_IN_ALL]
        further: set[str] = set()
        for one, data in self.files.at_once(lambda one: self.files.read(place(one), 0, KEPT + 1), short):
            if data is not None:
                self._kept[one] = data
                self._kept_bytes += len(data)
                if digest_of(data) == one:
                    found = named_in(data, one, component=False)
                    further |= {name for name, how in found if how != "named" and self._is_away(name)}
        self._sizes_of(sorted(further))

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
    def opened(self, digest: str, whose: str, start: int = 0) -> Iterator[Incoming]:
        """Open a blob."""
        path, kept = place(digest), self._kept.get(digest)
        size = len(kept) if kept is not None else self._sizes_of([digest])[digest]
        missing = IntegrityError(f"{whose}: {self.where} lacks {digest}. {self.advice}", subject=digest)
        if size is None:
            raise missing

        def ask(at: int, count: int) -> bytes:
            data = kept[at : at + count] if kept is not None else self.files.read(path, at, count)
            if data is None:
                raise missing
            return data

        with reading(ask, start, size) as read:
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
                found.update(path for path in self.files.listed(top) if _starts(path, wanted))
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

    def _sizes_of(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return how many bytes the remote has for digests: asked one by one, or by a list of all blobs."""
        unknown = [one for one in digests if one not in self._sizes]
        if len(unknown) > FEW:
            listed = self.files.listed("blobs/sha256")
            self._sizes.update((one, listed.get(place(one))) for one in unknown)
        else:
            self._sizes.update(self.files.at_once(lambda one: self.files.size(place(one)), unknown))
        return {one: self._sizes[one] for one in digests}


def _starts(path: str, folders: tuple[str, ...]) -> bool:
    return path.startswith(folders)


@attrs.define(eq=False)
class IntoFar(Far, Target):
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

    def lacking(self, sizes: Mapping[str, int | None]) -> list[str]:
        """Return which blobs are not there, or have another size than expected."""
        there = self._sizes_of(list(sizes))
        return [one for one, size in sizes.items() if there[one] is None or size not in (None, there[one])]

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
        data = self.files.read(path, 0, 2 * durable.CHUNK)
        if not data:
            return None
        if not _LINE.fullmatch(data):
            raise IntegrityError(
                f"{name}@{version} is damaged: {self.where}/{path} should hold one line 'sha256:' and 64 hex digits, "
                f"got {data[:80]!r}.",
                subject=path,
            )
        return data.decode().strip()
