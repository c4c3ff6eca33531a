"""From the files below ``refs`` to the tables: what changed is read again, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import attrs

from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.index import results
from compatkit.registry.index.folders import Folders, Progress
from compatkit.registry.index.manifests import Manifests, Rows
from compatkit.registry.index.scanning import state
from compatkit.registry.index.tables import FAILURES
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import References

if TYPE_CHECKING:
    import sqlite3


@attrs.frozen(eq=False)
class Writer:
    """Brings the tables up to what the files say, in one transaction each time.

    Attributes:
        connection: To the tables.
        references: Names and versions.
        objects: Manifests.
    """

    connection: sqlite3.Connection
    references: References
    objects: Objects

    def refresh(self, *, everything: bool = False, progress: Progress | None = None) -> int:
        """Read again what changed.

        Args:
            everything: Whether to read all files, whatever is known of them.
            progress: Called with done, total and the name that is read.

        Returns:
            How many folders were read again.

        Raises:
            sqlite3.Error: The tables cannot be read or written; they are as before.
            EnvironmentFailure: The files below ``refs`` cannot be read.
            IntegrityError: The folder ``refs`` is a symbolic link.
        """
        durable.check_folders(self.references.root / "refs", self.references.root)
        before = self._data_version()
        changed = [""] if everything else self._changed()
        damaged = self.connection.execute("SELECT digest FROM manifests WHERE error IS NOT NULL").fetchall()
        if not changed and not damaged:
            return 0
        with self._transaction():
            if not everything and self._data_version() != before:
                changed = self._changed()  # another process was faster: what is left to do?
            return self._write(changed, [digest for (digest,) in damaged], everything, progress)

    def rescan(self, names: Iterable[str]) -> None:
        """Read some names again, whatever is known of them.

        Raises:
            IntegrityError: A folder on the way is a symbolic link.
            sqlite3.Error: The tables cannot be written; they are as before.
            EnvironmentFailure: The files cannot be read.
        """
        names = list(names)
        for name in names:
            durable.check_folders(self.references.folder(name), self.references.root)
        with self._transaction():
            self._write(names, [], False, None)

    def restamp(self, stamps: Mapping[str, int]) -> None:
        """Note the new state of manifests' files whose content was found to be the same, if that is possible now."""
        rows = [(mark, digest) for digest, mark in stamps.items()]
        with suppress(*FAILURES):
            if rows:
                with self._transaction():
                    self.connection.executemany("UPDATE manifests SET stamp = ? WHERE digest = ?", rows)

    def _changed(self) -> list[str]:
        """Return the folders that changed since they were read, by one look at each."""
        refs = f"{self.references.root}/refs"
        rows = self.connection.execute(
            "SELECT name, state, settled, versions, tombstones FROM folders"
        ).fetchall()
        changed = [
            name
            for name, known, is_settled, versions, tombstones in rows
            if not is_settled
            or state(f"{refs}/{name}" if name else refs, versions is not None, tombstones) != known
        ]
        return changed if any(row[0] == "" for row in rows) else ["", *changed]

    def _write(self, names: list[str], retry: list[str], everything: bool, progress: Progress | None) -> int:
        rows = Rows.of(self.connection, empty=everything)
        if everything:
            for table in results.NAMES:
                self.connection.execute(f"DELETE FROM {table}")
        work = Folders(rows, self.references, Manifests(rows, self.objects, time.time_ns()))
        with environment("read", self.references.root / "refs"):
            for digest in () if everything else retry:
                work.manifests.read(digest)
            count = work.read(names, progress)
        rows.flush()
        # a version whose manifest is damaged is told to nobody, so that its file is compared by nobody else
        self.connection.execute(
            "UPDATE folders SET settled = 0 WHERE settled AND id IN (SELECT folder FROM versions WHERE manifest IN"
            " (SELECT id FROM manifests WHERE error IS NOT NULL))"
        )
        return count

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Let one process write; what it reads from here on is newer than what anybody wrote before."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            with suppress(*FAILURES):
                self.connection.execute("ROLLBACK")
            raise

    def _data_version(self) -> int:
        """Return a number that changes when another connection writes."""
        return self.connection.execute("PRAGMA data_version").fetchone()[0]
