"""The SQLite tables of the index: in a file, or in memory where no file can be used.

A broken file is deleted and made anew. Never in WAL mode, which needs memory that all users of a file share:
home folders may lie on a network. What is known of a manifest is keyed by its digest and so stays true for ever; names
and versions point at it.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import weakref
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import attrs

SCHEMA = 4
"""Raised with every change of the tables or of what is put into them."""
FILE = "index.sqlite"
PATIENCE = 2.0
"""Seconds to wait for a process that is writing; then this one fills tables of its own in memory."""
SYNCHRONOUS = "NORMAL"
"""Waits for the disk where a power failure could otherwise leave a file that is wrong and looks right."""
Storage = Literal["file", "memory"]
Row = tuple[Any, ...]
ROWS = 10_000
"""Written in one go."""

_TABLES = {
    "about": "key TEXT PRIMARY KEY, value",
    # a folder below refs; state is NULL where it has to be read again each time
    "folders": "id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, state INTEGER, versions INTEGER, aliased INTEGER,"
    " live TEXT, manifest INTEGER, error TEXT",
    # state: 0 live, 1 withdrawn, 2 not finished
    "versions": "folder INTEGER, major INTEGER, minor INTEGER, patch INTEGER, manifest INTEGER, stamp INTEGER,"
    " state INTEGER, latest INTEGER, error TEXT, PRIMARY KEY (folder, major, minor, patch)",
    # also other documents that name blobs; of those, and of damaged manifests, kind is NULL
    "manifests": "id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, stamp INTEGER, error TEXT, kind TEXT,"
    " builder TEXT, model TEXT, split TEXT, parameters INTEGER, bytes INTEGER, title TEXT, licence TEXT,"
    " classes INTEGER, more TEXT, words TEXT",
    "terms": "field TEXT, value TEXT, manifest INTEGER, PRIMARY KEY (field, value, manifest)",
    # most components share a few lists of classes, which may be long
    "classes": "name TEXT, list TEXT, PRIMARY KEY (name, list)",
    "edges": "manifest INTEGER, digest TEXT, followed INTEGER, PRIMARY KEY (manifest, digest)",
    # pulse: of the registry when an extractor's results were last looked at
    "measured": "id INTEGER PRIMARY KEY, extractor TEXT NOT NULL UNIQUE, pulse INTEGER",
    # conditions and settings, which many results share, by a digest of their own
    "texts": "digest TEXT PRIMARY KEY, text TEXT",
    "results": "extractor INTEGER, head TEXT, key TEXT, digest TEXT, written INTEGER, stamp INTEGER, conditions TEXT,"
    " settings TEXT, figures TEXT, error TEXT, PRIMARY KEY (extractor, head, key, digest)",
}
_INDEXES = {
    "named": "folders (name) WHERE versions > 0",
    "unsure": "folders (id) WHERE state IS NULL",
    "versions_of": "versions (manifest, state, latest)",
    "kinds": "manifests (kind, model)",
    "damaged": "manifests (id) WHERE error IS NOT NULL",
    "damaged_results": "results (extractor) WHERE error <> ''",
}


class Unusable(Exception):
    """The tables cannot be used, for the reason given.

    Attributes:
        broken: Whether the file itself is the cause, so that a new one helps.
    """

    def __init__(self, reason: str, *, broken: bool) -> None:
        super().__init__(reason)
        self.broken = broken


FAILURES: tuple[type[Exception], ...] = (sqlite3.Error, Unusable)
_DEFECTS = (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.NotSupportedError)
_BROKEN = (
    sqlite3.SQLITE_ERROR,  # tables that are not ours, or no longer
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_SCHEMA,
)


def is_broken(error: Exception) -> bool:
    """Return whether an error means damaged content, rather than a file that cannot be reached now."""
    if isinstance(error, Unusable):
        return error.broken
    if isinstance(error, _DEFECTS):
        raise error  # of this program: no other file would help
    code = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF in _BROKEN


@attrs.frozen(eq=False)
class Tables:
    """An open connection to the tables.

    Attributes:
        storage: Where they are.
        path: Of the file.
        inode: Of the file when it was opened.
    """

    connection: sqlite3.Connection = attrs.field(repr=False)
    storage: Storage
    path: Path
    inode: int = 0

    @classmethod
    def in_file(cls, path: Path, identity: str) -> Tables:
        """Open the file; one that is new gets empty tables.

        Args:
            path: The folder above is made.
            identity: Of the registry.

        Raises:
            Unusable: The file is none of ours, or cannot be made.
            sqlite3.Error: It cannot be used.
        """
        try:
            if not _is_plain(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):  # another process was faster
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except OSError as error:
            raise Unusable(f"{path} cannot be made: {error.strerror}", broken=False) from error
        connection = _connected(str(path))
        try:
            _prepare(connection, identity)
            return cls(connection, "file", path, inode_of(path))
        except BaseException:
            connection.close()
            raise

    @classmethod
    def in_memory(cls, path: Path, identity: str) -> Tables:
        """Make empty tables of this process only.

        Args:
            path: Of the file that cannot be used.
            identity: Of the registry.
        """
        connection = _connected(":memory:")
        _prepare(connection, identity)
        return cls(connection, "memory", path)

    def is_there(self) -> bool:
        """Return whether the file still has its name: what is written into an unlinked file is lost."""
        return self.storage == "memory" or inode_of(self.path) == self.inode

    def __attrs_post_init__(self) -> None:
        """Close the connection when this is garbage-collected, at the latest when the interpreter exits."""
        weakref.finalize(self, _close, self.connection, os.getpid())

    def close(self) -> None:
        """Close the connection; failures are ignored."""
        _close(self.connection, os.getpid())


@attrs.frozen(eq=False)
class Rows:
    """Rows to be written in batches, and the next free ids.

    Attributes:
        connection: To the tables, inside a transaction.
        fresh: Whether the tables were empty, so that known rows need not be looked up.
    """

    connection: sqlite3.Connection
    fresh: bool
    _numbers: dict[str, int] = attrs.field(init=False, factory=dict)
    _waiting: dict[str, list[Row]] = attrs.field(init=False, factory=dict)

    @classmethod
    def of(cls, connection: sqlite3.Connection, *, empty: bool) -> Rows:
        """Return rows for tables, which first forget everything they hold if ``empty``.

        Args:
            connection: To the index.
            empty: Whether to begin anew.
        """
        if empty:
            for index in _INDEXES:
                connection.execute(f"DROP INDEX IF EXISTS {index}")
            for table in _TABLES.keys() - {"about"}:
                connection.execute(f"DELETE FROM {table}")
        return cls(connection, connection.execute("SELECT 1 FROM folders LIMIT 1").fetchone() is None)

    def number(self, table: str) -> int:
        """Return the next free number of a table."""
        if table not in self._numbers:
            last = self.connection.execute(f"SELECT ifnull(max(id), 0) FROM {table}").fetchone()
            self._numbers[table] = last[0]
        self._numbers[table] += 1
        return self._numbers[table]

    def add(self, table: str, *more: Row) -> None:
        """Write rows, now or with others; one with the same key is replaced.

        Args:
            table: Name of the table.
            more: Values in the order of its columns.
        """
        rows = self._waiting.setdefault(table, [])
        rows.extend(more)
        if len(rows) >= ROWS:
            self._insert(table, rows)
            rows.clear()

    def flush(self) -> None:
        """Write the rows that wait; tables that held nothing get their indexes now, which takes half the time."""
        for table, rows in self._waiting.items():
            self._insert(table, sorted(rows) if table == "terms" else rows)
        self._waiting.clear()
        for name, columns in _INDEXES.items():
            self.connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {columns}")

    def _insert(self, table: str, rows: list[Row]) -> None:
        if rows:
            places = ", ".join("?" * len(rows[0]))
            self.connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows)


def _close(connection: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():  # a connection of the parent must not be closed by a child
        with suppress(*FAILURES):
            connection.close()


def remove(path: Path, inode: int) -> None:
    """Remove a file that is no index, unless another process put a new one in its place.

    The journal goes first: it would be played back into whatever gets the file's name next.

    Args:
        path: Of the index.
        inode: Of the file that was found to be no index; 0 removes any.
    """
    if inode and inode_of(path) != inode:
        return
    for file in (path.with_name(f"{path.name}-journal"), path):
        with suppress(OSError):
            file.unlink()


def inode_of(path: Path) -> int:
    """Return the inode of a file, 0 if there is none."""
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0


def _is_plain(path: Path) -> bool:
    """Return whether the file exists.

    SQLite would write through a link and block at a pipe, in place of its journal too.

    Raises:
        Unusable: The file or its journal is something else than a plain file.
    """
    exists = False
    for file in (path.with_name(f"{path.name}-journal"), path.with_name(f"{path.name}-wal"), path):
        try:
            mode = os.lstat(file).st_mode
        except OSError:
            exists = False
            continue
        if not stat.S_ISREG(mode):
            raise Unusable(f"{file} is no plain file", broken=False)
        exists = True
    return exists


def _connected(target: str) -> sqlite3.Connection:
    connection = sqlite3.connect(target, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    connection.execute("PRAGMA cache_size = -16384")
    # others go on reading while this one writes, until it commits
    connection.execute("PRAGMA cache_spill = OFF")
    connection.create_function("fnmatch", 2, fnmatchcase, deterministic=True)
    return connection


def _prepare(connection: sqlite3.Connection, identity: str) -> None:
    """Make the tables where there are none, in one transaction.

    Raises:
        Unusable: There are others.
    """
    if not connection.execute("PRAGMA user_version").fetchone()[0] and _is_empty(connection):
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _is_empty(connection):  # else another process was faster
                for table, columns in _TABLES.items():
                    rowid = "" if "id INTEGER PRIMARY KEY" in columns else " WITHOUT ROWID"
                    connection.execute(f"CREATE TABLE {table} ({columns}){rowid}")
                connection.execute("INSERT INTO about VALUES ('registry', ?)", (identity,))
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
            connection.execute("COMMIT")
        except BaseException:
            with suppress(*FAILURES):
                connection.execute("ROLLBACK")
            raise
    schema = connection.execute("PRAGMA user_version").fetchone()[0]
    if schema != SCHEMA or about(connection, "registry") != identity:
        raise Unusable("it is of another version, or of another registry", broken=True)


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0


def about(connection: sqlite3.Connection, key: str) -> Any:
    """Return a value of the table ``about``; None where there is none.

    Args:
        connection: To the index.
        key: Name of the value.
    """
    row = connection.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]
