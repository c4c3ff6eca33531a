"""Folders below ``refs`` to rows: a name's versions are read file by file, and only those files that changed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import attrs

from compatkit.errors import CompatkitError
from compatkit.registry.index.manifests import Manifests, Rows
from compatkit.registry.index.scanning import (
    LINE_BYTES,
    Number,
    Seen,
    look,
    read_plain,
    settled,
    stamp,
    version_files,
)
from compatkit.registry.names import Version
from compatkit.registry.refs import References

Progress = Callable[[int, int, str], None]
"""Called with done, total and what is being done."""
LIVE, WITHDRAWN, UNFINISHED = 0, 1, 2
CUT_OFF = "is empty: a publish was cut off, or is under way on a file system without hard links."
REPORTED = 50
"""How often progress is reported, in names."""
_LINE = re.compile(rb"sha256:[0-9a-f]{64}\n")


class Line(NamedTuple):
    """A version's file as it was read: ``stamp`` is 0 where a later change might not show."""

    manifest: int | None
    stamp: int
    state: int
    error: str | None


@attrs.frozen(eq=False)
class Folders:
    """One transaction's reading and writing of folders and versions.

    Attributes:
        rows: Where they are written.
        references: Where they are read.
        manifests: What versions point at.
    """

    rows: Rows
    references: References
    manifests: Manifests

    @property
    def refs(self) -> str:
        """Path of the folder of all names."""
        return f"{self.references.root}/refs"

    def read(self, names: list[str], progress: Progress | None) -> int:
        """Read folders, and those in them that nobody read yet; return how many."""
        seen = list(self._looks(names))
        for done, one in enumerate(seen):
            if progress is not None and done % REPORTED == 0:
                progress(done, len(seen), one.name)
            self._folder(one)
        if progress is not None:
            progress(len(seen), len(seen), "")
        return len(seen)

    def _looks(self, names: list[str]) -> Iterator[Seen]:
        """Look at folders, and at those in them that nobody looked at yet; forget those that are gone."""
        left, done = list(names), set[str]()
        while left:
            name = left.pop()
            if name in done:
                continue
            done.add(name)
            seen = look(self.refs, name, self.manifests.now)
            known = set[str]() if self.rows.fresh else self._children(name)
            children = {f"{name}/{one}" if name else one for one in seen.children} if seen else set[str]()
            for one in known - children if seen else {*known, name}:
                self._remove(one)
            left += children - known
            if seen is not None:
                yield seen

    def _children(self, name: str) -> set[str]:
        """Return the known folders in a folder."""
        execute = self.rows.connection.execute
        if not name:
            rows = execute("SELECT name FROM folders WHERE name <> '' AND instr(name, '/') = 0").fetchall()
        else:
            within = "name > ?1 || '/' AND name < ?1 || '0' AND instr(substr(name, length(?1) + 2), '/') = 0"
            rows = execute(f"SELECT name FROM folders WHERE {within}", (name,)).fetchall()
        return {one for (one,) in rows}

    def _remove(self, name: str) -> None:
        """Forget a folder and all that was in it."""
        within = "name = ?1 OR (name > ?1 || '/' AND name < ?1 || '0')"  # '0' comes after '/'
        execute = self.rows.connection.execute
        execute(f"DELETE FROM versions WHERE folder IN (SELECT id FROM folders WHERE {within})", (name,))
        execute(f"DELETE FROM folders WHERE {within}", (name,))

    def _folder(self, seen: Seen) -> None:
        folder, before = (None, {}) if self.rows.fresh else self._before(seen.name)
        if folder is None:
            folder = self.rows.number("folders")
        lines = self._lines(seen, before) if seen.versions else {}
        for number in before.keys() - lines.keys():
            self.rows.connection.execute(
                "DELETE FROM versions WHERE folder = ? AND major = ? AND minor = ? AND patch = ?",
                (folder, *number),
            )
        live = sorted(number for number, line in lines.items() if line.state == LIVE)
        latest = live[-1] if live else None
        for number, line in lines.items():
            is_latest = number == latest
            if before.get(number) != (line, is_latest):
                manifest, mark, state, error = line
                self.rows.add("versions", (folder, *number, manifest, mark, state, is_latest, error))
        last = lines[latest] if latest is not None else Line(None, 0, LIVE, None)
        finished = sum(line.state != UNFINISHED for line in lines.values()) if seen.versions else None
        certain = seen.settled and all(line.error is None for line in lines.values())
        told = " ".join(f"{major}.{minor}.{patch}" for major, minor, patch in live)
        facts = (seen.name, seen.state, certain, finished, seen.tombstones, seen.aliased)
        self.rows.add("folders", (folder, *facts, told, last.manifest, last.stamp, last.error))

    def _before(self, name: str) -> tuple[int | None, dict[Number, tuple[Line, bool]]]:
        execute = self.rows.connection.execute
        found = execute("SELECT id FROM folders WHERE name = ?", (name,)).fetchone()
        if found is None:
            return None, {}
        rows = execute(
            "SELECT major, minor, patch, manifest, stamp, state, error, latest FROM versions WHERE folder = ?",
            found,
        )
        return found[0], {row[:3]: (Line(*row[3:7]), bool(row[7])) for row in rows.fetchall()}

    def _lines(self, seen: Seen, before: dict[Number, tuple[Line, bool]]) -> dict[Number, Line]:
        """Read the versions of a name; files whose state is the same as before are not opened."""
        folder = f"{self.refs}/{seen.name}"
        gone = (
            {number for number, _ in version_files(f"{folder}/@tombstones")}
            if seen.tombstones
            else set[Number]()
        )
        lines: dict[Number, Line] = {}
        for number, entry in version_files(f"{folder}/@versions"):
            try:
                line = self._kept(before.get(number), entry) or self._line(seen.name, number, entry)
            except FileNotFoundError:
                continue  # it was there a moment ago
            if line.state != UNFINISHED:
                line = line._replace(state=WITHDRAWN if number in gone else LIVE)
            lines[number] = line
        return lines

    def _kept(self, before: tuple[Line, bool] | None, entry: os.DirEntry[str]) -> Line | None:
        """Return what was read before if the file is sure to be the same."""
        if before is None or not before[0].stamp or before[0].error is not None:
            return None
        return before[0] if stamp(entry.stat(follow_symlinks=False)) == before[0].stamp else None

    def _line(self, name: str, number: Number, entry: os.DirEntry[str]) -> Line:
        try:
            known, data = read_plain(entry.path, LINE_BYTES + 1)
        except OSError:
            known, data = entry.stat(follow_symlinks=False), b""
        mark = stamp(known) if settled(known, self.manifests.now) else 0
        if _LINE.fullmatch(data):
            return Line(self.manifests.number(data[:-1].decode()), mark, LIVE, None)
        if known.st_size == 0:
            return Line(None, mark, UNFINISHED, f"{entry.path} {CUT_OFF}")
        try:
            digest = self.references.digest(name, Version(*number))
        except CompatkitError as error:
            return Line(None, mark, LIVE, str(error))
        if digest is None:
            raise FileNotFoundError(entry.path)
        return Line(self.manifests.number(digest), 0, LIVE, None)
