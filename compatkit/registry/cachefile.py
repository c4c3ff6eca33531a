"""Disposable SQLite files in the user's cache folder: what is wrong with one is deleted, and made anew.

Never in WAL mode, which needs memory that all users of a file share: home folders may lie on a network.
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

Answer = TypeVar("Answer")
_BROKEN = (sqlite3.DatabaseError, TypeError, ValueError, LookupError)
"""Errors caused by a damaged file; the last three by content such as text in place of numbers."""
_forked: list[object] = []
"""Connections of the parent process: a child must neither use nor close them."""


@attrs.define(eq=False)
class CacheFile:
    """A file of facts that can be found out again. May be shared between threads, and survives a fork.

    Attributes:
        path: Of the file, which may not exist.
        schema: Statements that make the tables; a file made with others is replaced.
        patience: Seconds to wait for another process that is writing.
        synchronous: Whether writing waits for the disk, as SQLite's ``PRAGMA synchronous`` says.
    """

    path: Path
    schema: str = attrs.field(repr=False)
    patience: float
    synchronous: str = "NORMAL"
    _connection: sqlite3.Connection | None = attrs.field(default=None, init=False, repr=False)
    _process: int = attrs.field(factory=os.getpid, init=False, repr=False)
    _lock: threading.RLock = attrs.field(factory=threading.RLock, init=False, repr=False)

    def ask(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Return what ``work`` makes of the connection; if the file is damaged, delete it and try once more.

        Raises:
            sqlite3.OperationalError: The file cannot be read or written: no right, disk full, locked.
            OSError: It cannot be made, or is no plain file.
        """
        with self._held():
            try:
                return work(self._connected())
            except sqlite3.OperationalError as error:
                self.close()
                if (
                    error.sqlite_errorcode != sqlite3.SQLITE_READONLY_DBMOVED
                ):  # else another process made it anew
                    raise
            except _BROKEN:
                self.discard()
            return work(self._connected())

    def close(self) -> None:
        """Close the file; the next question opens it again."""
        with self._held():
            if self._connection is not None:
                with suppress(sqlite3.Error):
                    self._connection.close()
            self._connection = None

    def discard(self) -> None:
        """Delete the file; the journal goes first, as it would be played back into the next file of this name."""
        self.close()
        for file in (self.path.with_name(f"{self.path.name}-journal"), self.path):
            with suppress(OSError):
                file.unlink()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Let one thread in; in a forked process, leave connection and lock of the parent alone."""
        if self._process != os.getpid():
            _forked.append(self._connection)
            self._connection, self._lock, self._process = None, threading.RLock(), os.getpid()
        with self._lock:
            yield

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._make()
            connection = sqlite3.connect(
                self.path, timeout=self.patience, isolation_level=None, check_same_thread=False
            )
            self._connection = connection
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.create_function("fnmatch", 2, fnmatchcase, deterministic=True)
            number = zlib.crc32(self.schema.encode()) & 0x7FFFFFFF
            (known,) = connection.execute("PRAGMA user_version").fetchone()
            if known == 0:
                script = f"BEGIN IMMEDIATE; {self.schema}; PRAGMA user_version = {number}; COMMIT"
                connection.executescript(script)
            elif known != number:
                raise sqlite3.DatabaseError("the file was made with other tables")
        return self._connection

    def _make(self) -> None:
        """Make the file where there is none.

        Raises:
            OSError: It, or a journal of it, is a link, through which SQLite would write, or a pipe, at which it waits.
        """
        for end in ("-journal", "-wal", ""):
            with suppress(FileNotFoundError):
                path = f"{self.path}{end}"
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    raise OSError(f"{path} is no plain file")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # exclusively: nothing is made at the other end of a link
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
