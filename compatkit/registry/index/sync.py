"""Bring the tables up to date with the files: only what changed is read, and no link is followed.

Every writer makes a draft in ``<root>/tmp`` before it writes, and removes it after. So one number, the pulse of the
registry, shows whether anything was written since the tables were filled; only then are the times of all folders
compared. Files are never rewritten: a file is opened once, unless it was damaged.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import NamedTuple

import attrs

from compatkit.errors import CompatkitError, InvalidName
from compatkit.registry import Progress
from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.index.facts import Manifests
from compatkit.registry.index.stamps import mark, pulse, read_plain, settled, stamp
from compatkit.registry.index.tables import FAILURES, Rows, about
from compatkit.registry.names import Version, check_segment
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import LINE_LIMIT, References, pointed

Number = tuple[int, int, int]
LIVE, WITHDRAWN, UNFINISHED = 0, 1, 2
CUT_OFF = "is empty: a publish was cut off, or is under way on a file system without hard links."
REPORTED = 50
"""Progress is reported once for so many names."""
DEPTH = 3
_FORGET = (
    "DELETE FROM manifests WHERE error IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM versions v WHERE v.manifest = manifests.id)"
    " AND digest NOT IN (SELECT digest FROM edges)"
)
"""Damaged manifests are looked at again each time, as long as something names them."""


@attrs.define(eq=False)
class Sync:
    """Brings the tables up to date with the files, in one transaction each time.

    Attributes:
        connection: To the tables.
        references: Names and versions.
        objects: Manifests.
    """

    connection: sqlite3.Connection
    references: References
    objects: Objects
    _pulse: int | None = attrs.field(init=False, default=None)

    def refresh(self, *, everything: bool = False, progress: Progress | None = None) -> int:
        """Read what changed.

        Args:
            everything: Whether to read all files, known or not.
            progress: Called with the count done, the total, and the name that is read.

        Returns:
            The number of folders that were read.

        Raises:
            sqlite3.Error: The tables cannot be read or written; they are as before.
            EnvironmentFailure: The files below ``refs`` cannot be read.
            IntegrityError: The folder ``refs`` is a symbolic link.
        """
        root, now = self.references.root, pulse(self.references.root)
        if self._pulse is None:
            self._pulse = about(self.connection, "pulse")
        quiet = now is not None and now == self._pulse and not everything
        if not quiet:
            durable.check_folders(root / "refs", root)
        before = self._data_version()
        changed, damaged = [""] if everything else self._changed(quiet), self._damaged()
        count = 0
        if changed or damaged:
            with self._transaction():
                if not everything and self._data_version() != before:
                    changed = self._changed(quiet)  # another process was faster: what is left to do?
                rows = Rows.of(self.connection, empty=everything)
                manifests = Manifests(rows, self.objects, time.time_ns())
                with environment("read", root / "refs"):
                    for digest in () if everything else damaged:
                        manifests.read(digest, again=True)
                    count = Folders(rows, self.references, manifests).read(changed, progress)
                rows.flush()
                self.connection.execute(_FORGET)
                self._note(now)
        elif now is not None and now != self._pulse:
            with suppress(*FAILURES):  # where nothing can be written, the next process looks again
                self._note(now)
        self._pulse = now
        return count

    def _note(self, now: int | None) -> None:
        self.connection.execute("INSERT OR REPLACE INTO about VALUES ('pulse', ?)", (now,))

    def _changed(self, quiet: bool) -> list[str]:
        """Return the folders that changed since they were read, by comparing their times.

        Args:
            quiet: Whether nothing was written, so that only folders which are always read again count.
        """
        if quiet:
            rows = self.connection.execute("SELECT name FROM folders WHERE state IS NULL")
            return [name for (name,) in rows.fetchall()]
        refs = f"{self.references.root}/refs"
        rows = self.connection.execute("SELECT name, state FROM folders").fetchall()
        changed = [name for name, known in rows if known is None or _look(refs, name)[0] != known]
        return changed if any(name == "" for name, _ in rows) else ["", *changed]

    def _damaged(self) -> list[str]:
        """Return the damaged manifests whose files changed since they were read."""
        rows = self.connection.execute(
            "SELECT digest, stamp FROM manifests WHERE error IS NOT NULL"
        ).fetchall()
        return [digest for digest, known in rows if known is None or mark([self._blob(digest)]) != known]

    def _blob(self, digest: str) -> str:
        return f"{self.references.root}/blobs/sha256/{digest[7:9]}/{digest[7:]}"

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Let one process write; what it reads from here on is at least as new as any earlier write."""
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


