"""A disposable cache of facts: files that were verified, parts that passed their probe, images' sources, results read.

Kept in a small SQLite file in the user's cache folder, never in the registry. If anything is wrong with that file, the
fact is unknown and the work is done again.
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

from compatkit.registry.cachefile import CacheFile

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, modification time and change time of a file, in nanoseconds."""
FILE = "memory.sqlite"
PATIENCE = 0.2
"""Seconds to wait for another process that is writing; then the fact is unknown."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS verified (digest TEXT PRIMARY KEY, device, inode, size, modified, changed) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS proved (fact TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS images (digest TEXT PRIMARY KEY, source TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results (extractor, place, document, PRIMARY KEY (extractor, place)) WITHOUT ROWID
"""


@attrs.define(eq=False)
class Memory:
    """Facts that outlive the process.

    Attributes:
        folder: Where the file is; made when something is first remembered.
    """

    folder: Path
    _file: CacheFile = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Name the file; nothing is opened yet. A lost fact is found out again, so nothing waits for the disk."""
        self._file = CacheFile(self.folder / FILE, _SCHEMA, PATIENCE, "OFF")

    def stamp(self, digest: str) -> Stamp | None:
        """Return the state in which the file of a blob was last verified."""
        row = self._ask(
            "SELECT device, inode, size, modified, changed FROM verified WHERE digest = ?", digest
        )
        with suppress(TypeError, ValueError):
            return tuple(int(number, 16) for number in row) if row else None  # type: ignore[return-value]
        return None

    def verified(self, digest: str, stamp: Stamp) -> None:
        """Remember that the file of a blob, in this state, holds what its digest promises.

        Args:
            digest: Of the blob.
            stamp: Device, inode, size and times of the file.
        """
        # as text: inodes and devices may be larger than SQLite's signed 64 bits
        self._ask(
            "INSERT OR REPLACE INTO verified VALUES (?, ?, ?, ?, ?, ?)",
            digest,
            *(f"{number:x}" for number in stamp),
        )

    def is_proved(self, fact: str) -> bool:
        """Return whether a fact was remembered."""
        return self._ask("SELECT 1 FROM proved WHERE fact = ?", fact) is not None

    def prove(self, fact: str) -> None:
        """Remember a fact."""
        self._ask("INSERT OR IGNORE INTO proved VALUES (?)", fact)

    def source(self, digest: str) -> Mapping[str, Any] | None:
        """Return where images were loaded from, as JSON values; None if that is not known.

        Args:
            digest: Of training images, ``data:sha256:...``.
        """
        row = self._ask("SELECT source FROM images WHERE digest = ?", digest)
        with suppress(TypeError, ValueError):
            return json.loads(row[0]) if row else None
        return None

    def remember_source(self, digest: str, source: Mapping[str, Any]) -> None:
        """Remember where images were loaded from. A manifest, which travels, says only what they are.

        Args:
            digest: Of the images.
            source: How to load them again, JSON values.
        """
        self._ask("INSERT OR REPLACE INTO images VALUES (?, ?)", digest, json.dumps(source))

    def results(self, extractor: str) -> dict[str, str]:
        """Return the documents of an extractor's results that were read before, by the place of each."""
        sql = "SELECT place, document FROM results WHERE extractor = ?"
        with suppress(sqlite3.Error, OSError, ValueError):
            return dict(self._file.ask(lambda connection: connection.execute(sql, (extractor,)).fetchall()))
        return {}

    def remember_results(self, extractor: str, documents: Mapping[str, str]) -> None:
        """Remember documents of results, which never change.

        Args:
            extractor: Its function digest.
            documents: By place: head, conditions and digest, as the folders and the file are named.
        """
        rows = [(extractor, place, document) for place, document in documents.items()]

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", rows)
            connection.execute("COMMIT")

        with suppress(sqlite3.Error, OSError, ValueError):
            self._file.ask(insert)

    def _ask(self, sql: str, *values: str) -> tuple[str, ...] | None:
        if sql.startswith("SELECT") and not os.path.lexists(self._file.path):
            return None
        with suppress(sqlite3.Error, OSError, ValueError):
            return self._file.ask(lambda connection: connection.execute(sql, values).fetchone())
        return None
