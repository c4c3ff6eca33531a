"""The folders below ``evidence`` as they are: which pairs have results, and what each result says."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import attrs

from compatkit.errors import CompatkitError, FormatError
from compatkit.registry import disk as durable
from compatkit.registry.index.scanning import read_plain, settled, stamp
from compatkit.registry.results import FUNCTION, MAX_BYTES, Result, from_bytes

FOLDER = "evidence"
_POINTER_BYTES = 128
_HEXADECIMAL = re.compile("[0-9a-f]{64}")


class Row(NamedTuple):
    """A result as it was read; ``stamp`` is of the file that points at it, 0 where a later change might not show."""

    key: str
    digest: str
    written: int
    stamp: int
    conditions: str
    settings: str
    figures: str
    error: str


@attrs.frozen(eq=False)
class Files:
    """The folders below ``evidence``, read without following a link.

    Attributes:
        root: Of the registry.
    """

    root: Path

    def folder(self, *inside: str) -> str:
        """Return a path below ``evidence``."""
        return os.sep.join((str(self.root), FOLDER, *inside))

    def check(self, extractor: str) -> None:
        """Refuse a folder that is a link.

        Raises:
            IntegrityError: Names it.
        """
        durable.check_folders(self.root / FOLDER / extractor, self.root)

    def heads(self, extractor: str) -> list[str]:
        """Return the hexadecimal function digests of all heads that an extractor has results with."""
        return list(_entries(self.folder(extractor), folders=True))

    def keys(self, extractor: str, head: str) -> list[str]:
        """Return the keys under which a pair has results."""
        return list(_entries(self.folder(extractor, head), folders=True))

    def state(self, extractor: str, head: str, keys: Collection[str], now: int) -> int | None:
        """Return a number that changes with the folders of a pair, 0 while they are young; None if one is gone."""
        folder = self.folder(extractor, head)
        try:
            states = [os.lstat(folder), *(os.lstat(f"{folder}{os.sep}{key}") for key in sorted(keys))]
        except OSError:
            return None
        if not all(stat.S_ISDIR(one.st_mode) for one in states):
            return None
        return hash(tuple(map(stamp, states))) if all(settled(one, now) for one in states) else 0

    def rows(self, extractor: str, head: str, key: str, now: int) -> Iterator[Row]:
        """Yield every result of a pair under a key; damaged ones with their error."""
        for name in _entries(self.folder(extractor, head, key), folders=False):
            with suppress(FileNotFoundError):  # it was there a moment ago
                yield self._row(extractor, head, key, name, now)

    def kept(self, extractors: Sequence[str], heads: Sequence[str]) -> Iterator[Result]:
        """Yield the results of every extractor with every head, read from the files: the plain rule.

        Raises:
            IntegrityError: A folder is a symbolic link.
            OSError: The files cannot be read.
        """
        wanted = {one.removeprefix(FUNCTION) for one in heads}
        for extractor in dict.fromkeys(one.removeprefix(FUNCTION) for one in extractors):
            self.check(extractor)
            for head in wanted.intersection(self.heads(extractor)):
                for key in self.keys(extractor, head):
                    for row in self.rows(extractor, head, key, 0):
                        yield Result(
                            FUNCTION + extractor,
                            FUNCTION + head,
                            f"sha256:{row.digest}",
                            row.written,
                            json.loads(row.conditions),
                            json.loads(row.settings),
                            json.loads(row.figures),
                            row.error,
                        )

    def _row(self, extractor: str, head: str, key: str, name: str, now: int) -> Row:
        path = self.folder(extractor, head, key, name)
        known = os.lstat(path)
        mark = stamp(known) if settled(known, now) else 0
        what = f"the result {name}"
        try:
            self._check_pointer(path, name)
            data = self._blob(name)
            found = from_bytes(data, f"{FUNCTION}{extractor}", f"{FUNCTION}{head}", key, what)
        except (CompatkitError, OSError) as error:
            return Row(key, name, known.st_mtime_ns, 0, "{}", "{}", "{}", str(error))
        conditions, settings, figures = (
            json.dumps(one, sort_keys=True, separators=(",", ":")) for one in found
        )
        return Row(key, name, known.st_mtime_ns, mark, conditions, settings, figures, "")

    def _check_pointer(self, path: str, name: str) -> None:
        _, data = read_plain(path, _POINTER_BYTES)
        if data.strip() != f"sha256:{name}".encode():
            raise FormatError(
                f"{path} should hold the digest that it is named by, got {data!r:.80}. "
                "`compatkit verify --repair` moves it to quarantine."
            )

    def _blob(self, name: str) -> bytes:
        folder = self.root / "blobs" / "sha256" / name[:2]
        durable.check_folders(folder, self.root)
        try:
            state, data = read_plain(f"{folder}{os.sep}{name}", MAX_BYTES + 1)
        except FileNotFoundError:
            raise FormatError(f"its document sha256:{name} is missing.") from None
        if state.st_size > MAX_BYTES:
            raise FormatError(f"a result has at most {MAX_BYTES} bytes, sha256:{name} has {state.st_size}.")
        if sha256(data).hexdigest() != name:
            raise FormatError(f"its document sha256:{name} holds other bytes than its name promises.")
        return data


def _entries(folder: str, *, folders: bool) -> Iterator[str]:
    """Yield the names of folders, or of plain files, that are digests; nothing where there is no folder.

    Raises:
        OSError: It cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            for one in entries:
                fits = one.is_dir(follow_symlinks=False) if folders else one.is_file(follow_symlinks=False)
                if fits and _HEXADECIMAL.fullmatch(one.name):
                    yield one.name
    except (FileNotFoundError, NotADirectoryError):
        return
