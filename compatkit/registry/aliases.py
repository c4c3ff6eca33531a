"""Aliases: movable names of versions, changed by compare-and-swap without locks.

``@log/<alias>/<n>`` is the n-th move; the last move is the state of the alias. The pointer ``@aliases/<alias>`` repeats
its version and number. It counts only without a log, such as a pointer written by hand. If it states another version
for the last move or for a later one, a file was changed or lost, and reading the alias raises: no bit flip in either
file moves an alias.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import AliasMoved, FormatError, InvalidName, SignatureError
from compatkit.foundation.codec import dumps, loads
from compatkit.registry import disk as durable
from compatkit.registry.authorship import Author, author_in
from compatkit.registry.log import LIMIT, NUMBER, Log, names_in, now
from compatkit.registry.names import Version, check_alias
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.settings import SettingsInForce


class Anything(Enum):
    """Type of ``ANY``."""

    ANY = "any"


ANY = Anything.ANY
"""Any version, or no alias."""


@attrs.frozen
class AliasEntry:
    """One move of an alias.

    Attributes:
        number: Number of the move, from 1.
        before: Version before the move, None if the alias did not exist.
        after: Version after the move, None if the alias was removed.
        time: Time of the move: UTC, ISO 8601.
        by: Author: key or user; empty if not recorded.
        commit: Git commit of the author's folder; empty if not recorded.
    """

    number: int
    before: str | None
    after: str | None
    time: str
    by: str = ""
    commit: str = ""


@attrs.frozen(eq=False)
class Aliases:
    """The aliases of one component name.

    Attributes:
        folder: ``<root>/refs/<name>``.
        root: Root folder of the registry.
    """

    folder: Path
    root: Path

    def all(self) -> dict[str, str]:
        """Return the version of each alias, by alias, sorted."""
        names = {name for kind in ("@aliases", "@log") for name in names_in(self.folder / kind, self.root)}
        versions = ((alias, self.get(alias)) for alias in sorted(names) if _is_alias(alias))
        return {alias: version for alias, version in versions if version is not None}

    def get(self, alias: str) -> str | None:
        """Return the version of an alias, None if it does not exist.

        Raises:
            FormatError: The last move is damaged; or there is no move, and the pointer is damaged.
        """
        # The pointer is read before the log: a move is appended to the log before it changes the pointer.
        log, pointer = self._log(alias), self._read_pointer_file(alias)
        return self._current(alias, log, log.numbers(), pointer)

    def log(self, alias: str) -> list[AliasEntry]:
        """Return all moves of an alias, oldest first.

        Raises:
            FormatError: A move is damaged.
        """
        moves = (self.move(alias, number) for number in self._log(alias).numbers())
        return [move for move in moves if move is not None]

    def move(self, alias: str, number: int) -> AliasEntry | None:
        """Return one move of an alias; None if it is missing, or writing it was interrupted.

        Args:
            alias: Alias without a name.
            number: Number of the move, from 1.

        Raises:
            FormatError: The move is damaged.
        """
        return _read(self._log(alias), number)

    def set(
        self,
        alias: str,
        version: str | None,
        *,
        expected: str | Anything | None = ANY,
        author: Author | None = None,
    ) -> None:
        """Move an alias, or remove it. If it has this version already, only a different pointer is rewritten.

        Args:
            alias: Alias without a name.
            version: New version; None removes the alias.
            expected: Required current version, None if the alias must not exist; ``ANY`` for no requirement.
            author: Author of the move; recorded, and signs it if there is a key.

        Raises:
            AliasMoved: The current version is not the expected one.
            NotAllowed: The settings of the registry protect the alias from this author.
            EnvironmentFailure: Disk full, no permission to write, ...
        """
        from compatkit.registry.settings import rules_of

        log, last = self._log(alias), 0
        author = author or Author.of()
        fields, rules = author.fields(), rules_of(self.root)
        if rules.settings.protects(alias):
            rules.check_author("maintainers", author, f"move the protected alias {alias}", alias)

        def move(numbers: list[int]) -> bytes | None:
            nonlocal last
            last, current = max(numbers, default=0), self._current(alias, log, numbers, None)
            if expected is not ANY and current != expected:
                raise AliasMoved(
                    f"alias {alias!r} should point at {expected or 'nothing'}, but points at "
                    f"{current or 'nothing'}: somebody moved it. Read it again, and pass its version as expected.",
                    subject=alias,
                )
            return (
                None
                if current == version
                else dumps({"from": current, "to": version, "time": now(), **fields})
            )

        number = log.append(move, author.signer(self.root)) or last
        if number and (number != last or self._read_pointer_file(alias) != _line(version, last)):
            self._write_pointer_file(alias, version, number)

    def _log(self, alias: str) -> Log:
        return Log(self.root, self.folder / "@log" / check_alias(alias))

    def _current(self, alias: str, log: Log, numbers: list[int], pointer: bytes | None) -> str | None:
        from compatkit.registry.settings import rules_of

        rules = rules_of(self.root)
        is_protected = rules.settings.protects(alias)
        for number in reversed(numbers):
            move = _read(log, number)
            if is_protected and not self._is_signed(log, number, rules):
                continue
            if move is not None and is_protected:
                return move.after  # a pointer is not signed
            if move is not None:
                self._compare(move, None if pointer is None else read_pointer(pointer), alias)
                return move.after
        return None if is_protected else self._without_moves(alias)

    def _is_signed(self, log: Log, number: int, rules: SettingsInForce) -> bool:
        """Return whether a maintainer signed a move; others of a protected alias do not count."""
        from compatkit.registry.signing.signatures import Signatures

        data = log.read(number) or b""
        path = log.path(number).relative_to(self.root).as_posix()
        try:
            rules.check_entry(path, data, Signatures(self.root).of)
        except SignatureError:
            return False
        return True

    def _compare(self, move: AliasEntry, pointer: tuple[str, int] | None, alias: str) -> None:
        """Raise if the pointer contradicts the last move.

        Raises:
            FormatError: The pointer states another version for this move or for a later one.
        """
        if pointer is None or pointer[1] < move.number or pointer[0] == move.after:
            return
        path = self._pointer(alias)
        raise FormatError(
            f"{path} says that move {pointer[1]} leads to {pointer[0]}, but the last move of its log, {move.number}, "
            f"leads to {move.after or 'nothing'}: a file was changed, or a move was lost. Run `compatkit "
            "verify`, or set the alias again.",
            subject=path,
        )

    def _without_moves(self, alias: str) -> str | None:
        """Return the version in the pointer of an alias without moves."""
        content = self._read_pointer_file(alias)
        if content is None:
            return None
        pointer = read_pointer(content)
        if pointer is None:
            path = self._pointer(alias)
            raise FormatError(
                f"{path}: expected a version and the number of its move, such as '1.2.0 3', got {content[:80]!r}; "
                f"{self.folder / '@log' / alias} has no moves. Remove the file, and set the alias again.",
                subject=path,
            )
        return pointer[0]

    def _pointer(self, alias: str) -> Path:
        return self.folder / "@aliases" / alias

    def _read_pointer_file(self, alias: str) -> bytes | None:
        opened = durable.read(self._pointer(alias), self.root, limit=LIMIT)
        return None if opened is None else opened[0]

    def _write_pointer_file(self, alias: str, version: str | None, number: int) -> None:
        path, line = self._pointer(alias), _line(version, number)
        if line is None:
            durable.discard(path)
            return
        with environment("create", path.parent):
            durable.make_folder(path.parent, self.root)
        durable.replace_file(path, line, root=self.root)


def _line(version: str | None, number: int) -> bytes | None:
    return None if version is None else f"{version} {number}\n".encode()


def _read(log: Log, number: int) -> AliasEntry | None:
    """Return a move; None if it is missing, or writing it was interrupted: then the number has no move."""
    data, path = log.read(number), log.path(number)
    if not data:
        return None
    move = read_move(data, number)
    if move is None:
        raise FormatError(
            f"{path}: expected an object with from and to (versions or null) and time, got {data[:100]!r}. "
            "`compatkit verify --repair` restores it if the adjacent moves or the pointer determine it.",
            subject=path,
        )
    return move


def read_move(data: bytes, number: int) -> AliasEntry | None:
    """Return the move in the content of a log entry; None if it is damaged.

    Args:
        data: Content of the file.
        number: Number of the move, from 1.
    """
    try:
        value: Any = loads(data, what="move")
    except FormatError:
        return None
    if not isinstance(value, dict) or not {"from", "to", "time"} <= value.keys():
        return None
    versions = value["from"], value["to"]
    if not isinstance(value["time"], str) or not all(
        version is None or _is_version(version) for version in versions
    ):
        return None
    return AliasEntry(number, *versions, value["time"], *author_in(value))


def read_pointer(data: bytes) -> tuple[str, int] | None:
    """Return version and move number of a pointer, number 0 if it has none; None if it is damaged."""
    words = data.decode("ascii", "replace").split()
    if not 1 <= len(words) <= 2 or not _is_version(words[0]):
        return None
    if len(words) == 2 and not NUMBER.fullmatch(words[1]):
        return None
    return words[0], int(words[1]) if len(words) == 2 else 0


def _is_version(text: Any) -> bool:
    try:
        return bool(Version.parse(text))
    except InvalidName:
        return False


def _is_alias(name: str) -> bool:
    try:
        return bool(check_alias(name))
    except InvalidName:
        return False
