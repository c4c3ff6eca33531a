"""Bring the tables up to date with the files: only names that changed are read, and no link is followed.

Every writer makes a draft in ``<root>/tmp`` before it writes, and removes it after. So one number, the pulse of the
registry, shows whether anything was written since the tables were filled; only then are the times of all folders
compared.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any

import attrs

from compatkit.errors import CompatkitError, IntegrityError
from compatkit.foundation.codec import MAX_BYTES
from compatkit.registry import Progress
from compatkit.registry.blobs import Objects
from compatkit.registry.index.facts import ManifestFacts, facts_of
from compatkit.registry.index.stamps import pulse, versions_state
from compatkit.registry.refs import References

REPORTED = 50
"""Progress is reported once for so many names."""


@attrs.define(eq=False)
class Sync:
    """Brings the tables up to date with the files, in one transaction each time.

    Attributes:
        connection: To the tables.
        references: Names and versions.
        objects: Manifests.
    """

    connection: sqlite3.Connection
    references: References
    objects: Objects
    _lists: set[str] = attrs.field(init=False, factory=set)

    def refresh(self, progress: Progress | None = None) -> int:
        """Read what changed.

        Args:
            progress: Called with the count done, the total, and the name that is read.

        Returns:
            The number of names that were read.

        Raises:
            sqlite3.Error: The tables cannot be read or written; they are as before.
            EnvironmentFailure: The files below ``refs`` cannot be read.
            IntegrityError: The folder ``refs`` is a symbolic link.
        """
        now, moment = pulse(self.references.root), time.time_ns()
        noted = self.connection.execute("SELECT value FROM about WHERE key = 'pulse'").fetchone()
        if now is not None and noted == (now,):
            return 0
        known = dict(self.connection.execute("SELECT name, state FROM names"))
        states = {
            name: versions_state(f"{self.references.root}/refs/{name}", moment)
            for name in self.references.names()
        }
        gone = known.keys() - states.keys()
        changed = [name for name, state in states.items() if state is None or known.get(name) != state]
        if not gone and not changed:
            with suppress(
                sqlite3.OperationalError
            ):  # where nothing can be written, the next question looks again
                self._note(now)
            return 0
        with self._transaction():
            for name in gone:
                self._forget(name)
            for count, name in enumerate(changed):
                if progress is not None and count % REPORTED == 0:
                    progress(count, len(changed), name)
                self._read(name, states[name])
            self._note(now)
        if progress is not None:
            progress(len(changed), len(changed), "")
        return len(changed)

    def _note(self, now: int | None) -> None:
        self.connection.execute("INSERT OR REPLACE INTO about VALUES ('pulse', ?)", (now,))

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
        """Read the versions of a name; damage is noted, and looked at again each time."""
        self._forget(name)
        try:
            versions, withdrawn = self.references.versions(name), self.references.withdrawn(name)
        except IntegrityError:  # a link in place of a folder, which verify reports
            return
        latest = max((version for version in versions if version not in withdrawn), default=None)
        is_sound = True
        for version in versions:
            manifest, error = None, None
            try:
                if (digest := self.references.digest(name, version)) is None:
                    continue  # it was there a moment ago
                manifest, sound = self._manifest(digest)
                is_sound = is_sound and sound
            except IntegrityError as problem:
                error, is_sound = str(problem), False
            row = (name, *attrs.astuple(version), manifest, version in withdrawn, version == latest, error)
            self._insert("versions", row)
        self._insert("names", (name, state if is_sound else None))

    def _manifest(self, digest: str) -> tuple[int, bool]:
        """Return the number of a manifest, which is read unless it was found sound before, and whether it is sound."""
        sql = "SELECT id, error FROM manifests WHERE digest = ?"
        number, error = self.connection.execute(sql, (digest,)).fetchone() or (None, "not read yet")
        if number is not None and error is None:
            return number, True
        try:
            data = self.objects.read(digest, max_bytes=MAX_BYTES, quarantine=False)
            facts = facts_of(data, f"manifest {digest}")
        except CompatkitError as problem:
            return self._insert("manifests", (number, digest, str(problem), *(None,) * 11)), False
        return self._keep(number, digest, facts), True

    def _keep(self, number: int | None, digest: str, facts: ManifestFacts) -> int:
        lists = json.dumps([dict(facts.tags), facts.channels, facts.anchors, facts.parents])
        number = self._insert(
            "manifests",
            (
                *(number, digest, None, facts.kind, facts.builder, facts.model, facts.cut),
                *(facts.parameters, facts.bytes, facts.title, facts.license),
                *(len(facts.classes) or None, lists, facts.words),
            ),
        )
        terms = facts.terms()
        if facts.classes:
            terms.append(("classes", self._class_list(facts.classes)))
        self._insert("terms", *((field, value, number) for field, value in terms))
        return number

    def _class_list(self, classes: tuple[tuple[str, ...], ...]) -> str:
        """Keep a list of classes once, however many components have it; return its key."""
        key = sha256(repr(classes).encode()).hexdigest()[:32]
        if key not in self._lists:
            self._lists.add(key)
            self._insert("classes", *((name, key) for name in {name for names in classes for name in names}))
        return key

    def _insert(self, table: str, *rows: tuple[Any, ...]) -> int:
        """Write rows, in place of those with the same keys; return the number of the last."""
        number = 0
        for row in rows:
            places = ", ".join("?" * len(row))
            sql = f"INSERT OR REPLACE INTO {table} VALUES ({places})"
            number = self.connection.execute(sql, row).lastrowid or 0
        return number
