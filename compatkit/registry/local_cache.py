"""A disposable cache: verified files and registries, parts that passed their probe, sources of images, results.

It is a small SQLite file in the user's cache folder, never in the registry. If the file is damaged or missing, the work
is done again.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from compatkit.registry.sqlite_cache import SqliteCache

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, modification time and change time of a file, in nanoseconds."""
FILE = "memory.sqlite"
TIMEOUT_SECONDS = 0.2
"""Time to wait for another process that is writing; then the value counts as unknown."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS verified (digest TEXT PRIMARY KEY, device, inode, size, modified, changed) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS proved (fact TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS images (digest TEXT PRIMARY KEY, source TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS verifications (number INTEGER PRIMARY KEY, time, errors, warnings);
CREATE TABLE IF NOT EXISTS results (extractor, place, document, PRIMARY KEY (extractor, place)) WITHOUT ROWID
"""


@attrs.frozen
class Verification:
    """The last verification of all files of a registry, every byte of them.

    Attributes:
        time: When it ended, in UTC, ISO 8601.
        errors: Number of errors found.
        warnings: Number of warnings found.
    """

    time: str
    errors: int
    warnings: int

    def __str__(self) -> str:
        found = ", ".join(
            f"{count:,} {what}{'s' * (count != 1)}"
            for count, what in ((self.errors, "error"), (self.warnings, "warning"))
            if count
        )
        return f"{self.time}: {found or 'sound'}"


@attrs.define(eq=False)
class LocalCache:
    """Results of checks that outlive the process.

    Attributes:
        folder: Folder of the file; created with the first entry.
    """

    folder: Path
    _file: SqliteCache = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Set the path; nothing is opened. Lost entries are computed again, so writing does not wait for the disk."""
        self._file = SqliteCache(self.folder / FILE, _SCHEMA, TIMEOUT_SECONDS, "OFF")

    def stamp(self, digest: str) -> Stamp | None:
        """Return the file state in which a blob was last verified."""
        row = self._fetch(
            "SELECT device, inode, size, modified, changed FROM verified WHERE digest = ?", digest
        )
        with suppress(TypeError, ValueError):
            return tuple(int(number, 16) for number in row) if row else None  # type: ignore[return-value]
        return None

    def remember_verified(self, digest: str, stamp: Stamp) -> None:
        """Remember that the file of a blob matches its digest in this state.

        Args:
            digest: Digest of the blob.
            stamp: Device, inode, size and times of the file.
        """
        # as text: inodes and devices may be larger than SQLite's signed 64 bits
        self._fetch(
            "INSERT OR REPLACE INTO verified VALUES (?, ?, ?, ?, ?, ?)",
            digest,
            *(f"{number:x}" for number in stamp),
        )

    def is_proved(self, check: str) -> bool:
        """Return whether a check was remembered as passed."""
        return self._fetch("SELECT 1 FROM proved WHERE fact = ?", check) is not None

    def remember_proved(self, check: str) -> None:
        """Remember that a check passed."""
        self._fetch("INSERT OR IGNORE INTO proved VALUES (?)", check)

    def verification(self) -> Verification | None:
        """Return the last full verification from this cache folder; None if unknown."""
        row = self._fetch("SELECT time, errors, warnings FROM verifications WHERE number = 1")
        with suppress(TypeError, ValueError):
            return Verification(str(row[0]), int(row[1]), int(row[2])) if row else None
        return None

    def remember_verification(self, verification: Verification) -> None:
        """Remember the last full verification, in place of an earlier one."""
        values = verification.time, str(verification.errors), str(verification.warnings)
        self._fetch("INSERT OR REPLACE INTO verifications VALUES (1, ?, ?, ?)", *values)

    def source(self, digest: str) -> Mapping[str, Any] | None:
        """Return how images were loaded, as JSON values; None if unknown.

        Args:
            digest: Digest of training images, ``data:sha256:...``.
        """
        row = self._fetch("SELECT source FROM images WHERE digest = ?", digest)
        with suppress(TypeError, ValueError):
            return json.loads(row[0]) if row else None
        return None

    def remember_source(self, digest: str, source: Mapping[str, Any]) -> None:
        """Remember how images were loaded. A manifest, which is copied to other machines, only states their digest.

        Args:
            digest: Digest of the images.
            source: Settings that load them again, JSON values.
        """
        self._fetch("INSERT OR REPLACE INTO images VALUES (?, ?)", digest, json.dumps(source))

    def results(self, extractor: str) -> dict[str, str]:
        """Return the result documents of an extractor that were read before, by path."""
        sql = "SELECT place, document FROM results WHERE extractor = ?"
        with suppress(sqlite3.Error, OSError, ValueError):
            return dict(self._file.run(lambda connection: connection.execute(sql, (extractor,)).fetchall()))
        return {}

    def remember_results(self, extractor: str, documents: Mapping[str, str]) -> None:
        """Remember documents of results, which never change.

        Args:
            extractor: Function digest of the extractor.
            documents: Document by path: head, conditions and digest, as folders and file are named.
        """
        rows = [(extractor, path, document) for path, document in documents.items()]

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", rows)
            connection.execute("COMMIT")

        with suppress(sqlite3.Error, OSError, ValueError):
            self._file.run(insert)

    def _fetch(self, sql: str, *values: str) -> tuple[str, ...] | None:
        if sql.startswith("SELECT") and not os.path.lexists(self._file.path):
            return None
        with suppress(sqlite3.Error, OSError, ValueError):
            return self._file.run(lambda connection: connection.execute(sql, values).fetchone())
        return None
