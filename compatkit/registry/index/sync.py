"""Bring the tables up to date with the files: only changed names are read, and no link is followed.

Every writer creates a draft in ``<root>/tmp`` before it writes, and removes it afterwards. So one number, the pulse of
the registry, shows whether anything was written since the tables were filled; only then the times of all folders are
compared.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import CompatkitError, IntegrityError
from compatkit.foundation.codec import MAX_BYTES
from compatkit.registry.blobs import Objects
from compatkit.registry.index.stamps import pulse, versions_state
from compatkit.registry.index.tables import TABLES
from compatkit.registry.names import numbers_of
from compatkit.registry.refs import References

if TYPE_CHECKING:
    from compatkit.registry import Progress
    from compatkit.registry.index.properties import ManifestProperties

PROGRESS_STEP = 50
"""Number of names between two reports of progress."""


@attrs.define(eq=False)
class Sync:
    """Update of the tables from the files, in one transaction.

    Attributes:
        connection: Connection to the tables.
        references: Names and versions of the registry.
        objects: Blobs of the registry.
    """

    connection: sqlite3.Connection
    references: References
    objects: Objects
    _lists: set[str] = attrs.field(init=False, factory=set)
    _manifests: dict[str, int] = attrs.field(init=False, factory=dict)

    def refresh(self, progress: Progress | None = None, *, rebuild: bool = False) -> int:
        """Read the names that changed.

        Args:
            progress: Called with done, total and the current name.
            rebuild: Whether to empty the tables first, so that all names are read.

        Returns:
            Number of names that were read.

        Raises:
            sqlite3.Error: The tables cannot be read or written; they are not changed.
            EnvironmentFailure: The files below ``refs`` cannot be read.
            IntegrityError: The folder ``refs`` is a symbolic link.
        """
        current_pulse, now = pulse(self.references.root), time.time_ns()
        stored = self.connection.execute("SELECT value FROM about WHERE key = 'pulse'").fetchone()
        if not rebuild and current_pulse is not None and stored == (current_pulse,):
            return 0
        known = {} if rebuild else dict(self.connection.execute("SELECT name, state FROM names"))
        states = {
            name: versions_state(f"{self.references.root}/refs/{name}", now)
            for name in self.references.names()
        }
        removed = known.keys() - states.keys()
        changed = [name for name, state in states.items() if state is None or known.get(name) != state]
        if not (removed or changed or rebuild):
            with suppress(sqlite3.OperationalError):  # read-only: the next query compares again
                self._store_pulse(current_pulse)
            return 0
        with self._transaction():
            for table in TABLES if rebuild else ():
                self.connection.execute(f"DELETE FROM {table}")
            for name in removed:
                self._forget(name)
            for count, name in enumerate(changed):
                if progress is not None and count % PROGRESS_STEP == 0:
                    progress(count, len(changed), name)
                self._read(name, states[name])
            self._store_pulse(current_pulse)
        if progress is not None:
            progress(len(changed), len(changed), "")
        return len(changed)

    def _store_pulse(self, current_pulse: int | None) -> None:
        self.connection.execute("INSERT OR REPLACE INTO about VALUES ('pulse', ?)", (current_pulse,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
            raise

    def _forget(self, name: str) -> None:
        for table in ("versions", "names"):
            self.connection.execute(f"DELETE FROM {table} WHERE name = ?", (name,))

    def _read(self, name: str, state: int | None) -> None:
        """Read the versions of a name; a name with damaged files is read again by each refresh."""
        self._forget(name)
        try:
            versions, withdrawn = self.references.versions(name), self.references.withdrawn(name)
        except IntegrityError:  # a link in place of a folder, which verify reports
            return
        latest = next((version for version in reversed(versions) if version not in withdrawn), None)
        is_sound, rows = True, list[tuple[Any, ...]]()
        for version, digest in self.references.digests(name, versions):
            if digest is None:
                continue  # removed in the meantime
            manifest, error = None, None
            if isinstance(digest, IntegrityError):
                error, is_sound = str(digest), False
            else:
                manifest, sound = self._manifest(digest)
                is_sound = is_sound and sound
            listed = version in withdrawn, version == latest
            rows.append((name, *numbers_of(version), manifest, *listed, error))
        holes = ", ".join("?" * 8)
        self.connection.executemany(f"INSERT OR REPLACE INTO versions VALUES ({holes})", rows)
        self._insert("names", (name, state if is_sound else None))

    def _manifest(self, digest: str) -> tuple[int, bool]:
        """Return the row number of a manifest and whether it is undamaged; an undamaged one is read once."""
        if digest in self._manifests:
            return self._manifests[digest], True
        sql = "SELECT id, error FROM manifests WHERE digest = ?"
        number, error = self.connection.execute(sql, (digest,)).fetchone() or (None, "not read yet")
        if number is not None and error is None:
            self._manifests[digest] = number
            return number, True
        from compatkit.registry.index.properties import properties_of

        try:
            data = self.objects.read(digest, max_bytes=MAX_BYTES, quarantine=False)
            properties = properties_of(data, f"manifest {digest}")
        except CompatkitError as problem:
            return self._insert("manifests", (number, digest, str(problem), *(None,) * 11)), False
        self._manifests[digest] = self._insert_manifest(number, digest, properties)
        return self._manifests[digest], True

    def _insert_manifest(self, number: int | None, digest: str, properties: ManifestProperties) -> int:
        lists = json.dumps(
            [dict(properties.tags), properties.channels, properties.anchors, properties.parents]
        )
        number = self._insert(
            "manifests",
            (
                *(
                    number,
                    digest,
                    None,
                    properties.kind,
                    properties.builder,
                    properties.model,
                    properties.cut,
                ),
                *(properties.parameters, properties.bytes, properties.title, properties.license),
                *(len(properties.classes) or None, lists, properties.words),
            ),
        )
        terms = properties.terms()
        if properties.classes:
            terms.append(("classes", self._class_list(properties.classes)))
        rows = [(field, value, number) for field, value in terms]
        self.connection.executemany("INSERT OR REPLACE INTO terms VALUES (?, ?, ?)", rows)
        return number

    def _class_list(self, classes: tuple[tuple[str, ...], ...]) -> str:
        """Insert a list of classes unless it is stored; return its key."""
        key = sha256(repr(classes).encode()).hexdigest()[:32]
        if key not in self._lists:
            self._lists.add(key)
            self._insert("classes", *((name, key) for name in {name for names in classes for name in names}))
        return key

    def _insert(self, table: str, *rows: tuple[Any, ...]) -> int:
        """Insert or replace rows; return the number of the last."""
        number = 0
        for row in rows:
            placeholders = ", ".join("?" * len(row))
            sql = f"INSERT OR REPLACE INTO {table} VALUES ({placeholders})"
            number = self.connection.execute(sql, row).lastrowid or 0
        return number