class Line(NamedTuple):
    """Content of a version's file; ``stamp`` is 0 if a later change might not show in it."""

    manifest: int | None
    stamp: int
    state: int
    error: str | None


@attrs.frozen(eq=False)
class Folders:
    """Reads the folders below ``refs`` within one transaction.

    Attributes:
        rows: Rows to write to.
        references: Names and versions.
        manifests: The manifests that versions point at.
    """

    rows: Rows
    references: References
    manifests: Manifests

    @property
    def refs(self) -> str:
        """Path of the folder of all names."""
        return f"{self.references.root}/refs"

    def read(self, names: list[str], progress: Progress | None) -> int:
        """Read folders, and those inside them that are new; return how many.

        A folder is read before those inside it, so that nothing is read through one that became a link.

        Args:
            names: Relative to the root.
            progress: Told of the folders that were read.
        """
        left, gone, done = sorted(names, reverse=True), set[str](), set[str]()
        while left:
            name = left.pop()
            if name in done or any(above in gone for above in _above(name)):
                continue
            if progress is not None and len(done) % REPORTED == 0:
                progress(len(done), len(done) + len(left) + 1, name)
            children = self._folder(name)
            known = set[str]() if self.rows.fresh else self._children(name)
            for removed in known - children if children is not None else {*known, name}:
                gone.add(removed)
                self._remove(removed)
            if children is not None:
                done.add(name)
                left += sorted(children - known)
        if progress is not None:
            progress(len(done), len(done), "")
        return len(done)

    def _children(self, name: str) -> set[str]:
        """Return the known folders in a folder."""
        within, depth = (
            ("name > ?1 || '/' AND name < ?1 || '0'", name.count("/") + 1) if name else ("name <> ?1", 0)
        )
        rows = self.rows.connection.execute(f"SELECT name FROM folders WHERE {within}", (name,))
        return {child for (child,) in rows.fetchall() if child.count("/") == depth}

    def _remove(self, name: str) -> None:
        """Delete a folder and everything inside it from the tables."""
        within = "name = ?1 OR (name > ?1 || '/' AND name < ?1 || '0')"  # '0' comes after '/'
        execute = self.rows.connection.execute
        execute(f"DELETE FROM versions WHERE folder IN (SELECT id FROM folders WHERE {within})", (name,))
        execute(f"DELETE FROM folders WHERE {within}", (name,))

    def _folder(self, name: str) -> set[str] | None:
        """Read a folder; return the names of the folders inside it, None if it does not exist any more."""
        state, kinds = _look(self.refs, name, self.manifests.now)
        if not kinds:
            return None
        path = f"{self.refs}/{name}" if name else self.refs
        inside = _folders_in(path)
        number, before = (None, {}) if self.rows.fresh else self._before(name)
        if number is None:
            number = self.rows.number("folders")
        gone = set(_numbers(f"{path}/@tombstones")) if "@tombstones" in kinds else set[Number]()
        lines = dict(self._lines(name, before, gone)) if "@versions" in kinds else {}
        for version in before.keys() - lines.keys():
            self.rows.connection.execute(
                "DELETE FROM versions WHERE folder = ? AND major = ? AND minor = ? AND patch = ?",
                (number, *version),
            )
        live = sorted(version for version, line in lines.items() if line.state == LIVE)
        latest = live[-1] if live else None
        for version, line in lines.items():
            if before.get(version) != (line, version == latest):
                manifest, known, status, error = line
                self.rows.add(
                    "versions", (number, *version, manifest, known, status, version == latest, error)
                )
        last = lines[latest] if latest is not None else Line(None, 0, LIVE, None)
        sure = state if all(line.error is None for line in lines.values()) else None
        finished = sum(line.state != UNFINISHED for line in lines.values())
        words = " ".join(f"{major}.{minor}.{patch}" for major, minor, patch in live)
        aliased = not inside.isdisjoint(("@aliases", "@log"))
        self.rows.add("folders", (number, name, sure, finished, aliased, words, last.manifest, last.error))
        prefix = f"{name}/" if name else ""
        return (
            {prefix + version for version in inside if _is_segment(version)}
            if prefix.count("/") < DEPTH
            else set()
        )

    def _before(self, name: str) -> tuple[int | None, dict[Number, tuple[Line, bool]]]:
        execute = self.rows.connection.execute
        row_id = execute("SELECT id FROM folders WHERE name = ?", (name,)).fetchone()
        sql = (
            "SELECT major, minor, patch, manifest, stamp, state, error, latest FROM versions WHERE folder = ?"
        )
        rows = execute(sql, row_id).fetchall() if row_id is not None else []
        return row_id and row_id[0], {row[:3]: (Line(*row[3:7]), bool(row[7])) for row in rows}

    def _lines(
        self, name: str, before: Mapping[Number, tuple[Line, bool]], gone: set[Number]
    ) -> Iterator[tuple[Number, Line]]:
        """Yield the versions of a name; files that did not change are not opened."""
        folder = f"{self.refs}/{name}/@versions"
        for number in _numbers(folder):
            path = f"{folder}/{number[0]}.{number[1]}.{number[2]}"
            try:
                line = before[number][0] if number in before else None
                if (
                    line is None
                    or line.error is not None
                    or not line.stamp
                    or stamp(os.lstat(path)) != line.stamp
                ):
                    line = self._line(name, number, path)
            except FileNotFoundError:
                continue  # it was there a moment ago
            if line.state != UNFINISHED:
                line = line._replace(state=WITHDRAWN if number in gone else LIVE)
            yield number, line

    def _line(self, name: str, number: Number, path: str) -> Line:
        try:
            known, data = read_plain(path, LINE_LIMIT)
        except OSError:
            known, data = os.lstat(path), b""
        sure = stamp(known) if settled(known, self.manifests.now) else 0
        digest = pointed(data, f"{name}@{number[0]}.{number[1]}.{number[2]}")
        if digest is not None:
            return Line(self.manifests.read(digest), sure, LIVE, None)
        if known.st_size == 0:
            return Line(None, sure, UNFINISHED, f"{path} {CUT_OFF}")
        try:
            digest = self.references.digest(name, Version(*number))
        except CompatkitError as error:
            return Line(None, sure, LIVE, str(error))
        if digest is None:
            raise FileNotFoundError(path)
        return Line(self.manifests.read(digest), 0, LIVE, None)


