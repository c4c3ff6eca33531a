"""Manifests to rows: each is read once, whoever refers to it, because its digest says that it never changes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import CompatkitError, FormatError
from compatkit.registry import durable
from compatkit.registry.canonical import MAX_BYTES
from compatkit.registry.documents import How
from compatkit.registry.index.profiles import Profile, linked, profile, searched
from compatkit.registry.index.scanning import read_plain, settled, stamp
from compatkit.registry.objects import Objects

if TYPE_CHECKING:
    import sqlite3

Row = tuple[Any, ...]
ROWS = 10_000
"""Written in one go."""
BEGINNING = 2**16
"""Bytes of a blob that tell whether it may be a document."""
_INSERTS = {
    "folders": "INSERT OR REPLACE INTO folders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "versions": "INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "manifests": "INSERT OR REPLACE INTO manifests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "terms": "INSERT OR REPLACE INTO terms VALUES (?, ?, ?)",
    "classes": "INSERT OR REPLACE INTO classes VALUES (?, ?)",
    "edges": "INSERT OR REPLACE INTO edges VALUES (?, ?, ?)",
}


@attrs.frozen(eq=False)
class Rows:
    """Rows that wait to be written, and the next free numbers.

    Attributes:
        connection: To the tables, inside a transaction.
        numbers: The next number of a folder and of a manifest.
    """

    connection: sqlite3.Connection
    numbers: dict[str, int] = attrs.field(init=False, factory=dict)
    _waiting: dict[str, list[Row]] = attrs.field(
        init=False, factory=lambda: {table: [] for table in _INSERTS}
    )

    def empty(self) -> None:
        """Forget everything that the tables hold."""
        for table in _INSERTS:
            self.connection.execute(f"DELETE FROM {table}")

    def number(self, table: str) -> int:
        """Return the next free number of a table."""
        if table not in self.numbers:
            self.numbers[table] = self.connection.execute(
                f"SELECT ifnull(max(id), 0) FROM {table}"
            ).fetchone()[0]
        self.numbers[table] += 1
        return self.numbers[table]

    def add(self, table: str, row: Row) -> None:
        """Write a row, now or with the others; one with the same key is replaced."""
        rows = self._waiting[table]
        rows.append(row)
        if len(rows) >= ROWS:
            self.connection.executemany(_INSERTS[table], rows)
            rows.clear()

    def flush(self) -> None:
        """Write the rows that wait."""
        for table, rows in self._waiting.items():
            self.connection.executemany(_INSERTS[table], rows)
            rows.clear()


@attrs.frozen(eq=False)
class Manifests:
    """Gives every manifest a number, and writes down what it says when it is first asked for.

    Attributes:
        rows: Where it is written.
        objects: Where it is read.
        now: Time in ns, taken before the first look.
    """

    rows: Rows
    objects: Objects
    now: int
    _known: dict[str, int] = attrs.field(init=False, factory=dict)
    _looked: set[str] = attrs.field(init=False, factory=set)
    _lists: set[str] = attrs.field(init=False, factory=set)
    _shards: dict[str, bool] = attrs.field(init=False, factory=dict)

    def number(self, digest: str) -> int:
        """Return the number of a manifest."""
        number = self._known.get(digest)
        return self.read(digest, again=False) if number is None else number

    def read(self, digest: str, *, again: bool = True) -> int:
        """Read a manifest, and those that it keeps; one that is damaged keeps the error until it is read again.

        Args:
            digest: Of the manifest.
            again: Whether to read it although it was read before.

        Returns:
            Its number.
        """
        left: list[tuple[str, How]] = [(digest, "component")]
        while left:
            one, how = left.pop()
            if how != "component":
                edges = self._document(one)
            else:
                number = self._found(one)
                if number is not None and not (again and one == digest):
                    continue
                number = self._known[one] = number or self.rows.number("manifests")
                edges = self._manifest(number, one)
            left += [edge for edge in edges.items() if edge[1] != "payload"]
        return self._known[digest]

    def _found(self, digest: str) -> int | None:
        """Return the number of a manifest that was read before, now or ever."""
        number = self._known.get(digest)
        if number is None:
            row = self.rows.connection.execute(
                "SELECT id FROM manifests WHERE digest = ? AND (kind NOT NULL OR error NOT NULL)", (digest,)
            ).fetchone()
            if row is not None:
                number = self._known[digest] = row[0]
        return number

    def _manifest(self, number: int, digest: str) -> Mapping[str, How]:
        try:
            mark, about = self._profile(digest)
        except CompatkitError as error:
            self.rows.add("manifests", (number, digest, 0, str(error), *(None,) * 11))
            return {}
        self._keep(number, digest, mark, about)
        return about.edges

    def _document(self, digest: str) -> Mapping[str, How]:
        """Return what a blob names that is no manifest, such as the record of a run; most name nothing."""
        if digest in self._looked or digest in self._known:
            return {}
        self._looked.add(digest)
        if self.rows.connection.execute("SELECT 1 FROM manifests WHERE digest = ?", (digest,)).fetchone():
            return {}
        try:
            edges = linked(self._blob(digest, BEGINNING)[1], lambda: self._blob(digest, MAX_BYTES)[1], digest)
        except OSError:  # what is missing or damaged is told by whoever checks a registry
            return {}
        if edges:
            number = self.rows.number("manifests")
            self.rows.add("manifests", (number, digest, 0, None, *(None,) * 11))
            self._edges(number, edges)
        return edges

    def _blob(self, digest: str, limit: int) -> tuple[os.stat_result, bytes]:
        hexadecimal = digest.removeprefix("sha256:")
        return read_plain(f"{self._shard(hexadecimal[:2])}/{hexadecimal}", limit)

    def _edges(self, number: int, edges: Mapping[str, How]) -> None:
        for edge, how in edges.items():
            self.rows.add("edges", (number, edge, how != "payload"))

    def _profile(self, digest: str) -> tuple[int, Profile]:
        """Return the stamp of a manifest's file, 0 where a later change might not show, and what it says."""
        hexadecimal = digest.removeprefix("sha256:")
        try:
            known, data = self._blob(digest, MAX_BYTES + 1)
        except OSError:
            known, data = None, b""
        if known is not None and known.st_size > MAX_BYTES:
            raise FormatError(
                f"manifest {digest}: at most {MAX_BYTES} bytes of JSON are read, got {known.st_size}."
            )
        if known is None or sha256(data).hexdigest() != hexadecimal:
            # takes it back, or says what is wrong
            known, data = None, self.objects.read(digest, verify="always", aside=False)
        mark = stamp(known) if known is not None and settled(known, self.now) else 0
        return mark, profile(data, f"manifest {digest}")

    def _shard(self, first: str) -> str:
        """Return the folder of the blobs whose name begins so.

        Raises:
            OSError: It, or one above, is a symbolic link or not there.
        """
        folder = self.objects.root / "blobs" / "sha256" / first
        if first not in self._shards:
            try:
                durable.check_folders(folder, self.objects.root)
                self._shards[first] = True
            except CompatkitError:
                self._shards[first] = False
        if not self._shards[first]:
            raise OSError(f"{folder} is no folder")
        return str(folder)

    def _keep(self, number: int, digest: str, mark: int, about: Profile) -> None:
        more = json.dumps([about.tags, about.channels, about.anchors, about.parents], separators=(",", ":"))
        facts = (about.kind, about.builder, about.model, about.split, about.parameters, about.bytes)
        words = searched(f"{about.title}\n{about.description}")
        told = (about.title, about.licence, len(about.classes) or None, more, words)
        self.rows.add("manifests", (number, digest, mark, None, *facts, *told))
        terms = [(f"tag:{key}", value) for key, value in about.tags.items()]
        terms += [("channels", str(width)) for width in about.channels]
        terms += [("anchor", anchor) for anchor in about.anchors]
        terms += [("parent", parent) for _, parent in about.parents]
        if about.classes:
            terms.append(("classes", self._list(about.classes)))
        for field, value in terms:
            self.rows.add("terms", (field, value, number))
        self._edges(number, about.edges)

    def _list(self, classes: tuple[tuple[str, ...], ...]) -> str:
        """Keep a list of classes once, however many components have it; return its key."""
        key = sha256(repr(classes).encode()).hexdigest()[:32]
        if key not in self._lists:
            self._lists.add(key)
            for name in {name for names in classes for name in names}:
                self.rows.add("classes", (name, key))
        return key
