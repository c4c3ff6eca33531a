"""Withdrawals on disk: a log for each version, which takes it out of use and may take that back.

``@tombstones/1.0.0`` is the first entry, ``@tombstones/1.0.0~2`` the second, and so on. Odd entries withdraw the
version, even ones restore it, so a listing of the folder tells which versions are withdrawn. Entries are created once
and never rewritten. ``withdrawals/<name>@1.0.0`` repeats each entry, so that a lost one is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import FormatError
from compatkit.foundation.codec import dumps, loads
from compatkit.registry import disk as durable
from compatkit.registry.authorship import Author, author_in
from compatkit.registry.log import LIMIT, names_in, now
from compatkit.registry.names import ENTRY_NAME, Version
from compatkit.registry.os_errors import environment

WITHDRAWALS = "withdrawals"
"""Folder with the second file of each entry."""


@attrs.frozen
class Tombstone:
    """Entry in the log of a version's withdrawals.

    Attributes:
        reason: Text shown to users.
        time: Time of the entry, UTC, ISO 8601.
        number: Number of the entry, from 1; odd ones withdraw the version, even ones restore it.
        by: Author: key or user; empty if not recorded.
        commit: Git commit of the author's folder; empty if not recorded.
    """

    reason: str
    time: str
    number: int = 1
    by: str = ""
    commit: str = ""

    @property
    def restores(self) -> bool:
        """Whether the entry takes a withdrawal back."""
        return self.number % 2 == 0


@attrs.frozen(eq=False)
class Withdrawals:
    """Withdrawals of the versions of one component name.

    Attributes:
        name: Name of the component.
        root: Root folder of the registry.
    """

    name: str
    root: Path

    def versions(self) -> set[Version]:
        """Return the withdrawn versions."""
        return {version for version, numbers in self.numbers().items() if numbers[-1] % 2}

    def log(self, version: Version) -> list[Tombstone]:
        """Return all entries of a version, oldest first.

        Raises:
            FormatError: An entry is damaged.
        """
        numbers = self.numbers().get(version, [])
        entries = (self.entry(version, number) for number in numbers)
        return [entry for entry in entries if entry is not None]

    def tombstone(self, version: Version) -> Tombstone | None:
        """Return the entry that withdraws a version; None if the version is not withdrawn.

        Raises:
            FormatError: The entry is damaged.
        """
        numbers = self.numbers().get(version, [])
        return self.entry(version, numbers[-1]) if numbers and numbers[-1] % 2 else None

    def entry(self, version: Version, number: int) -> Tombstone | None:
        """Return an entry; None if it is missing.

        Raises:
            FormatError: The entry is damaged.
        """
        path = self.root / entry_path(self.name, version, number)
        opened = durable.read(path, self.root, limit=LIMIT)
        return None if opened is None else read_entry(opened[0], number, str(path))

    def append(
        self,
        version: Version,
        reason: str,
        *,
        restore: bool,
        author: Author | None = None,
        ready: Callable[[], object] | None = None,
    ) -> bool:
        """Withdraw a version, or restore it.

        Args:
            version: Version of the component.
            reason: Text shown to users.
            restore: Whether to restore the version instead.
            author: Author of the change; recorded, and signs it if there is a key.
            ready: Called right before the entry is created; may raise to stop.

        Returns:
            Whether an entry was created; False if the version has this state already.

        Raises:
            EnvironmentFailure: Disk full, no write permission, ...; nothing changed.
        """
        author = author or Author.of()
        sign = author.signer(self.root)
        while True:
            number = max(self.numbers().get(version, [0])) + 1
            if (number % 2 == 0) != restore:
                self._repeat(version, number - 1)
                return False
            entry = entry_path(self.name, version, number)
            path, second = self.root / entry, self.root / second_path(self.name, version, number)
            content = _to_bytes(reason, restore, author)
            prepare = partial(_prepare, ready, sign and partial(sign, entry, content))
            with environment("create", path):
                # before the second file, which a repair would make an entry of
                if durable.create_once(second, content, self.root, prepare):
                    prepare = None
                else:  # an earlier command was interrupted
                    content = durable.read_finished(second, self.root, limit=LIMIT) or content
                    prepare = partial(_prepare, ready, sign and partial(sign, entry, content))
                if durable.create_once(path, content, self.root, prepare):
                    return True
            if durable.read_finished(path, self.root, limit=LIMIT) == b"":  # left by an interrupted command
                durable.replace_file(path, content, root=self.root)
                return True

    def _repeat(self, version: Version, number: int) -> None:
        """Create the second file of an entry if it is missing, as in registries of earlier versions."""
        opened = durable.read(self.root / entry_path(self.name, version, number), self.root, limit=LIMIT)
        second = self.root / second_path(self.name, version, number)
        if opened is not None:
            with environment("create", second):
                durable.create_once(second, opened[0], self.root)

    def numbers(self) -> dict[Version, list[int]]:
        """Return the numbers of the entries of each version, in ascending order.

        An empty first entry counts: only that keeps the version out of use. An empty later one does not, because
        without hard links an interrupted command leaves one.
        """
        folder = self.root / f"refs/{self.name}/@tombstones"
        numbers: dict[Version, list[int]] = {}
        for version, number in _entries(names_in(folder, self.root)):
            path = self.root / entry_path(self.name, version, number)
            if number == 1 or durable.read_finished(path, self.root, limit=LIMIT):
                numbers.setdefault(version, []).append(number)
        return {version: sorted(numbers[version]) for version in numbers}


def entry_path(name: str, version: Version | None, number: int) -> str:
    """Return the path of an entry, relative to the root."""
    return f"refs/{name}/@tombstones/{entry_name(version, number)}"


def second_path(name: str, version: Version | None, number: int) -> str:
    """Return the path of the second file of an entry, relative to the root."""
    return f"{WITHDRAWALS}/{name.replace('/', '%2f')}@{entry_name(version, number)}"


def entry_name(version: Version | None, number: int) -> str:
    """Return the file name of an entry."""
    return f"{version}" if number == 1 else f"{version}~{number}"


@lru_cache(2**12)  # names of different components have the same numbers
def parse_entry_name(name: str) -> tuple[Version, int] | None:
    """Return version and number in the file name of an entry; None for other files."""
    match = ENTRY_NAME.fullmatch(name)
    return None if match is None else (Version.parse(match["version"]), int(match["number"] or 1))


def read_entry(content: bytes, number: int, path: str) -> Tombstone:
    """Return the entry in a file.

    Args:
        content: Content of the file.
        number: Number in the file name.
        path: Path for messages.

    Raises:
        FormatError: The file is damaged, or its action does not fit its number.
    """
    value: Any = loads(content, what=path)
    if not isinstance(value, dict) or not isinstance(value.get("reason"), str):
        raise FormatError(
            f"{path}: expected an object with reason and time, got {value!r:.100}.", subject=path
        )
    if (value.get("action") == "restore") != (number % 2 == 0):
        expected = "a restoration" if number % 2 == 0 else "a withdrawal"
        raise FormatError(f"{path}: expected {expected} by its number, got {value!r:.100}.", subject=path)
    return Tombstone(value["reason"], str(value.get("time", "")), number, *author_in(value))


def _prepare(*calls: Callable[[], object] | None) -> None:
    for call in calls:
        if call is not None:
            call()


def _to_bytes(reason: str, restore: bool, author: Author) -> bytes:
    action = {"action": "restore"} if restore else {}
    return dumps({"reason": reason, "time": now(), **action, **author.fields()})


def _entries(names: list[str]) -> Iterator[tuple[Version, int]]:
    for name in names:
        if (parsed := parse_entry_name(name)) is not None:
            yield parsed
