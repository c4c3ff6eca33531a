"""Disposable SQLite files in the user's cache folder: a damaged one is deleted and created again.

Never in WAL mode, which needs memory shared by all users of the file: home folders may be on a network.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import attrs

Result = TypeVar("Result")
_BROKEN = (sqlite3.DatabaseError, TypeError, ValueError, LookupError)
"""Errors caused by a damaged file; the last three by content such as text in place of numbers."""
ATTEMPTS = 20
"""Attempts while other processes delete the file and create it again."""
_forked: list[object] = []
"""Connections of the parent process: a child must neither use nor close them."""


@attrs.define(eq=False)
class SqliteCache:
    """A SQLite file of values that can be computed again. Thread-safe, and usable after a fork.

    Attributes:
        path: Path of the file, which may not exist.
        schema: Statements that create the tables; a file created with others is replaced.
        timeout: Seconds to wait for another process that is writing.
        synchronous: Value of SQLite's ``PRAGMA synchronous``: whether writing waits for the disk.
    """

    path: Path
    schema: str = attrs.field(repr=False)
    timeout: float
    synchronous: str = "NORMAL"
    _connection: sqlite3.Connection | None = attrs.field(default=None, init=False, repr=False)
    _inode: int | None = attrs.field(default=None, init=False, repr=False)
    _process: int = attrs.field(factory=os.getpid, init=False, repr=False)
    _lock: threading.RLock = attrs.field(factory=threading.RLock, init=False, repr=False)

    def run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Return the result of ``work`` with the connection.

        If the file is damaged, it is deleted, and ``work`` is called again; also if another process deleted the file.

        Raises:
            sqlite3.OperationalError: The file cannot be read or written: no permission, disk full, locked.
            OSError: It cannot be created, or is not a regular file.
        """
        with self._locked():
            discarded = False
            for _ in range(ATTEMPTS):
                try:
                    return work(self._connected())
                except sqlite3.OperationalError:
                    replaced = self._inode != _inode(self.path)
                    self.close()
                    if not replaced:
                        raise
                except _BROKEN:
                    if discarded:
                        raise
                    self.discard()
                    discarded = True
            return work(self._connected())

    def close(self) -> None:
        """Close the file; the next ``run`` opens it again."""
        with self._locked():
            if self._connection is not None:
                with suppress(sqlite3.Error):
                    self._connection.close()
            self._connection = None

    def discard(self) -> None:
        """Delete the journal, which would be applied to the next file of this name, then the file."""
        self.close()
        for file in (self.path.with_name(f"{self.path.name}-journal"), self.path):
            with suppress(OSError):
                file.unlink()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Admit one thread; in a forked process, leave the parent's connection and lock alone."""
        if self._process != os.getpid():
            _forked.append(self._connection)
            self._connection, self._lock, self._process = None, threading.RLock(), os.getpid()
        with self._lock:
            yield

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._create()
            self._inode = _inode(self.path)
            connection = sqlite3.connect(
                self.path, timeout=self.timeout, isolation_level=None, check_same_thread=False
            )
            self._connection = connection
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.create_function("fnmatch", 2, fnmatchcase, deterministic=True)
            schema_number = zlib.crc32(self.schema.encode()) & 0x7FFFFFFF
            (stored,) = connection.execute("PRAGMA user_version").fetchone()
            if stored == 0:
                script = f"BEGIN IMMEDIATE; {self.schema}; PRAGMA user_version = {schema_number}; COMMIT"
                connection.executescript(script)
            elif stored != schema_number:
                raise sqlite3.DatabaseError("the file was created with other tables")
        return self._connection

    def _create(self) -> None:
        """Create the file if it is missing.

        Raises:
            OSError: The file or its journal is a link, through which SQLite would write, or a pipe, which would block.
        """
        for end in ("-journal", "-wal", ""):
            with suppress(FileNotFoundError):
                path = f"{self.path}{end}"
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    raise OSError(f"{path} is not a regular file")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # exclusively: creates nothing through a link
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def _inode(path: Path) -> int | None:
    """Return the inode of a file, which changes if another process deletes it and creates it again; None if missing."""
    with suppress(OSError):
        return os.lstat(path).st_ino
    return None
