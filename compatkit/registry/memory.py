"""A disposable cache of facts: files that were verified, parts that passed their probe, where images were loaded from.

Kept in a small SQLite file in the user's cache folder, never in the registry. If anything is wrong with that file, the
fact is unknown and the work is done again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, modification time and change time of a file, in nanoseconds."""
FILE = "memory.sqlite"
PATIENCE = 0.2
"""Seconds to wait for another process that is writing; then the fact is unknown."""
_TABLES = (
    "CREATE TABLE IF NOT EXISTS verified (digest TEXT PRIMARY KEY, device, inode, size, modified, changed)"
    " WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS proved (fact TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS images (digest TEXT PRIMARY KEY, source TEXT) WITHOUT ROWID",
)


@attrs.define(eq=False)
class Memory:
    """Facts that outlive the process.

    Attributes:
        folder: Where the file is; made when something is first remembered.
    """

    folder: Path
    _connection: sqlite3.Connection | None = attrs.field(default=None, init=False, repr=False)
    _process: int = attrs.field(default=0, init=False, repr=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    def stamp(self, digest: str) -> Stamp | None:
        """Return the state in which the file of a blob was last verified."""
        row = self._ask(
            "SELECT device, inode, size, modified, changed FROM verified WHERE digest = ?", digest
        )
        return tuple(int(number, 16) for number in row) if row else None  # type: ignore[return-value]

    def verified(self, digest: str, stamp: Stamp) -> None:
        """Remember that the file of a blob, in this state, holds what its digest promises.

        Args:
            digest: Of the blob.
            stamp: Device, inode, size and times of the file.
        """
        # as text: inodes and devices may be larger than SQLite's signed 64 bits
        self._tell(
            "INSERT OR REPLACE INTO verified VALUES (?, ?, ?, ?, ?, ?)",
            digest,
            *(f"{number:x}" for number in stamp),
        )

    def is_proved(self, fact: str) -> bool:
        """Return whether a fact was remembered."""
        return self._ask("SELECT 1 FROM proved WHERE fact = ?", fact) is not None

    def prove(self, fact: str) -> None:
        """Remember a fact."""
        self._tell("INSERT OR IGNORE INTO proved VALUES (?)", fact)

    def source(self, digest: str) -> Mapping[str, Any] | None:
        """Return where images were loaded from, as JSON values; None if that is not known.

        Args:
            digest: Of training images, ``data:sha256:...``.
        """
        row = self._ask("SELECT source FROM images WHERE digest = ?", digest)
        return json.loads(row[0]) if row else None

    def remember_source(self, digest: str, source: Mapping[str, Any]) -> None:
        """Remember where images were loaded from. A manifest, which travels, says only what they are.

        Args:
            digest: Of the images.
            source: How to load them again, JSON values.
        """
        self._tell("INSERT OR REPLACE INTO images VALUES (?, ?)", digest, json.dumps(source))

    def _ask(self, sql: str, *values: str) -> tuple[str, ...] | None:
        with self._lock:
            if self._connection is None and not os.path.lexists(self.folder / FILE):
                return None
            try:
                return self._open().execute(sql, values).fetchone()
            except (sqlite3.Error, OSError, ValueError) as error:
                return self._forget(error)

    def _tell(self, sql: str, *values: str) -> None:
        with self._lock:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                connection = self._open()
                with connection:
                    connection.execute(sql, values)
            except (sqlite3.Error, OSError, ValueError) as error:
                self._forget(error)

    def _open(self) -> sqlite3.Connection:
        if (
            self._connection is None or self._process != os.getpid()
        ):  # a connection must not be used after a fork
            self._connection, self._process = None, os.getpid()
            self._make()
            self._connection = sqlite3.connect(self.folder / FILE, timeout=PATIENCE, check_same_thread=False)
            self._connection.execute("PRAGMA synchronous = OFF")  # a lost fact is found out again
            for table in _TABLES:
                self._connection.execute(table)
        return self._connection

    def _make(self) -> None:
        """Make the file where there is none.

        Raises:
            OSError: It, or a journal of it, is a link, through which SQLite would write, or a pipe, at which it waits.
        """
        for end in ("-journal", "-wal", ""):
            path = f"{self.folder / FILE}{end}"
            if not os.path.lexists(path):
                continue
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise OSError(f"{path} is no plain file")
        with suppress(FileExistsError):  # exclusively: nothing is made at the other end of a link
            os.close(os.open(self.folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))

    def _forget(self, error: Exception) -> None:
        """Drop the connection, and a file that is no database of ours: the next fact makes a new one."""
        broken, self._connection = self._connection, None
        if broken is not None:
            with suppress(sqlite3.Error):
                broken.close()
        busy = isinstance(error, sqlite3.OperationalError) and "no such column" not in str(error)
        if isinstance(error, sqlite3.DatabaseError) and not busy:
            with suppress(OSError):
                os.unlink(self.folder / FILE)
