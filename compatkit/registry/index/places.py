"""Where the index is kept: in its file, else in memory, else nowhere; and how to get on when one of them fails."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Literal

import attrs

from compatkit.registry.blobs import Objects
from compatkit.registry.index.reading import Reader
from compatkit.registry.index.tables import Tables, inode_of, is_broken, remove
from compatkit.registry.index.walking import Walk
from compatkit.registry.index.writing import Writer
from compatkit.registry.refs import References

Kept = Literal["file", "memory", "files"]
_forked: list[object] = []
"""Connections of the parent process: a child must neither use nor close them."""


@attrs.define(eq=False)
class Places:
    """Gives whatever answers best at the moment.

    Attributes:
        path: Of the file, which may not exist.
        identity: ``Layout.id``.
        references: Names and versions.
        objects: Manifests.
        kept: ``"file"``; ``"memory"`` of this process; ``"files"`` where SQLite does not work.
        reason: Why it is not the file; ``""`` if it is.
        lock: Lets one thread in.
    """

    path: Path
    identity: str
    references: References
    objects: Objects
    kept: Kept = attrs.field(init=False, default="file")
    reason: str = attrs.field(init=False, default="")
    lock: Any = attrs.field(init=False, factory=threading.RLock)
    _process: int = attrs.field(init=False, factory=os.getpid)
    _reader: Reader | None = attrs.field(init=False, default=None)
    _walk: Walk | None = attrs.field(init=False, default=None)
    _renewed: bool = attrs.field(init=False, default=False)
    _copy: bool = attrs.field(init=False, default=True)
    _inode: int = attrs.field(init=False, default=0)

    @property
    def is_suspect(self) -> bool:
        """Whether the file was there before: one that was just made anew cannot be damaged."""
        return self.kept == "file" and not self._renewed

    def enter(self) -> bool:
        """Tell whether this is another process than before: what the parent opened is left alone."""
        if self._process == os.getpid():
            return False
        _forked.append(self._reader)
        self._process, self.lock, self._reader = os.getpid(), threading.RLock(), None
        return True

    def answers(self) -> Reader | Walk:
        """Return what answers, opening it if it is not open.

        Raises:
            sqlite3.Error: It cannot be opened.
            Unusable: The same.
        """
        if self.kept == "files":
            if self._walk is None:
                self._walk = Walk(self.references, self.objects)
            return self._walk
        if self._reader is None:
            if self.kept == "file":
                self._inode = inode_of(self.path)
                tables = Tables.in_file(self.path, self.identity)
            else:
                tables = Tables.in_memory(self.path, self.identity, copy=self._copy)
            self._reader = Reader(tables, Writer(tables.connection, self.references, self.objects))
        return self._reader

    def drop(self) -> None:
        """Close what is open; the next question opens it again."""
        if self._reader is not None:
            self._reader.tables.close()
        self._reader = None

    def reset(self) -> None:
        """Close what is open, and try the file again."""
        self.drop()
        self.kept, self.reason, self._renewed, self._copy = "file", "", False, True

    def retreat(self, error: Exception) -> None:
        """Go where it may work after a failure: to a new file, to memory, to the files themselves."""
        inode = self._reader.tables.inode if self._reader is not None else self._inode
        broken = is_broken(error)
        self.drop()
        if self.kept == "file" and broken and not self._renewed:
            remove(self.path, inode)
            self._renewed = True
        elif self.kept == "memory" and self._copy:
            self._copy = False
        else:
            self._copy = not broken
            self.kept = "memory" if self.kept == "file" else "files"
            self.reason = str(error)
