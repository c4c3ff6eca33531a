"""Logs of the moves of aliases: one that goes on from the other is followed, else both stay.

Nothing that was decided on either side is ever undone. Policies do not move: they are what one registry promises.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure
from compatkit.registry.aliases import Aliases
from compatkit.registry.copy.places import Note, Source, Target
from compatkit.registry.copy.report import Moved, Refusal
from compatkit.registry.names import Version
from compatkit.registry.store import Store

_NUMBER = re.compile("[1-9][0-9]{0,8}")


@attrs.frozen
class Log:
    """A folder of numbered files on both sides.

    Attributes:
        folder: Relative to the registry.
        source: Content by number.
        target: The same, there.
    """

    folder: str
    source: dict[int, bytes]
    target: dict[int, bytes]

    @property
    def whole(self) -> bool:
        """Whether no number of the source is missing."""
        return sorted(self.source) == list(range(1, len(self.source) + 1))

    @property
    def agrees(self) -> bool:
        """Whether both sides have the same content wherever both have some."""
        return all(self.source[one] == self.target[one] for one in self.source.keys() & self.target.keys())

    @property
    def new(self) -> list[int]:
        """Numbers that the target does not have, rising; none where it is ahead."""
        return sorted(one for one in self.source if one not in self.target)

    @property
    def follows(self) -> bool:
        """Whether the source's log goes on where that of the target ends."""
        return self.whole and self.agrees and all(one > max(self.target, default=0) for one in self.new)


def read(source: Source, target: Target, folders: Iterable[str]) -> Iterator[Log]:
    """Yield the logs in folders ``<folder>/<n>``, of those that the source has."""
    wanted = sorted(set(folders))
    sides = [_numbered(side, wanted) for side in (source, target)]
    for folder in wanted:
        if folder in sides[0]:
            yield Log(folder, sides[0][folder], sides[1].get(folder, {}))


def _numbered(side: Source, folders: list[str]) -> dict[str, dict[int, bytes]]:
    paths = [one for one in side.notes(folders) if _NUMBER.fullmatch(one.rpartition("/")[2])]
    found: dict[str, dict[int, bytes]] = defaultdict(dict)
    for path, content in side.read_notes(paths):
        folder, _, number = path.rpartition("/")
        if content and folder in folders:  # an empty file is one that was cut off: nothing changed
            found[folder][int(number)] = content
    return found


def follow(target: Target, log: Log) -> bool:
    """Add to the target's log what the source's goes on with; False where somebody else was faster."""
    for number in log.new:
        if target.create([Note(f"{log.folder}/{number}", log.source[number])]):
            return False
    return True


def alias_folders(source: Source, names: Iterable[str]) -> list[str]:
    """Return the folders of the logs of all aliases of some names."""
    folders = {name: f"refs/{name}/@log" for name in names}
    return sorted({path.rpartition("/")[0] for path in source.notes(list(folders.values()))})


def move_alias(source: Source, target: Target, log: Log) -> str | None:
    """Let an alias follow; return why it stays as it is, None if it moved or nothing was new.

    Raises:
        FormatError: The source's log is damaged.
    """
    name, alias = log.folder.removeprefix("refs/").rsplit("/@log/", 1)
    moves = Aliases(source.references.folder(name), source.references.root).log(alias)
    last = moves[-1].after if moves else None
    if log.agrees and not log.new and len(log.target) > len(log.source):
        return None  # there it has moved on
    if not log.follows:
        there = Aliases(target.references.folder(name), target.references.root).get(alias)
        return f"{name}:{alias} is {last or 'removed'} in {source.where} and {there or 'removed'} in {target.where}"
    if log.new and last is not None and target.digest_now(name, Version.parse(last)) is None:
        return f"{name}:{alias} is {last} in {source.where}, which is not in {target.where}"
    if not follow(target, log):
        return f"{name}:{alias} was moved in {target.where} at this moment"
    _point(target, f"refs/{name}/@aliases/{alias}", last, max(log.source, default=0))
    return None


def _point(target: Target, path: str, version: str | None, number: int) -> None:
    """Let the pointer say what the log says; also where an earlier call was cut off between both."""
    line = None if version is None else f"{version} {number}\n".encode()
    if target.note(path) == line:
        return
    if line is None:
        target.remove(path)
    else:
        target.replace(path, line)


def follow_all(source: Source, target: Target, names: list[str], done: Moved) -> None:
    """Let the aliases of some names follow those of the source.

    Raises:
        EnvironmentFailure: They cannot be read or written.
    """
    for log in read(source, target, alias_folders(source, names)):
        what = log.folder.removeprefix("refs/").replace("/@log/", ":")
        try:
            with source.speaking(), target.speaking():
                apart = move_alias(source, target, log)
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            done.refused.append(Refusal(what, error))
            continue
        if apart is not None:
            done.apart.append(apart)
        elif log.new:
            done.aliases.append(what)


def set_all(source: Source, store: Store, names: list[str]) -> list[str]:
    """Set the aliases of some names as they are in the source, wherever they point here; return those that moved."""
    moved: list[str] = []
    for name in names:
        alive, here = {str(version) for version in store.versions(name)}, store.aliases(name)
        for alias, version in Aliases(source.references.folder(name), source.references.root).all().items():
            if version in alive and here.get(alias) != version:
                store.set_alias(name, alias, version)
                moved.append(f"{name}:{alias}")
    return moved