def _look(refs: str, name: str, now: int | None = None) -> tuple[int | None, list[str]]:
    """Return the state of a component's folders.

    Args:
        refs: Path of ``<root>/refs``.
        name: Path below it; ``""`` for ``refs`` itself.
        now: Time in ns, if what is read next is to be kept.

    Returns:
        A number that changes with every entry that comes or goes, None if a later change might not show; and which of
        the folders exist, ``""`` for the component's own.
    """
    folder = f"{refs}/{name}" if name else refs
    states: list[int] = []
    kinds: list[str] = []
    sure = True
    for kind in ("", "@versions", "@tombstones") if name else ("",):
        try:
            file_state = os.lstat(f"{folder}/{kind}" if kind else folder)
        except OSError:
            states.append(0)
            continue
        states.append(stamp(file_state))
        if stat.S_ISDIR(file_state.st_mode):
            kinds.append(kind)
        elif not kind:
            return None, []
        sure = sure and (now is None or settled(file_state, now))
    return hash(tuple(states)) if sure else None, kinds if "" in kinds else []


def _folders_in(path: str) -> set[str]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        return {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
    return set()


def _numbers(folder: str) -> Iterator[Number]:
    """Yield the version numbers that the files of a folder are named by; nothing if the folder is gone."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(folder):
            number = _parsed(name)
            if number is not None:
                yield number


@lru_cache(maxsize=2**14)  # most names have the same few
def _parsed(text: str) -> Number | None:
    """Return the three numbers of a version, None if the text is no version."""
    try:
        return attrs.astuple(Version.parse(text))
    except InvalidName:
        return None


def _is_segment(text: str) -> bool:
    try:
        return bool(check_segment(text))
    except InvalidName:
        return False


def _above(name: str) -> Iterator[str]:
    """Yield a folder's name and the names of all folders above it."""
    parts = name.split("/")
    return ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
