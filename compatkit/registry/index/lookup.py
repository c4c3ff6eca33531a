"""The index: a disposable SQLite copy of ``refs`` and the manifests, for fast searches and lists.

The files of the registry are authoritative. The index is in the user's cache folder; a damaged or missing one
is created again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from compatkit.errors import EnvironmentFailure, IntegrityError, UsageError
from compatkit.foundation import cache
from compatkit.foundation.codec import is_digest
from compatkit.registry import Progress, resolving
from compatkit.registry.aliases import Aliases
from compatkit.registry.blobs import Objects
from compatkit.registry.index import search
from compatkit.registry.index.sync import Sync
from compatkit.registry.index.tables import FILE, SCHEMA, TIMEOUT_SECONDS
from compatkit.registry.names import Reference
from compatkit.registry.refs import References
from compatkit.registry.sqlite_cache import SqliteCache

if TYPE_CHECKING:
    from compatkit.registry.index.query import Query
    from compatkit.registry.index.search import SearchResult

_COUNTS = (
    "SELECT (SELECT count(DISTINCT name) FROM versions), (SELECT count(*) FROM versions),"
    " (SELECT count(*) FROM manifests), (SELECT count(*) FROM versions v LEFT JOIN manifests m ON m.id = v.manifest"
    " WHERE v.error NOT NULL OR m.error NOT NULL)"
)
_LISTING = (
    "SELECT v.name, v.major || '.' || v.minor || '.' || v.patch, ifnull(v.error, m.error), m.kind, m.parameters,"
    " m.model, m.cut FROM versions v LEFT JOIN manifests m ON m.id = v.manifest WHERE NOT v.withdrawn"
)
_NAMES = (
    "SELECT DISTINCT v.name FROM versions v LEFT JOIN manifests m ON m.id = v.manifest"
    " WHERE v.latest AND v.name >= ? AND v.name < ?"
)
_ROOTS = "SELECT DISTINCT v.name, m.digest FROM versions v JOIN manifests m ON m.id = v.manifest"
Result = TypeVar("Result")


@attrs.frozen
class ListedName:
    """A name with versions that are not withdrawn, and properties of the latest one.

    Attributes:
        name: Name of the components.
        version: Latest version.
        versions: Versions that are not withdrawn, in ascending order.
        kind: Kind of the component.
        parameters: Number of its parameters.
        model: Model that it is a part of.
        cut: Module after which the model was cut.
        aliases: Version by alias.
        error: Description of the damage, in which case the properties are empty; else ``""``.
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
        """Return the fields as JSON values; for a damaged one, only name, versions and error."""
        versions = {"name": self.name, "version": self.version, "versions": list(self.versions)}
        if self.error:
            return {**versions, "error": self.error}
        properties = {"kind": self.kind, "parameters": self.parameters, "model": self.model, "cut": self.cut}
        return {**versions, **properties, "aliases": dict(self.aliases)}


