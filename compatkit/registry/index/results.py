"""Measured results in the index: one row for each result, so that 90,000 pairs are one query.

The file of a result is named by its content and never rewritten, so it is read once. The folders of an extractor are
listed again if the pulse of the registry shows that something was written since.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import CompatkitError, FormatError
from compatkit.registry import disk as durable
from compatkit.registry.evidence import FOLDER, FUNCTION, MAX_BYTES, StoredResult, from_bytes
from compatkit.registry.index.stamps import mark, pulse, read_plain

FEW = 16
"""Heads of an extractor that are asked for one by one; above, all its rows are read."""
SPELL = 1.0
"""Seconds of reading after which others are let in: what was read by then is kept."""
ResultKey = tuple[str, str, str]
"""Head, key and digest of a result of an extractor, as its folders are named."""
_POINTER_BYTES = 128
_HEXADECIMAL = re.compile("[0-9a-f]{64}")
_ROWS = "SELECT head, digest, written, conditions, settings, figures, error FROM results WHERE extractor = ?"
_INSERT = "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


@attrs.define(eq=False)
class ResultTable:
    """The tables of results; each query first brings them up to date with the files.

    Attributes:
        connection: To the tables.
        root: Of the registry.
    """

    connection: sqlite3.Connection
    root: Path
    _texts: dict[str, Any] = attrs.field(init=False, factory=dict)
    _begun: float = attrs.field(init=False, default=0.0)

    def find(self, extractors: Sequence[str], heads: Sequence[str]) -> list[StoredResult]:
        """Return the results of every extractor with every head, by function digest.

        Args:
            extractors: Function digests.
            heads: Function digests.

        Raises:
            IntegrityError: A folder is a symbolic link.
            sqlite3.Error: The tables cannot be used; they are as before.
            OSError: The files cannot be read.
        """
        wanted = list(dict.fromkeys(function.removeprefix(FUNCTION) for function in heads))
        now, before = pulse(self.root), self._data_version()
        results: list[StoredResult] = []
        looked: list[tuple[int | None, int]] = []
        try:
            for extractor in dict.fromkeys(function.removeprefix(FUNCTION) for function in extractors):
                number, known = self._look(extractor, now)
                if number is not None:
                    results += self._stored(number, extractor, wanted)
                    if known != now:
                        looked.append((now, number))
                if self._begun and time.monotonic() - self._begun > SPELL:
                    self._end("COMMIT")
            if looked:
                with suppress(
                    sqlite3.OperationalError
                ):  # where nothing can be written, all is looked at again
                    self._begin()
                    if self._data_version() == before:
                        self.connection.executemany("UPDATE measured SET pulse = ? WHERE id = ?", looked)
            self._end("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # the first error is the one to report
                self._end("ROLLBACK")
            raise
        return results

    def _look(self, extractor: str, now: int | None) -> tuple[int | None, int | None]:
        """Read the new and the damaged results of an extractor.

        Args:
            extractor: Hexadecimal function digest.
            now: The pulse of the registry.

        Returns:
            Its number, None if it has no results; and the pulse when its folders were last listed.
        """
        durable.check_folders(self.root / FOLDER / extractor, self.root)
        number, known = self._number(extractor)
        quiet = now is not None and now == known
        gone, new = self._news(number, extractor, quiet)
        if not gone and not new:
            return number, known
        self._begin()
        self.connection.execute("INSERT OR IGNORE INTO measured VALUES (NULL, ?, NULL)", (extractor,))
        number, known = self._number(extractor)
        gone, new = self._news(number, extractor, quiet)  # another process may have been faster
        for place in gone | new:
            sql = "DELETE FROM results WHERE extractor = ? AND head = ? AND key = ? AND digest = ?"
            self.connection.execute(sql, (number, *place))
        for place in new:
            with suppress(FileNotFoundError):  # it was there a moment ago
                self._read(number, extractor, place)
        return number, known

    def _number(self, extractor: str) -> tuple[int | None, int | None]:
        sql = "SELECT id, pulse FROM measured WHERE extractor = ?"
        return self.connection.execute(sql, (extractor,)).fetchone() or (None, None)

    def _news(self, number: int | None, extractor: str, quiet: bool) -> tuple[set[ResultKey], set[ResultKey]]:
        """Return the results whose files are gone, and those that must be read.

        Args:
            number: Of the extractor.
            extractor: Hexadecimal function digest.
            quiet: Whether only damaged ones can have changed.
        """
        sql = "SELECT head, key, digest, stamp, error FROM results WHERE extractor = ?"
        rows = self.connection.execute(f"{sql} AND error <> ''" if quiet else sql, (number,)).fetchall()
        known = {row[:3] for row in rows}
        sound = {row[:3] for row in rows if not row[4] or row[3] == mark(self._files(extractor, row[:3]))}
        present = known if quiet else set(self._places(extractor))
        return known - present, present - sound

    def _places(self, extractor: str) -> Iterator[ResultKey]:
        folder = f"{self.root}/{FOLDER}/{extractor}"
        for head in _entries(folder, folders=True):
            for key in _entries(f"{folder}/{head}", folders=True):
                for digest in _entries(f"{folder}/{head}/{key}", folders=False):
                    yield head, key, digest

    def _files(self, extractor: str, place: ResultKey) -> list[str]:
        """Return the file that points at a result, and its document."""
        head, key, digest = place
        pointer = f"{self.root}/{FOLDER}/{extractor}/{head}/{key}/{digest}"
        return [pointer, f"{self.root}/blobs/sha256/{digest[:2]}/{digest}"]

    def _read(self, number: int | None, extractor: str, place: ResultKey) -> None:
        """Read a result; one that is damaged keeps the error until one of its files changes.

        Raises:
            FileNotFoundError: It is not there any more.
        """
        now, files, (head, key, digest) = time.time_ns(), self._files(extractor, place), place
        written, stamp, error = os.lstat(files[0]).st_mtime_ns, None, ""
        texts = ["{}", "{}", "{}"]
        try:
            data = self._document(files, digest)
            both = FUNCTION + extractor, FUNCTION + head
            document = from_bytes(data, *both, key, f"the result {digest}")
            texts = [json.dumps(part, sort_keys=True, separators=(",", ":")) for part in document]
        except (CompatkitError, OSError) as problem:
            stamp, error = mark(files, now), str(problem)
        conditions, settings = map(self._text, texts[:2])
        row = number, head, key, digest, written, stamp, conditions, settings, texts[2], error
        self.connection.execute(_INSERT, row)

    def _document(self, files: list[str], digest: str) -> bytes:
        _, line = read_plain(files[0], _POINTER_BYTES)
        if line.strip() != f"sha256:{digest}".encode():
            raise FormatError(
                f"{files[0]} should hold the digest that it is named by, got {line!r:.80}. "
                "`compatkit verify --repair` moves it to quarantine."
            )
        durable.check_folders(self.root / "blobs" / "sha256" / digest[:2], self.root)
        try:
            state, data = read_plain(files[1], MAX_BYTES + 1)
        except FileNotFoundError:
            raise FormatError(f"its document sha256:{digest} is missing.") from None
        if state.st_size > MAX_BYTES:
            raise FormatError(f"a result has at most {MAX_BYTES} bytes, sha256:{digest} has {state.st_size}.")
        if sha256(data).hexdigest() != digest:
            raise FormatError(f"its document sha256:{digest} holds other bytes than its name promises.")
        return data

    def _stored(self, number: int, extractor: str, heads: Sequence[str]) -> Iterator[StoredResult]:
        first, wanted = FUNCTION + extractor, set(heads)
        execute, decode, value = self.connection.execute, json.JSONDecoder().raw_decode, self._value
        if len(heads) > FEW:
            rows = [row for row in execute(_ROWS, (number,)).fetchall() if row[0] in wanted]
        else:
            rows = [
                row for head in heads for row in execute(f"{_ROWS} AND head = ?", (number, head)).fetchall()
            ]
        for head, digest, written, conditions, settings, figures, error in rows:
            texts = value(conditions), value(settings), decode(figures)[0]
            yield StoredResult(first, FUNCTION + head, f"sha256:{digest}", written, *texts, error)

    def _text(self, text: str) -> str:
        """Store a text once, however many results share it; return its key."""
        key = sha256(text.encode()).hexdigest()[:32]
        self.connection.execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", (key, text))
        return key

    def _value(self, key: str) -> Any:
        if key not in self._texts:
            row = self.connection.execute("SELECT text FROM texts WHERE digest = ?", (key,)).fetchone()
            self._texts[key] = json.loads(row[0])
        return self._texts[key]

    def _data_version(self) -> int:
        """Return a number that changes when another connection writes."""
        return self.connection.execute("PRAGMA data_version").fetchone()[0]

    def _begin(self) -> None:
        if not self._begun:
            self.connection.execute("BEGIN IMMEDIATE")
            self._begun = time.monotonic()

    def _end(self, how: str) -> None:
        if self._begun:
            self._begun = 0.0
            self.connection.execute(how)


def _entries(folder: str, *, folders: bool) -> Iterator[str]:
    """Yield the names of folders, or of plain files, that are digests; nothing where there is no folder.

    Raises:
        OSError: It cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                fits = (
                    entry.is_dir(follow_symlinks=False) if folders else entry.is_file(follow_symlinks=False)
                )
                if fits and _HEXADECIMAL.fullmatch(entry.name):
                    yield entry.name
    except (FileNotFoundError, NotADirectoryError):
        return
