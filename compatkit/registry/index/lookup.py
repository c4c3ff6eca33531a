"""The index: a disposable copy of what the files below ``refs`` and the manifests say, for fast answers.

Files are the truth. The copy lies in the user's cache folder; if it is damaged, old, locked or gone, it is made anew,
else in memory, and where SQLite itself does not work the files are asked each time. No state of it is ever an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import attrs

from compatkit.contracts.codec import is_digest
from compatkit.errors import IntegrityError, InvalidName, UsageError
from compatkit.registry import cache, resolving
from compatkit.registry.blobs import Objects
from compatkit.registry.index.folders import Progress
from compatkit.registry.index.listed import Listed
from compatkit.registry.index.listing import list_names
from compatkit.registry.index.places import Kept, Places
from compatkit.registry.index.reading import Reader
from compatkit.registry.index.scanning import Watch, parsed
from compatkit.registry.index.search import Found, Query
from compatkit.registry.index.tables import FAILURES, FILE, ODD
from compatkit.registry.index.walking import Walk
from compatkit.registry.names import Reference, Version
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import References
from compatkit.registry.results import Result

PAGE = 1000
"""Rows of a stream that are asked for at once."""
_MARKS = frozenset("*?[")
Answer = TypeVar("Answer")


@attrs.frozen
class Status:
    """What there is to say about the index itself.

    Attributes:
        path: Of the file.
        kept: ``"file"``; ``"memory"`` of this process; ``"files"`` where SQLite does not work.
        reason: Why it is not kept in the file; ``""`` if it is.
        bytes: Of the file.
        changed: When the file was last written (UTC, ISO 8601), None if there is none.
        read: Folders that were read again by the last look, which this question makes.
    """

    path: Path
    kept: Kept
    reason: str
    bytes: int
    changed: str | None
    names: int
    versions: int
    manifests: int
    damaged: int
    read: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return attrs.asdict(self) | {"path": str(self.path)}


@attrs.define(eq=False)
class Index:
    """Finds components without opening their files; safe to share between threads, and to take along into a fork.

    The first question looks at the time of every folder below ``refs``; later ones only do so again if a writer came
    by, which ``<root>/tmp`` shows. A file that was rewritten in place is seen when it is about to be told.
    """

    _places: Places = attrs.field(repr=False)
    _watch: Watch | None = attrs.field(init=False, repr=False, default=None)
    _read: int = attrs.field(init=False, repr=False, default=0)

    @classmethod
    def of(
        cls, root: Path, identity: str, objects: Objects | None = None, references: References | None = None
    ) -> Index:
        """Return the index of a registry; nothing is opened or read yet.

        Args:
            root: Of the registry.
            identity: ``Layout.id``.
            objects: Its blobs; None opens them.
            references: Its names and versions; None opens them.
        """
        path = cache.folder(root, identity) / FILE
        return cls(Places(path, identity, references or References(root), objects or Objects(root)))

    @property
    def path(self) -> Path:
        """Where the file is, or would be."""
        return self._places.path

    def names(self, pattern: str | None = None) -> list[str]:
        """Return all names that have a version, sorted; with a glob those it matches (``*`` also matches ``/``)."""
        if pattern is not None and not _MARKS.intersection(pattern):  # one name: its own folder tells
            try:
                return [pattern] if self._places.references.versions(pattern) else []
            except (InvalidName, IntegrityError):  # no name, or a link where one would be
                return []
        return self._ask(lambda answers: answers.names(pattern))

    def find(self, name: str, version: str | Version) -> Found | None:
        """Return what is known of one version, compared with its files; None if there is none.

        Withdrawn and damaged versions are found too, and say so. No other file is looked at.

        Raises:
            InvalidName: Name or version is not valid.
            IntegrityError: A folder on the way is a symbolic link.
        """
        number = parsed(str(version)) or attrs.astuple(
            Version.parse(str(version))
        )  # the latter says what is wrong
        return self._ask(lambda answers: answers.find(name, number), fresh=False)

    def search(self, query: Query | None = None, **filters: Any) -> list[Found]:
        """Return the versions that fit, by name and rising version; damaged ones are passed over.

        Args:
            query: What is searched for.
            filters: Fields of ``Query``, instead of one.

        Raises:
            UsageError: A filter is unknown, or not usable as given.
            NotFound: The parent does not exist.
        """
        ready = self._ready(query, filters)
        return self._ask(lambda answers: answers.page(ready))

    def each(self, query: Query | None = None, **filters: Any) -> Iterator[Found]:
        """Yield what ``search`` returns, a page at a time; changes in the meantime show in later pages."""
        ready = self._ready(query, filters)
        left, after = ready.limit, None
        while left is None or left > 0:
            page = attrs.evolve(ready, limit=PAGE if left is None else min(PAGE, left))
            if after is not None:
                page = attrs.evolve(page, offset=0)
            rows = self._ask(lambda answers, page=page, after=after: answers.page(page, after))
            yield from rows
            if not rows:
                return
            left = None if left is None else left - len(rows)
            after = rows[-1].name, attrs.astuple(Version.parse(rows[-1].version))

    def count(self, query: Query | None = None, **filters: Any) -> int:
        """Return how many versions fit, whatever limit and offset; their files are not compared."""
        ready = self._ready(query, filters)
        return self._ask(lambda answers: answers.count(ready))

    def listing(self, pattern: str | None = None) -> Iterator[Listed]:
        """Yield every name that has versions which are not withdrawn, with its latest; damaged ones say so."""
        after = ""
        while True:
            rows = self._ask(lambda answers, after=after: _listing(answers, pattern, after))
            yield from rows
            if len(rows) < PAGE:
                return
            after = rows[-1].name

    def roots(self) -> list[tuple[str, str]]:
        """Return every name with the digest of each manifest that a version of it points at, withdrawn or not."""
        return self._ask(lambda answers: list(answers.roots()))

    def edges(self) -> list[tuple[str, str]]:
        """Return every known manifest's digest with each digest that must be kept with it."""
        return self._ask(lambda answers: list(answers.edges()))

    def referenced(self) -> set[str]:
        """Return the digests of all that any version keeps: its manifest, and along edges what those keep."""
        return self._ask(lambda answers: answers.referenced())

    def results(self, extractors: Sequence[str], heads: Sequence[str]) -> list[Result]:
        """Return what was measured of every extractor with every head, in no order; damaged results say so.

        Each row is compared with the file that points at its document before it is told. The document itself is not
        opened again: its digest was right when it was read.

        Args:
            extractors: Function digests, ``value:sha256:...``.
            heads: The same.

        Raises:
            IntegrityError: A folder below ``evidence`` is a symbolic link.
            EnvironmentFailure: The files cannot be read.
        """
        with environment("read", self._places.references.root / "evidence"):
            return self._ask(lambda answers: answers.results(extractors, heads), fresh=False)

    def refresh(self, *, everything: bool = False, progress: Progress | None = None) -> int:
        """Look at all folders below ``refs`` and read again what changed.

        Args:
            everything: Whether to read all files, whatever is known of them.
            progress: Called with done, total and the name that is read.

        Returns:
            How many folders were read again.

        Raises:
            EnvironmentFailure: The files below ``refs`` cannot be read.
            IntegrityError: The folder ``refs`` is a symbolic link.
        """
        self._ask(lambda _: self._scan(everything, progress), fresh=False)
        return self._read

    def rebuild(self, progress: Progress | None = None) -> None:
        """Forget everything and read all files again, in one transaction: others see the old index until it is done."""
        self.close()
        self.refresh(everything=True, progress=progress)

    def status(self) -> Status:
        """Return where the index is kept and what it holds."""
        counts = self._ask(lambda answers: answers.counts())
        size, changed = 0, None
        with suppress(OSError):
            state = self.path.stat()
            size, changed = state.st_size, datetime.fromtimestamp(int(state.st_mtime), UTC).isoformat()
        kept, reason = self._places.kept, self._places.reason
        return Status(self.path, kept, reason, size, changed, **counts, read=self._read)

    def close(self) -> None:
        """Close the file; the next question opens it again."""
        self._enter()
        with self._places.lock:
            self._places.reset()
            self._watch = None

    def _ready(self, query: Query | None, filters: dict[str, Any]) -> Query:
        known = attrs.fields_dict(Query)
        if query is not None and filters:
            raise UsageError("give either a query or its fields, not both.")
        if unknown := filters.keys() - known.keys():
            raise UsageError(f"{min(unknown)!r} is no filter of a search; there are {', '.join(known)}.")
        ready = query if query is not None else Query(**filters)
        if ready.parent is None or is_digest(ready.parent):
            return ready
        parent = resolving.resolve(self._places.references, Reference.parse(ready.parent)).digest
        return attrs.evolve(ready, parent=parent)

    def _enter(self) -> None:
        if self._places.enter():
            self._watch = None

    def _ask(self, work: Callable[[Any], Answer], *, fresh: bool = True) -> Answer:
        """Return an answer from the best place that works."""
        self._enter()
        with self._places.lock:
            while True:
                try:
                    if fresh and (self._watch is None or not self._watch.holds(self._places.references.root)):
                        self._scan(False, None)
                    return work(self._places.answers())
                except (*FAILURES, *ODD) as error:
                    if isinstance(error, ODD) and not self._places.is_suspect:
                        raise  # a defect of this program
                    self._places.retreat(error)
                    self._watch = None

    def _scan(self, everything: bool, progress: Progress | None) -> None:
        answers = self._places.answers()
        if isinstance(answers, Reader) and not answers.tables.is_there():
            self._places.drop()  # what is written into a file without a name is lost
            answers = self._places.answers()
        if isinstance(answers, Walk):
            return
        watch = Watch.take(self._places.references.root)
        self._read = answers.writer.refresh(everything=everything, progress=progress)
        self._watch = watch


def _listing(answers: Reader | Walk, pattern: str | None, after: str) -> list[Listed]:
    if isinstance(answers, Walk):
        return answers.listing(pattern, after, PAGE)
    return list_names(answers, pattern, after, PAGE)
