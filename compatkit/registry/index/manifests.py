"""Manifests to rows: each is read once, whoever refers to it, because its digest says that it never changes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.codec import MAX_BYTES
from compatkit.errors import CompatkitError, FormatError
from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.index.profiles import Profile, linked, profile
from compatkit.registry.index.scanning import read_plain, settled, stamp
from compatkit.registry.index.tables import INDEXES, make_indexes
from compatkit.registry.reach import How

if TYPE_CHECKING:
    import sqlite3

Row = tuple[Any, ...]
ROWS = 10_000
"""Written in one go."""
BEGINNING = 2**16
"""Bytes of a blob that tell whether it may be a document."""
_LISTS = json.JSONEncoder(separators=(",", ":"))
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
        fresh: Whether the tables held nothing, so that nobody needs to look for what they might hold.
        numbers: The next number of a folder and of a manifest.
    """

    connection: sqlite3.Connection
    fresh: bool
    numbers: dict[str, int] = attrs.field(init=False, factory=dict)
    _waiting: dict[str, list[Row]] = attrs.field(
        init=False, factory=lambda: {table: [] for table in _INSERTS}
    )

    @classmethod
    def of(cls, connection: sqlite3.Connection, *, empty: bool) -> Rows:
        """Return rows for tables, which first forget everything they hold if ``empty``."""
        if empty:
            for index in INDEXES:
                connection.execute(f"DROP INDEX IF EXISTS {index}")
            for table in _INSERTS:
                connection.execute(f"DELETE FROM {table}")
        some = " UNION ALL ".join(f"SELECT 1 FROM {table}" for table in ("folders", "manifests"))
        return cls(connection, connection.execute(f"{some} LIMIT 1").fetchone() is None)

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
        self.extend(table, (row,))

    def extend(self, table: str, more: Iterable[Row]) -> None:
        """Write rows, as ``add`` does."""
        rows = self._waiting[table]
        rows.extend(more)
        if len(rows) >= ROWS:
            self.connection.executemany(_INSERTS[table], rows)
            rows.clear()

    def flush(self) -> None:
        """Write the rows that wait; tables that held nothing get their indexes."""
        for table, rows in self._waiting.items():
            self.connection.executemany(_INSERTS[table], sorted(rows) if table == "terms" else rows)
            rows.clear()
        if self.fresh:
            make_indexes(self.connection)


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
    _shards: dict[str, str] = attrs.field(init=False, factory=dict)

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
        if number is None and not self.rows.fresh:
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
        known = "SELECT 1 FROM manifests WHERE digest = ?"
        if not self.rows.fresh and self.rows.connection.execute(known, (digest,)).fetchone():
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
        return read_plain(f"{self._shard(digest[7:9])}/{digest[7:]}", limit)

    def _edges(self, number: int, edges: Mapping[str, How]) -> None:
        self.rows.extend("edges", [(number, edge, how != "payload") for edge, how in edges.items()])

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
        known = self._shards.get(first)
        if known is None:
            folder = self.objects.root / "blobs" / "sha256" / first
            with suppress(CompatkitError):
                durable.check_folders(folder, self.objects.root)
                known = str(folder)
            self._shards[first] = known = known or ""
        if not known:
            raise OSError(f"{self.objects.root}/blobs/sha256/{first} is no folder")
        return known

    def _keep(self, number: int, digest: str, mark: int, about: Profile) -> None:
        more = _LISTS.encode([about.tags, about.channels, about.anchors, about.parents])
        facts = (about.kind, about.builder, about.model, about.split, about.parameters, about.bytes)
        told = (about.title, about.licence, len(about.classes) or None, more, about.words)
        self.rows.add("manifests", (number, digest, mark, None, *facts, *told))
        terms = [(f"tag:{key}", value) for key, value in about.tags.items()]
        terms += [("channels", str(width)) for width in about.channels]
        terms += [("anchor", anchor) for anchor in about.anchors]
        terms += [("parent", parent) for _, parent in about.parents]
        if about.classes:
            terms.append(("classes", self._list(about.classes)))
        self.rows.extend("terms", [(field, value, number) for field, value in terms])
        self._edges(number, about.edges)

    def _list(self, classes: tuple[tuple[str, ...], ...]) -> str:
        """Keep a list of classes once, however many components have it; return its key."""
        key = sha256(repr(classes).encode()).hexdigest()[:32]
        if key not in self._lists:
            self._lists.add(key)
            self.rows.extend("classes", [(name, key) for name in {one for names in classes for one in names}])
        return key
