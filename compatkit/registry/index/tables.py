"""The SQLite tables of the index, in a file or in memory, and what may go wrong with them.

Never in WAL mode, which needs memory that all users of a file share: home folders may lie on a network. What is known
of a manifest is keyed by its digest and so stays true for ever; names and versions point at it.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from contextlib import closing, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import attrs

from compatkit.registry.index import results

SCHEMA = 3
"""Raised with every change of the tables or of what is put into them."""
FILE = "index.sqlite"
PATIENCE = 2.0
"""Seconds to wait for a process that is writing; then this one goes on with a copy of its own."""
SYNCHRONOUS = "NORMAL"
"""Waits for the disk where a power failure could otherwise leave a file that is wrong and looks right."""
Kept = Literal["file", "memory"]

_TABLES = (
    "CREATE TABLE about (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    # a folder below refs: state as in scanning.state; live versions, what is told of the latest
    "CREATE TABLE folders (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, state INTEGER, settled INTEGER,"
    " versions INTEGER, tombstones INTEGER, aliased INTEGER, live TEXT, manifest INTEGER, stamp INTEGER, error TEXT)",
    # state: 0 live, 1 withdrawn, 2 not finished
    "CREATE TABLE versions (folder INTEGER, major INTEGER, minor INTEGER, patch INTEGER, manifest INTEGER,"
    " stamp INTEGER, state INTEGER, latest INTEGER, error TEXT, PRIMARY KEY (folder, major, minor, patch))"
    " WITHOUT ROWID",
    # also other documents that name blobs; of those, and of damaged manifests, kind is NULL
    "CREATE TABLE manifests (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, stamp INTEGER, error TEXT, kind TEXT,"
    " builder TEXT, model TEXT, split TEXT, parameters INTEGER, bytes INTEGER, title TEXT, licence TEXT,"
    " classes INTEGER, more TEXT, words TEXT)",
    "CREATE TABLE terms (field TEXT, value TEXT, manifest INTEGER, PRIMARY KEY (field, value, manifest)) WITHOUT ROWID",
    # most components share a few lists of classes, which may be long
    "CREATE TABLE classes (name TEXT, list TEXT, PRIMARY KEY (name, list)) WITHOUT ROWID",
    "CREATE TABLE edges (manifest INTEGER, digest TEXT, followed INTEGER, PRIMARY KEY (manifest, digest))"
    " WITHOUT ROWID",
    *results.TABLES,
)
INDEXES = {
    "named": "folders (name) WHERE versions > 0",
    "versions_of": "versions (manifest, state, latest)",
    "kinds": "manifests (kind, model)",
    "damaged": "manifests (id) WHERE error IS NOT NULL",
}
"""Of the tables: what is filled at once gets them afterwards, in half the time."""


class Unusable(Exception):
    """These tables cannot be used; says why.

    Attributes:
        broken: Whether the file itself is to blame, and a new one helps.
    """

    def __init__(self, reason: str, *, broken: bool) -> None:
        super().__init__(reason)
        self.broken = broken


FAILURES: tuple[type[Exception], ...] = (sqlite3.Error, Unusable)
ODD = (TypeError, ValueError, LookupError, AttributeError)
"""What comes of content that is damaged and still a database: texts where numbers were, bytes that are no text."""
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
    """Tell whether an error says that the content is damaged, and not that it cannot be reached now."""
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
        kept: Where they are.
        path: Of the file.
        inode: Of the file when it was opened.
    """

    connection: sqlite3.Connection = attrs.field(repr=False)
    kept: Kept
    path: Path
    inode: int = 0

    @classmethod
    def in_file(cls, path: Path, identity: str) -> Tables:
        """Open the file; one that is new, or holds something else, gets empty tables.

        Args:
            path: The folder above is made.
            identity: Of the registry.

        Raises:
            Unusable: The folder cannot be made.
            sqlite3.Error: The file cannot be used.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unusable(f"{path.parent} cannot be made: {error.strerror}", broken=False) from error
        connection = _connected(str(path))
        try:
            _prepare(connection, identity)
            return cls(connection, "file", path, inode_of(path))
        except BaseException:
            connection.close()
            raise

    @classmethod
    def in_memory(cls, path: Path, identity: str, *, copy: bool) -> Tables:
        """Make tables of this process only.

        Args:
            path: Of the file.
            identity: Of the registry.
            copy: Whether to begin with what the file holds, where that can be read.

        Raises:
            sqlite3.Error: Not even that works.
        """
        connection = _connected(":memory:")
        if copy:
            with suppress(sqlite3.Error):
                _copy(path.absolute(), connection)
        try:
            _prepare(connection, identity)
        except sqlite3.Error:  # the copy was not good either
            connection.close()
            connection = _connected(":memory:")
            _prepare(connection, identity)
        return cls(connection, "memory", path)

    def is_there(self) -> bool:
        """Tell whether the file, if it is one, still has its name: what is written into another is lost."""
        return self.kept == "memory" or inode_of(self.path) == self.inode

    def __attrs_post_init__(self) -> None:
        """Close the connection when nobody holds this any more, at the latest when the interpreter ends."""
        weakref.finalize(self, _close, self.connection, os.getpid())

    def close(self) -> None:
        """Close the connection; a file that cannot even be closed is left."""
        _close(self.connection, os.getpid())


def _close(connection: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():  # a connection of the parent must not be closed by a child
        with suppress(*FAILURES):
            connection.close()


def remove(path: Path, inode: int) -> None:
    """Remove a file that is no index, unless another process put a new one in its place.

    The journal goes first: it would be played back into whatever gets the file's name next.
    """
    if inode and inode_of(path) != inode:
        return
    for one in (path.with_name(f"{path.name}-journal"), path):
        with suppress(OSError):
            one.unlink()


def _connected(target: str) -> sqlite3.Connection:
    connection = sqlite3.connect(target, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    connection.execute("PRAGMA cache_size = -16384")
    connection.execute(
        "PRAGMA cache_spill = OFF"
    )  # others go on reading while this one writes, until it commits
    connection.create_function("fnmatch", 2, fnmatchcase, deterministic=True)
    return connection


def _copy(path: Path, target: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=PATIENCE / 10)) as source:
        source.execute("BEGIN")
        source.execute(
            "SELECT count(*) FROM sqlite_master"
        )  # now it is ours to read; backup would wait for ever
        source.backup(target)


def _prepare(connection: sqlite3.Connection, identity: str) -> None:
    """Make the tables where there are none of this schema and registry, in one transaction."""
    if _fits(connection, identity):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not _fits(connection, identity):  # else another process was faster
            for kind, name in connection.execute("SELECT type, name FROM sqlite_master").fetchall():
                if kind in ("table", "view") and not name.startswith("sqlite_"):
                    quoted = name.replace('"', '""')
                    connection.execute(f'DROP {kind} IF EXISTS "{quoted}"')
            for statement in _TABLES:
                connection.execute(statement)
            make_indexes(connection)
            connection.execute("INSERT INTO about VALUES ('registry', ?)", (identity,))
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("COMMIT")
    except BaseException:
        with suppress(*FAILURES):
            connection.execute("ROLLBACK")
        raise


def make_indexes(connection: sqlite3.Connection) -> None:
    """Make the indexes that are not there."""
    for name, columns in INDEXES.items():
        connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {columns}")


def _fits(connection: sqlite3.Connection, identity: str) -> bool:
    if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
        return False
    found = connection.execute("SELECT value FROM about WHERE key = 'registry'").fetchone()
    return found is not None and found[0] == identity


def inode_of(path: Path) -> int:
    """Return what tells a file from others that had its name, 0 if there is none."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
