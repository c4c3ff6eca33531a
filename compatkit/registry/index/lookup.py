"""The index: a disposable SQLite copy of ``refs`` and the manifests, for fast searches and lists.

The files of the registry are the truth. The index lies in the user's cache folder. If it is damaged or missing it is
rebuilt; if no file can be used there, each process fills one in memory. No state of the index is ever an error.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import attrs

from compatkit.errors import IntegrityError, InvalidName, UsageError
from compatkit.foundation import cache
from compatkit.foundation.codec import is_digest
from compatkit.registry import Progress, resolving
from compatkit.registry.aliases import Aliases
from compatkit.registry.blobs import Objects
from compatkit.registry.evidence import StoredResult
from compatkit.registry.index import search
from compatkit.registry.index.results import ResultTable
from compatkit.registry.index.search import Query, SearchResult
from compatkit.registry.index.sync import Sync
from compatkit.registry.index.tables import FAILURES, FILE, Storage, Tables, inode_of, is_broken, remove
from compatkit.registry.names import Reference
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import References

_ODD = (TypeError, ValueError, LookupError, AttributeError)
"""Errors caused by a database with damaged content, such as text in place of numbers."""
_MARKS = frozenset("*?[")
_COUNTS = (
    "SELECT (SELECT count(*) FROM folders WHERE versions > 0), (SELECT count(*) FROM versions WHERE state < 2),"
    " (SELECT count(*) FROM manifests WHERE kind NOT NULL OR error NOT NULL),"
    " (SELECT count(*) FROM manifests WHERE error IS NOT NULL)"
    " + (SELECT count(*) FROM versions WHERE error IS NOT NULL)"
)
_LISTING = (
    "SELECT f.name, f.live, f.aliased, ifnull(f.error, m.error), m.kind, m.parameters, m.model, m.split"
    " FROM folders f LEFT JOIN manifests m ON m.id = f.manifest WHERE f.versions > 0 AND f.live <> ''"
)
_ROOTS = (
    "SELECT DISTINCT f.name, m.digest FROM versions v JOIN folders f ON f.id = v.folder"
    " JOIN manifests m ON m.id = v.manifest"
)
_EDGES = "SELECT m.digest, e.digest FROM edges e JOIN manifests m ON m.id = e.manifest"
_REFERENCED = (
    "WITH RECURSIVE kept (id) AS (SELECT DISTINCT manifest FROM versions WHERE manifest IS NOT NULL"
    " UNION SELECT m.id FROM kept CROSS JOIN edges e ON e.manifest = kept.id AND e.followed"
    " CROSS JOIN manifests m ON m.digest = e.digest)"
    " SELECT digest FROM kept CROSS JOIN manifests USING (id)"
    " UNION ALL SELECT e.digest FROM kept CROSS JOIN edges e ON e.manifest = kept.id"
)
Answer = TypeVar("Answer")
_forked: list[object] = []
"""Connections of the parent process: a child must neither use nor close them."""


@attrs.frozen
class ListedName:
    """A name with versions that are not withdrawn, and facts about the latest of them.

    Attributes:
        version: The latest version.
        versions: All versions that are not withdrawn, rising.
        aliases: Version by alias.
        error: What is damaged; the facts are empty then. ``""`` if all is sound.
    """

    name: str
    version: str
    versions: tuple[str, ...]
    kind: str = ""
    parameters: int = 0
    model: str = ""
    cut: str = ""
    aliases: Mapping[str, str] = attrs.field(factory=dict)
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; of a damaged one, names, versions and error only."""
        place = {"name": self.name, "version": self.version, "versions": list(self.versions)}
        if self.error:
            return {**place, "error": self.error}
        facts = {"kind": self.kind, "parameters": self.parameters, "model": self.model, "cut": self.cut}
        return {**place, **facts, "aliases": dict(self.aliases)}


@attrs.frozen
class Status:
    """State of the index itself.

    Attributes:
        path: The file.
        storage: ``"file"``, or ``"memory"`` of this process.
        reason: Why it is not kept in the file; ``""`` if it is.
        bytes: Size of the file.
        changed: When the file was last written (UTC, ISO 8601), None if there is none.
        read: Number of folders that this process read when it last found changed ones.
    """

    path: Path
    storage: Storage
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


@attrs.frozen(eq=False)
class Opened:
    """Open tables, and what brings them up to date."""

    tables: Tables
    sync: Sync
    results: ResultTable