@attrs.frozen
class Status:
    """State of the index itself.

    Attributes:
        path: Path of the file.
        bytes: Size of the file.
        changed: Time of the last change of the file (UTC, ISO 8601), None without a file.
        names: Number of names.
        versions: Number of versions.
        manifests: Number of different manifests.
        damaged: Number of versions with a damaged file or manifest.
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
    """Index of a registry. Thread-safe, and usable after a fork.

    If no process wrote since the last query, a query reads only the state of ``<root>/tmp``. A change by hand is
    noticed after the next write by a program, or ``rebuild``.

    Attributes:
        file: SQLite file, which may not exist.
        references: Names and versions of the registry.
        objects: Blobs of the registry.
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
            root: Root folder of the registry.
            identity: ``Layout.id``.
            objects: Blobs of the registry; None opens them.
            references: Names and versions of the registry; None opens them.
        """
        file = SqliteCache(cache.folder(root, identity) / FILE, SCHEMA, TIMEOUT_SECONDS)
        return cls(file, references or References(root), objects or Objects(root))

    @property
    def path(self) -> Path:
        """Path of the file, which may not exist."""
        return self.file.path

    def search(self, query: Query | None = None, **filters: Any) -> list[SearchResult]:
        """Return the matching versions, sorted by name and version; damaged ones are skipped.

        Args:
            query: Filters.
            filters: Fields of ``Query``, in place of one.

        Raises:
            UsageError: A filter is unknown, or has an unusable value.
            NotFound: The parent does not exist.
        """
        checked = self._query(query, filters)
        return self._run_refreshed(lambda connection: search.search(connection, checked))

    def count(self, query: Query | None = None, **filters: Any) -> int:
        """Return the number of matching versions, ignoring limit and offset.

        Args:
            query: Filters.
            filters: Fields of ``Query``, in place of one.
        """
        checked = self._query(query, filters)
        return self._run_refreshed(lambda connection: search.count(connection, checked))

    def listing(self, pattern: str | None = None) -> list[ListedName]:
        """Return every name with versions that are not withdrawn; damaged ones have an ``error``.

        Aliases are read from their files, not from the index.
        """
        condition, values = search.glob("v.name", pattern)
        sql = f"{_LISTING}{condition} ORDER BY v.name, v.major, v.minor, v.patch"
        rows = self._run_refreshed(lambda connection: connection.execute(sql, values).fetchall())
        return [self._listed(name, list(versions)) for name, versions in groupby(rows, itemgetter(0))]

    def names(
        self, prefix: str = "", kinds: Sequence[str] = (), progress: Progress | None = None
    ) -> list[str]:
        """Return names with versions that are not withdrawn, sorted.

        Args:
            prefix: How they begin.
            kinds: Kinds of their latest versions; empty for all.
            progress: As of ``refresh``, which comes first; it may raise.
        """
        holes = ", ".join("?" * len(kinds))
        condition = f" AND m.kind IN ({holes})" if kinds else ""
        sql = f"{_NAMES}{condition} ORDER BY v.name"
        return self._column(sql, prefix, f"{prefix}\U0010ffff", *kinds, progress=progress)

    def models(self, progress: Progress | None = None) -> list[str]:
        """Return the models of all components, sorted.

        Args:
            progress: As of ``refresh``, which comes first; it may raise.
        """
        sql = "SELECT DISTINCT model FROM manifests WHERE model <> '' ORDER BY model"
        return self._column(sql, progress=progress)

    def roots(self) -> list[tuple[str, str]]:
        """Return name and manifest digest of every version, including withdrawn ones."""
        return self._run_refreshed(lambda connection: connection.execute(_ROOTS).fetchall())

    def refresh(self, progress: Progress | None = None) -> int:
        """Read what was written since the last query, as every query does first.

        Args:
            progress: Called with done, total and the current name.

        Returns:
            Number of names that were read.

        Raises:
            EnvironmentFailure: The files below ``refs`` cannot be read, or the index cannot be written.
            IntegrityError: The folder ``refs`` is a symbolic link.
        """
        return self._run(lambda connection: self._sync(connection).refresh(progress))

    def rebuild(self, progress: Progress | None = None) -> None:
        """Read all files again. The file is emptied and not deleted, since other processes may be using it."""
        self._run(lambda connection: self._sync(connection).refresh(progress, rebuild=True))

    def status(self) -> Status:
        """Return path, size and counts of the index."""
        counts = self._run_refreshed(lambda connection: connection.execute(_COUNTS).fetchone())
        size, changed = 0, None
        with suppress(OSError):
            state = self.path.stat()
            size, changed = state.st_size, datetime.fromtimestamp(int(state.st_mtime), UTC).isoformat()
        return Status(self.path, size, changed, *counts)

    def close(self) -> None:
        """Close the file; the next query opens it again."""
        self.file.close()

    def _query(self, query: Query | None, filters: dict[str, Any]) -> Query:
        from compatkit.registry.index.query import Query

        known = attrs.fields_dict(Query)
        if query is not None and filters:
            raise UsageError("pass either a query or its fields, not both.")
        if unknown := filters.keys() - known.keys():
            raise UsageError(
                f"{min(unknown)!r} is not a filter of a search; expected one of {', '.join(known)}."
            )
        checked = query if query is not None else Query(**filters)
        if checked.parent is None or is_digest(checked.parent):
            return checked
        parent = resolving.resolve(self.references, Reference.parse(checked.parent)).digest
        return attrs.evolve(checked, parent=parent)

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

    def _column(self, sql: str, *values: str, progress: Progress | None) -> list[str]:
        rows = self._run_refreshed(lambda connection: connection.execute(sql, values).fetchall(), progress)
        return [row[0] for row in rows]

    def _run_refreshed(
        self, work: Callable[[sqlite3.Connection], Result], progress: Progress | None = None
    ) -> Result:
        """Bring the tables up to date, and return the result of ``work``."""

        def refresh_and_work(connection: sqlite3.Connection) -> Result:
            self._sync(connection).refresh(progress)
            return work(connection)

        return self._run(refresh_and_work)

    def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            return self.file.run(work)
        except (sqlite3.Error, OSError) as error:
            raise EnvironmentFailure(
                f"the index {self.path} cannot be used: {error}. It is disposable: free disk space, or set "
                f"{cache.VARIABLE} to a writable folder.",
                subject=self.path,
            ) from error

    def _sync(self, connection: sqlite3.Connection) -> Sync:
        return Sync(connection, self.references, self.objects)
