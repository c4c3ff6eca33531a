"""The index: a disposable SQLite copy of ``refs`` and the manifests, for fast searches and lists.

The files of the registry are the truth. The index lies in the user's cache folder. If it is damaged or missing it is
made anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import attrs

from compatkit.errors import EnvironmentFailure, IntegrityError, UsageError
from compatkit.foundation import cache
from compatkit.foundation.codec import is_digest
from compatkit.registry import Progress, resolving
from compatkit.registry.aliases import Aliases
from compatkit.registry.blobs import Objects
from compatkit.registry.index import search
from compatkit.registry.index.search import Query, SearchResult
from compatkit.registry.index.sync import Sync
from compatkit.registry.index.tables import FILE, PATIENCE, SCHEMA
from compatkit.registry.names import Reference
from compatkit.registry.refs import References
from compatkit.registry.sqlite_cache import SqliteCache

_COUNTS = (
    "SELECT (SELECT count(DISTINCT name) FROM versions), (SELECT count(*) FROM versions),"
    " (SELECT count(*) FROM manifests), (SELECT count(*) FROM versions v LEFT JOIN manifests m ON m.id = v.manifest"
    " WHERE v.error NOT NULL OR m.error NOT NULL)"
)
_LISTING = (
    "SELECT v.name, v.major || '.' || v.minor || '.' || v.patch, ifnull(v.error, m.error), m.kind, m.parameters,"
    " m.model, m.cut FROM versions v LEFT JOIN manifests m ON m.id = v.manifest WHERE NOT v.withdrawn"
)
_ROOTS = "SELECT DISTINCT v.name, m.digest FROM versions v JOIN manifests m ON m.id = v.manifest"
Answer = TypeVar("Answer")


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
        bytes: Size of the file.
        changed: When the file was last written (UTC, ISO 8601), None if there is none.
        damaged: Number of versions that are damaged, or whose manifests are.
    """

    path: Path
    bytes: int
    changed: str | None
    names: int
    versions: int
    manifests: int
    damaged: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return attrs.asdict(self) | {"path": str(self.path)}


@attrs.frozen(eq=False)
class Index:
    """Finds components without opening their files. May be shared between threads, and survives a fork.

    If nothing was written since the last question of any process, a question costs one look at ``<root>/tmp``. A change
    by hand is seen after the next write of a program, or ``rebuild``.

    Attributes:
        file: The file, which may not exist.
        references: Names and versions.
        objects: Manifests.
    """

    file: SqliteCache
    references: References
    objects: Objects

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
        file = SqliteCache(cache.folder(root, identity) / FILE, SCHEMA, PATIENCE)
        return cls(file, references or References(root), objects or Objects(root))

    @property
    def path(self) -> Path:
        """The file, which may not exist."""
        return self.file.path

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
        return self._ask(lambda connection: search.search(connection, ready))

    def count(self, query: Query | None = None, **filters: Any) -> int:
        """Return how many versions fit, ignoring limit and offset.

        Args:
            query: What to look for; None to make it of ``filters``.
            filters: Fields of ``Query``.
        """
        ready = self._ready(query, filters)
        return self._ask(lambda connection: search.count(connection, ready))

    def listing(self, pattern: str | None = None) -> list[ListedName]:
        """Return every name that has versions which are not withdrawn; damaged ones say so.

        Aliases are read from their files, not from the index.
        """
        fits, values = search.glob("v.name", pattern)
        sql = f"{_LISTING}{fits} ORDER BY v.name, v.major, v.minor, v.patch"
        rows = self._ask(lambda connection: connection.execute(sql, values).fetchall())
        return [self._listed(name, list(versions)) for name, versions in groupby(rows, itemgetter(0))]

    def roots(self) -> list[tuple[str, str]]:
        """Return name and manifest digest of every version, withdrawn ones included."""
        return self._ask(lambda connection: connection.execute(_ROOTS).fetchall())

    def refresh(self, progress: Progress | None = None) -> int:
        """Read what was written since the last question, as every question does first.

        Args:
            progress: Called with done, total and the name that is read.

        Returns:
            The number of names that were read.

        Raises:
            EnvironmentFailure: The files below ``refs`` cannot be read, or the index cannot be written.
            IntegrityError: The folder ``refs`` is a symbolic link.
        """
        return self._use(lambda connection: self._sync(connection).refresh(progress))

    def rebuild(self, progress: Progress | None = None) -> None:
        """Delete the file and read all files again."""
        self.file.discard()
        self.refresh(progress)

    def status(self) -> Status:
        """Return where the index is kept and what it holds."""
        counts = self._ask(lambda connection: connection.execute(_COUNTS).fetchone())
        size, changed = 0, None
        with suppress(OSError):
            state = self.path.stat()
            size, changed = state.st_size, datetime.fromtimestamp(int(state.st_mtime), UTC).isoformat()
        return Status(self.path, size, changed, *counts)

    def close(self) -> None:
        """Close the file; the next question opens it again."""
        self.file.close()

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

    def _listed(self, name: str, rows: list[tuple[Any, ...]]) -> ListedName:
        versions = tuple(row[1] for row in rows)
        error, kind, parameters, model, cut = rows[-1][2:]
        aliases: Mapping[str, str] = {}
        try:
            aliases = Aliases(self.references.folder(name), self.references.root).all()
        except IntegrityError as problem:
            error = error or str(problem)
        if error:
            return ListedName(name, versions[-1], versions, error=error)
        return ListedName(name, versions[-1], versions, kind, parameters, model, cut, aliases)

    def _ask(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Answer from tables that are up to date."""

        def answer(connection: sqlite3.Connection) -> Answer:
            self._sync(connection).refresh()
            return work(connection)

        return self._use(answer)

    def _use(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        try:
            return self.file.run(work)
        except (sqlite3.Error, OSError) as error:
            raise EnvironmentFailure(
                f"the index {self.path} cannot be used: {error}. It is disposable: make room, or name a folder that "
                f"can be written with {cache.VARIABLE}.",
                subject=self.path,
            ) from error

    def _sync(self, connection: sqlite3.Connection) -> Sync:
        return Sync(connection, self.references, self.objects)
