"""sqlite: a remote in one portable file, such as ``sqlite:///media/stick/parts.db``."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs

from compatkit import hookimpl
from compatkit.errors import UsageError
from compatkit.hooks import Register
from compatkit.registry.remotes.objectstore import ObjectStore

compatkit_api = 1


@hookimpl
def compatkit_remotes(register: Register) -> None:
    """Offer ``sqlite``."""
    register("sqlite", open_remote)


def open_remote(address: str, timeout: float = 60.0) -> SqliteStore:
    """Return the files in a database.

    Args:
        address: ``sqlite://`` and the absolute path of the database; the first push creates it.
        timeout: Seconds to wait for another writer.

    Raises:
        UsageError: The path is not absolute.
    """
    path = Path(address.partition("://")[2])
    if not path.is_absolute():
        raise UsageError("Write sqlite:///folder/parts.db, with an absolute path.")
    return SqliteStore(path, timeout)


@attrs.frozen
class SqliteStore(ObjectStore):
    """Files as rows of a table with the path as primary key, so that exactly one of several writers creates a file."""

    exclusive = True
    path: Path
    timeout: float

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size of every file below a folder."""
        below = (len(folder) + 1, f"{folder}/")
        return dict(self._select("SELECT path, length(data) FROM files WHERE substr(path, 1, ?) = ?", *below))

    def size(self, path: str) -> int | None:
        """Return the size of a file; None if there is none."""
        rows = self._select("SELECT length(data) FROM files WHERE path = ?", path)
        return rows[0][0] if rows else None

    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return at most so many bytes of a file; None if there is none."""
        rows = self._select("SELECT substr(data, ?, ?) FROM files WHERE path = ?", start + 1, count, path)
        return rows[0][0] if rows else None

    def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it."""
        self._change("REPLACE INTO files VALUES (?, ?)", path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Write a file that must not exist; the primary key decides."""
        return self._change("INSERT OR IGNORE INTO files VALUES (?, ?)", path, data) == 1

    def remove(self, path: str) -> None:
        """Remove a file, if there is one."""
        self._change("DELETE FROM files WHERE path = ?", path)

    def _select(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query; none if the database does not exist."""
        if not self.path.exists():
            return []
        with closing(sqlite3.connect(self.path, timeout=self.timeout)) as connection:
            return connection.execute(query, values).fetchall()

    def _change(self, statement: str, *values: Any) -> int:
        """Run a change as one transaction; return the number of changed rows."""
        with closing(sqlite3.connect(self.path, timeout=self.timeout)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, data BLOB)")
            return connection.execute(statement, values).rowcount