@attrs.define(eq=False)
class Index:
    """Finds components without opening their files. May be shared between threads, and survives a fork.

    If nothing was written since the last question of any process, a question costs one look at ``<root>/tmp``. A change
    by hand is seen after the next write of a program, or ``rebuild``.

    Attributes:
        path: The file, which may not exist.
        identity: ``Layout.id``.
        references: Names and versions.
        objects: Manifests.
    """

    path: Path
    identity: str
    references: References
    objects: Objects
    _storage: Storage = attrs.field(init=False, default="file")
    _reason: str = attrs.field(init=False, default="")
    _renewed: bool = attrs.field(init=False, default=False)
    _inode: int = attrs.field(init=False, default=0)
    _read: int = attrs.field(init=False, default=0)
    _lock: Any = attrs.field(init=False, repr=False, factory=threading.RLock)
    _process: int = attrs.field(init=False, repr=False, factory=os.getpid)
    _opened: Opened | None = attrs.field(init=False, repr=False, default=None)

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
        return cls(path, identity, references or References(root), objects or Objects(root))

    def names(self, pattern: str | None = None) -> list[str]:
        """Return all names that have a version, sorted; with a glob those it matches (``*`` also matches ``/``)."""
        if pattern is not None and not _MARKS.intersection(pattern):  # one name: its own folder tells
            try:
                return [pattern] if self.references.versions(pattern) else []
            except (InvalidName, IntegrityError):  # no name, or a link where one would be
                return []
        fits, values = search.glob("name", pattern)
        sql = f"SELECT name FROM folders WHERE versions > 0{fits} ORDER BY name"
        return [name for (name,) in self._rows(sql, values)]

    def search(self, query: Query | None = None, **filters: Any) -> list[SearchResult]:
        """Return the versions that fit, by name and rising version; damaged ones are passed over.

        Args:
            query: What is searched for.
            filters: Fields of ``Query``, instead of one.

        Raises:
            UsageError: A filter is unknown, or not usable as given.
            NotFound: The parent does not exist.
        """
        ready = self._ready(query, filters)
        return self._ask(lambda opened: search.search(opened.tables.connection, ready))

    def count(self, query: Query | None = None, **filters: Any) -> int:
        """Return how many versions fit, ignoring limit and offset.

        Args:
            query: What to look for; None to make it of ``filters``.
            filters: Fields of ``Query``.
        """
        ready = self._ready(query, filters)
        return self._ask(lambda opened: search.count(opened.tables.connection, ready))

    def listing(self, pattern: str | None = None) -> list[ListedName]:
        """Return every name that has versions which are not withdrawn; damaged ones say so.

        Aliases are read from their files, not from the index.
        """
        fits, values = search.glob("f.name", pattern)
        sql = f"{_LISTING}{fits} ORDER BY f.name"
        return self._ask(
            lambda opened: [
                self._listed(row) for row in opened.tables.connection.execute(sql, values).fetchall()
            ]
        )

    def roots(self) -> list[tuple[str, str]]:
        """Return name and manifest digest of every version, withdrawn ones included."""
        return self._rows(_ROOTS)

    def edges(self) -> list[tuple[str, str]]:
        """Return pairs: digest of a manifest, and a digest that it refers to."""
        return self._rows(_EDGES)

    def referenced(self) -> set[str]:
        """Return the digests reachable from any version: its manifest, and what follows along edges."""
        return {digest for (digest,) in self._rows(_REFERENCED)}

    def results(self, extractors: Sequence[str], heads: Sequence[str]) -> list[StoredResult]:
        """Return the results of every extractor with every head, in no order; damaged ones say so.

        Args:
            extractors: Function digests, ``value:sha256:...``.
            heads: The same.

        Raises:
            IntegrityError: A folder below ``evidence`` is a symbolic link.
            EnvironmentFailure: The files cannot be read.
        """
        with environment("read", self.references.root / "evidence"):
            return self._ask(lambda opened: opened.results.find(extractors, heads), fresh=False)

    def refresh(self, progress: Progress | None = None) -> int:
        """Read what was written since the last question, as every question does first.

        Args:
            progress: Called with done, total and the name that is read.

        Returns:
            The number of folders that were read.

        Raises:
            EnvironmentFailure: The files below ``refs`` cannot be read.
            IntegrityError: The folder ``refs`` is a symbolic link.
        """
        return self._ask(lambda opened: self._sync(opened, False, progress), fresh=False)

    def rebuild(self, progress: Progress | None = None) -> None:
        """Read all files again, in one transaction: other processes see the old index until it is done."""
        self.close()
        self._ask(lambda opened: self._sync(opened, True, progress), fresh=False)

    def status(self) -> Status:
        """Return where the index is kept and what it holds."""
        counts = self._rows(_COUNTS)[0]
        size, changed = 0, None
        with suppress(OSError):
            state = self.path.stat()
            size, changed = state.st_size, datetime.fromtimestamp(int(state.st_mtime), UTC).isoformat()
        names, versions, manifests, damaged = counts
        where = self.path, self._storage, self._reason, size, changed
        return Status(*where, names, versions, manifests, damaged, self._read)

    def close(self) -> None:
        """Close the file; the next question opens it again."""
        self._enter()
        with self._lock:
            self._drop()
            self._storage, self._reason, self._renewed = "file", "", False

    def _ready(self, query: Query | None, filters: dict[str, Any]) -> Query:
        known = attrs.fields_dict(Query)
        if query is not None and filters:
            raise UsageError("give either a query or its fields, not both.")
        if unknown := filters.keys() - known.keys():
            raise UsageError(f"{min(unknown)!r} is no filter of a search; there are {', '.join(known)}.")
        ready = query if query is not None else Query(**filters)
        if ready.parent is None or is_digest(ready.parent):
            return ready
        parent = resolving.resolve(self.references, Reference.parse(ready.parent)).digest
        return attrs.evolve(ready, parent=parent)

    def _listed(self, row: tuple[Any, ...]) -> ListedName:
        name, live, aliased, error, kind, parameters, model, cut = row
        versions, aliases = tuple(live.split(" ")), {}
        if aliased and not error:
            try:
                aliases = Aliases(self.references.folder(name), self.references.root).all()
            except IntegrityError as problem:
                error = str(problem)
        if error:
            return ListedName(name, versions[-1], versions, error=error)
        return ListedName(name, versions[-1], versions, kind, parameters, model, cut, aliases)

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._ask(lambda opened: opened.tables.connection.execute(sql, values).fetchall())

    def _enter(self) -> None:
        """In a forked process, leave the connections of the parent alone."""
        if self._process != os.getpid():
            _forked.append(self._opened)
            self._process, self._lock, self._opened = os.getpid(), threading.RLock(), None

    def _ask(self, work: Callable[[Opened], Answer], *, fresh: bool = True) -> Answer:
        """Answer from the tables; replace them as long as they fail."""
        self._enter()
        with self._lock:
            while True:
                try:
                    opened = self._open()
                    if fresh:
                        self._sync(opened, False, None)
                    return work(self._open())
                except (*FAILURES, *_ODD) as error:
                    if self._storage == "memory" or (isinstance(error, _ODD) and self._renewed):
                        raise  # a defect of this program: what was just made anew cannot be damaged
                    self._replace(error)

    def _open(self) -> Opened:
        if self._opened is None:
            if self._storage == "file":
                self._inode = inode_of(self.path)
                tables = Tables.in_file(self.path, self.identity)
            else:
                tables = Tables.in_memory(self.path, self.identity)
            connection, root = tables.connection, self.references.root
            sync = Sync(connection, self.references, self.objects)
            self._opened = Opened(tables, sync, ResultTable(connection, root))
        return self._opened

    def _sync(self, opened: Opened, everything: bool, progress: Progress | None) -> int:
        if not opened.tables.is_there():
            self._drop()  # what is written into a file without a name is lost
            opened = self._open()
        count = opened.sync.refresh(everything=everything, progress=progress)
        self._read = count or self._read
        return count

    def _drop(self) -> None:
        """Close what is open; the next question opens it again."""
        if self._opened is not None:
            self._opened.tables.close()
        self._opened = None

    def _replace(self, error: Exception) -> None:
        """Delete a broken file, once, so that it is made anew; if no file can be used, go on in memory."""
        inode = self._opened.tables.inode if self._opened is not None else self._inode
        broken = is_broken(error)
        self._drop()
        if broken and not self._renewed:
            remove(self.path, inode)
            self._renewed = True
        else:
            self._storage, self._reason = "memory", str(error)
