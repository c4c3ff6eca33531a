"""Aliases: names for versions that may move, by compare-and-swap that needs no working lock.

``@log/<alias>/<n>`` is the n-th move, created once by link(2): who creates it has moved the alias, and
whoever saw an older state fails and looks again. ``@aliases/<alias>`` holds the version and n, replaced
atomically; a reader follows the log from there, so that a crash between the two, or a slow writer, loses no
move.
"""

from __future__ import annotations

import os
import re
import time
from enum import Enum
from pathlib import Path
from typing import Any

import attrs

from compatkit.contracts.codec import dumps, loads
from compatkit.errors import AliasMoved, FormatError, InvalidName
from compatkit.registry import disk as durable
from compatkit.registry.names import Version, check_alias
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import LIMIT, PATIENCE, now

_NUMBER = re.compile("[1-9][0-9]{0,8}")


class Anything(Enum):
    """Type of ``ANY``."""

    ANY = "any"


ANY = Anything.ANY
"""Whatever the alias points at, and also if it does not exist."""


@attrs.frozen
class Move:
    """One entry of an alias's log.

    Attributes:
        number: Counted from 1.
        before: Version it pointed at, None if it did not exist.
        after: Version it points at since, None if it was removed.
        time: UTC, ISO 8601.
    """

    number: int
    before: str | None
    after: str | None
    time: str


@attrs.frozen(eq=False)
class Aliases:
    """The aliases of one component name.

    Attributes:
        folder: ``<root>/refs/<name>``.
        root: Of the registry.
    """

    folder: Path
    root: Path

    def all(self) -> dict[str, str]:
        """Return the version of each alias, by alias, sorted."""
        names = {*_listed(self.folder / "@aliases"), *_listed(self.folder / "@log")}
        found = ((alias, self.get(alias)) for alias in sorted(names) if _valid(alias))
        return {alias: version for alias, version in found if version is not None}

    def get(self, alias: str) -> str | None:
        """Return the version an alias points at, None if it does not exist."""
        return self._state(check_alias(alias))[1]

    def log(self, alias: str) -> list[Move]:
        """Return all moves of an alias, oldest first."""
        last = self._state(check_alias(alias))[0]
        numbers = (number for number in sorted(self._numbers(alias)) if number <= last)
        found = (self._move(alias, number) for number in numbers)
        return [
            move for move in found if move is not None and move.time
        ]  # without a time: cut off, nothing moved

    def set(self, alias: str, version: str | None, *, expected: str | Anything | None = ANY) -> None:
        """Move an alias, or remove it; where it is there already, a pointer that is behind the log is brought up to it.

        Args:
            alias: One segment.
            version: Where it shall point; None removes it.
            expected: Version it must point at now, None if it must not exist; ``ANY`` moves it in any case.

        Raises:
            AliasMoved: It points elsewhere.
            EnvironmentFailure: Disk full, no right to write, ...
        """
        check_alias(alias)
        while True:
            number, current = self._state(alias)
            if expected is not ANY and current != expected:
                raise AliasMoved(
                    f"alias {alias!r} should point at {expected or 'nothing'}, but points at "
                    f"{current or 'nothing'}: somebody moved it. Look again, and state what you expect now.",
                    subject=alias,
                )
            if current == version:
                told, shown = self._pointer(alias)
                if told < number and (shown, version) != (None, None):
                    self._show(alias, number, version)
                return
            if self._record(alias, number + 1, current, version):
                self._show(alias, number + 1, version)
                return

    def _state(self, alias: str) -> tuple[int, str | None]:
        number, version = self._pointer(alias)
        if number == 0:  # none, or one written by hand: the log decides
            number = max(self._numbers(alias), default=1) - 1
        while (move := self._move(alias, number + 1, version)) is not None:
            number, version = move.number, move.after
        return number, version

    def _numbers(self, alias: str) -> list[int]:
        folder = self.folder / "@log" / alias
        durable.check_folders(folder, self.root)
        return [int(name) for name in _listed(folder) if _NUMBER.fullmatch(name)]

    def _pointer(self, alias: str) -> tuple[int, str | None]:
        path = self.folder / "@aliases" / alias
        found = durable.read(path, self.root, limit=LIMIT)
        if found is None:
            return 0, None
        words = found[0].decode("utf-8", "replace").split()
        try:
            version = str(Version.parse(words[0]))
            if len(words) > 1 and not _NUMBER.fullmatch(words[1]):
                raise ValueError(words[1])
            return int(words[1]) if len(words) > 1 else 0, version
        except (IndexError, ValueError, InvalidName):
            raise FormatError(
                f"{path}: expected a version and the number of its move, such as '1.2.0 3', got "
                f"{found[0][:80]!r}. Remove the file: the moves in {self.folder / '@log' / alias} restore "
                "it.",
                subject=path,
            ) from None

    def _move(self, alias: str, number: int, current: str | None = None) -> Move | None:
        """Return a move, None if there was none yet.

        An empty file is one that another process writes at this moment, where there are no hard links, or that was cut
        off: then the alias stays at ``current``, and the number is used up.
        """
        path = self.folder / "@log" / alias / str(number)
        found = durable.read(path, self.root, limit=LIMIT)
        for _ in range(PATIENCE):
            if found is None:
                return None
            if found[0] or time.time() - found[1].st_mtime > 1:
                break
            time.sleep(0.01)
            found = durable.read(path, self.root, limit=LIMIT)
        if found is None:
            return None
        if not found[0]:
            return Move(number, current, current, "")
        value: Any = loads(found[0], what=str(path))
        if not isinstance(value, dict) or not _is_move(value):
            raise FormatError(
                f"{path}: expected an object with from and to (versions or null) and time, got {value!r:.100}.",
                subject=path,
            )
        return Move(number, value["from"], value["to"], value["time"])

    def _record(self, alias: str, number: int, before: str | None, after: str | None) -> bool:
        path = self.folder / "@log" / alias / str(number)
        with environment("create", path):
            return durable.create_once(path, dumps({"from": before, "to": after, "time": now()}), self.root)

    def _show(self, alias: str, number: int, version: str | None) -> None:
        path = self.folder / "@aliases" / alias
        if version is None:
            durable.discard(path)
            return
        with environment("create", path.parent):
            durable.make_folder(path.parent, self.root)
        durable.replace_file(path, f"{version} {number}\n".encode(), root=self.root)


def _is_move(value: dict[str, Any]) -> bool:
    if not {"from", "to", "time"} <= value.keys() or not isinstance(value["time"], str):
        return False
    try:
        return all(one is None or Version.parse(one) for one in (value["from"], value["to"]))
    except InvalidName:
        return False


def _listed(folder: Path) -> list[str]:
    with environment("read", folder):
        try:
            return os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []


def _valid(alias: str) -> bool:
    try:
        return bool(check_alias(alias))
    except InvalidName:
        return False
