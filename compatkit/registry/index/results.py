"""Measured results in the tables: a row a result, with its figures, so that 90,000 pairs are one question.

What a document says is kept by its digest and stays true; that it is still there is looked up each time by the state
of the file that points at it. New ones show in the times of a pair's folders, which a process looks at once, and
again only if ``tmp`` shows that a writer came by.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

import attrs

from compatkit.registry.index.evidence import Files
from compatkit.registry.index.scanning import Watch, settled, stamp
from compatkit.registry.results import FUNCTION, Result

NAMES = ("measured", "pairs", "texts", "results")
TABLES = (
    # state of an extractor's folder when its heads were last listed, 0 where it does not tell
    "CREATE TABLE measured (id INTEGER PRIMARY KEY, extractor TEXT NOT NULL UNIQUE, state INTEGER)",
    "CREATE TABLE pairs (extractor INTEGER, head TEXT, state INTEGER, PRIMARY KEY (extractor, head)) WITHOUT ROWID",
    # conditions and settings, which many results share, by a digest of their own
    "CREATE TABLE texts (digest TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID",
    "CREATE TABLE results (extractor INTEGER, head TEXT, key TEXT, digest TEXT, written INTEGER, stamp INTEGER,"
    " conditions TEXT, settings TEXT, figures TEXT, error TEXT, PRIMARY KEY (extractor, head, key, digest))"
    " WITHOUT ROWID",
)
FEW = 16
"""Heads of an extractor that are asked for one by one; above, all its rows are read."""
SPELL = 1.0
"""Seconds of reading after which others are let in: what was read by then is kept."""
_ROWS = (
    "SELECT head, key, digest, written, stamp, conditions, settings, figures, error FROM results"
    " WHERE extractor = ?"
)
_INSERT = "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


@attrs.define(eq=False)
class Results:
    """The tables of results, brought up to what the files say when they are asked.

    Attributes:
        connection: To the tables.
        files: The truth.
    """

    connection: sqlite3.Connection
    files: Files
    _texts: dict[str, Any] = attrs.field(init=False, factory=dict)
    _watched: dict[str, int] = attrs.field(init=False, factory=dict)
    """By extractor: state of ``tmp`` when all its pairs were last looked at by this process."""
    _begun: float = attrs.field(init=False, default=0.0)

    def find(self, extractors: Sequence[str], heads: Sequence[str]) -> list[Result]:
        """Return the results of every extractor with every head, by function digest.

        Raises:
            IntegrityError: A folder is a symbolic link.
            sqlite3.Error: The tables cannot be used; they are as before.
            OSError: The files cannot be read.
        """
        wanted = list(dict.fromkeys(one.removeprefix(FUNCTION) for one in heads))
        watch = Watch.take(self.files.root)
        found: list[Result] = []
        try:
            for extractor in dict.fromkeys(one.removeprefix(FUNCTION) for one in extractors):
                found += self._of_extractor(extractor, wanted, watch.stamp if watch.quiet else 0)
                if self._begun and time.monotonic() - self._begun > SPELL:
                    self._end("COMMIT")
            self._end("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # what was wrong before is what is told
                self._end("ROLLBACK")
            raise
        return found

    def _of_extractor(self, extractor: str, heads: Sequence[str], seen: int) -> list[Result]:
        number = self._look(extractor, heads, seen)
        if number is None:
            return []
        found, old = self._told(number, extractor, heads)
        if not old:
            return found
        self._begin()
        for head in sorted(old):
            self._read(number, extractor, head, time.time_ns())
        return self._told(number, extractor, heads)[0]

    def _look(self, extractor: str, heads: Sequence[str], seen: int) -> int | None:
        """Read again what changed of an extractor's pairs; return its number, None if it has none.

        Args:
            extractor: Hexadecimal function digest.
            heads: The same, of those asked for.
            seen: State of ``tmp`` if it tells whether a writer came by, else 0.
        """
        now, execute = time.time_ns(), self.connection.execute
        known = execute("SELECT id, state FROM measured WHERE extractor = ?", (extractor,)).fetchone()
        self.files.check(extractor)
        try:
            own = os.lstat(self.files.folder(extractor))
        except FileNotFoundError:
            if known is not None:
                self._forget(known[0])
            return None
        mark = stamp(own) if settled(own, now) else 0
        if known is not None and known[1] == mark != 0:
            number: int = known[0]
            if self._watched.get(extractor) == seen != 0:
                return number
        else:
            number = self._heads(extractor, mark)
        self._pairs(number, extractor, heads, now, seen)
        return number

    def _heads(self, extractor: str, mark: int) -> int:
        """Bring the list of an extractor's heads up to date; return its number."""
        self._begin()
        execute = self.connection.execute
        execute("INSERT OR IGNORE INTO measured VALUES (NULL, ?, 0)", (extractor,))
        execute("UPDATE measured SET state = ? WHERE extractor = ?", (mark, extractor))
        number = int(execute("SELECT id FROM measured WHERE extractor = ?", (extractor,)).fetchone()[0])
        there = set(self.files.heads(extractor))
        known = {head for (head,) in execute("SELECT head FROM pairs WHERE extractor = ?", (number,))}
        for head in known - there:
            execute("DELETE FROM results WHERE extractor = ? AND head = ?", (number, head))
            execute("DELETE FROM pairs WHERE extractor = ? AND head = ?", (number, head))
        rows = [(number, head) for head in there - known]
        self.connection.executemany("INSERT OR REPLACE INTO pairs VALUES (?, ?, 0)", rows)
        return number

    def _forget(self, number: int) -> None:
        self._begin()
        for table, column in (("results", "extractor"), ("pairs", "extractor"), ("measured", "id")):
            self.connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (number,))

    def _pairs(self, number: int, extractor: str, heads: Sequence[str], now: int, seen: int) -> None:
        """Read again the pairs whose folders changed, of those asked for."""
        execute = self.connection.execute
        known = dict(execute("SELECT head, state FROM pairs WHERE extractor = ?", (number,)).fetchall())
        asked = [head for head in heads if head in known]
        keys: dict[str, set[str]] = {head: set() for head in asked}
        for row in self._rows("SELECT head, key FROM results WHERE extractor = ?", number, asked):
            keys[row[0]].add(row[1])
        changed = [
            head
            for head in asked
            if not known[head] or self.files.state(extractor, head, keys[head], now) != known[head]
        ]
        if changed:
            self._begin()
            for head in changed:
                known[head] = self._read(number, extractor, head, now)
        self._watched[extractor] = seen if len(asked) == len(known) and all(known.values()) else 0

    def _read(self, number: int, extractor: str, head: str, now: int) -> int:
        """Read all results of a pair; return the state of its folders, 0 where it does not tell."""
        execute = self.connection.execute
        keys = self.files.keys(extractor, head)
        rows = [row for key in keys for row in self.files.rows(extractor, head, key, now)]
        # the folder of a key without a result is known by no row: such a pair is read each time
        is_known = {row.key for row in rows} == set(keys)
        state = (self.files.state(extractor, head, keys, now) or 0) if is_known else 0
        execute("DELETE FROM results WHERE extractor = ? AND head = ?", (number, head))
        for row in rows:
            texts = self._text(row.conditions), self._text(row.settings)
            execute(_INSERT, (number, head, *row[:4], *texts, *row[6:]))
        execute("INSERT OR REPLACE INTO pairs VALUES (?, ?, ?)", (number, head, state))
        return state

    def _told(self, number: int, extractor: str, heads: Sequence[str]) -> tuple[list[Result], set[str]]:
        """Return the rows of the pairs asked for, and the heads whose files are not as they were."""
        folder, first, cut = self.files.folder(extractor), f"{FUNCTION}{extractor}", os.sep
        found: list[Result] = []
        old = set[str]()
        decode, lstat, value = json.JSONDecoder().raw_decode, os.lstat, self._value
        for head, key, name, written, mark, conditions, settings, figures, error in self._rows(
            _ROWS, number, heads
        ):
            try:
                if not mark or stamp(lstat(f"{folder}{cut}{head}{cut}{key}{cut}{name}")) != mark:
                    old.add(head)
            except OSError:
                old.add(head)
            texts = value(conditions), value(settings), decode(figures)[0]
            found.append(Result(first, FUNCTION + head, f"sha256:{name}", written, *texts, error))
        return found, old

    def _rows(self, sql: str, number: int, heads: Sequence[str]) -> Iterator[Any]:
        """Yield the rows of an extractor with some heads."""
        if len(heads) > FEW:
            wanted = set(heads)
            yield from (row for row in self.connection.execute(sql, (number,)).fetchall() if row[0] in wanted)
            return
        for head in heads:
            yield from self.connection.execute(f"{sql} AND head = ?", (number, head)).fetchall()

    def _text(self, text: str) -> str:
        """Keep a text once, however many results have it; return its key."""
        key = sha256(text.encode()).hexdigest()[:32]
        self.connection.execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", (key, text))
        return key

    def _value(self, key: str) -> Any:
        if key not in self._texts:
            row = self.connection.execute("SELECT text FROM texts WHERE digest = ?", (key,)).fetchone()
            self._texts[key] = json.loads(row[0])
        return self._texts[key]

    def _begin(self) -> None:
        if not self._begun:
            self.connection.execute("BEGIN IMMEDIATE")
            self._begun = time.monotonic()

    def _end(self, how: str) -> None:
        if self._begun:
            self._begun = 0.0
            self.connection.execute(how)
