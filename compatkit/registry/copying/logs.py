"""Logs of numbered changes, of aliases and policies: one that goes on from the other is followed, else both stay.

Nothing that was decided on either side is ever undone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, FormatError
from compatkit.registry.aliases import Aliases
from compatkit.registry.canonical import loads
from compatkit.registry.copying.moved import Moved, Refusal
from compatkit.registry.copying.sources import Source
from compatkit.registry.copying.targets import Note, Target
from compatkit.registry.names import Version
from compatkit.registry.references import LIMIT

POLICIES = "policies"
_NUMBER = re.compile("[1-9][0-9]{0,8}")
_SCOPE = re.compile(r"[a-z0-9%][a-z0-9._%-]{0,254}")
_ESCAPES = {"%2f": "/", "%2a": "*", "%3f": "?"}


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


def policy_folders(source: Source, names: Iterable[str]) -> list[str]:
    """Return the folders of the policies that concern some names: ``policies/digits%2f%2a`` is of ``digits/*``."""
    known, found = set(names), set[str]()
    for path in source.notes([POLICIES]):
        parts = path.split("/")
        if (
            len(parts) == 3
            and _SCOPE.fullmatch(parts[1])
            and any(fnmatchcase(one, scope(parts[1])) for one in known)
        ):
            found.add(f"{POLICIES}/{parts[1]}")
    return sorted(found)


def scope(folder: str) -> str:
    """Return the glob over names that a folder of policies is named by."""
    for escaped, plain in _ESCAPES.items():
        folder = folder.replace(escaped, plain)
    return folder


def move_policy(source: Source, target: Target, log: Log) -> str | None:
    """Let a policy follow; return why it stays as it is, None if it changed or nothing was new.

    Raises:
        FormatError: The source's log is damaged.
    """
    told = scope(log.folder.rpartition("/")[2])
    for number in log.new:
        content, what = log.source[number], f"{source.where}/{log.folder}/{number}"
        if len(content) > LIMIT:
            raise FormatError(f"{what} has more than {LIMIT} bytes, too many for a policy.", subject=what)
        if not isinstance(loads(content, what=what), dict):
            raise FormatError(f"{what}: expected a policy, an object, got {content[:80]!r}.", subject=what)
    if not log.new and log.agrees:
        return None
    if not log.follows or not follow(target, log):
        return f"the policy of {told} was changed both in {source.where} and in {target.where}"
    return None


def follow_all(source: Source, target: Target, names: list[str], done: Moved) -> None:
    """Let the aliases of some names, and the policies that concern them, follow those of the source.

    Raises:
        EnvironmentFailure: They cannot be read or written.
    """
    for log in read(source, target, alias_folders(source, names)):
        what = log.folder.removeprefix("refs/").replace("/@log/", ":")
        _follow(source, target, log, move_alias, done.aliases, what, done)
    for log in read(source, target, policy_folders(source, names)):
        what = scope(log.folder.rpartition("/")[2])
        _follow(source, target, log, move_policy, done.policies, what, done)


def _follow(
    source: Source,
    target: Target,
    log: Log,
    move: Callable[[Source, Target, Log], str | None],
    moved: list[str],
    what: str,
    done: Moved,
) -> None:
    try:
        with source.speaking(), target.speaking():
            apart = move(source, target, log)
    except EnvironmentFailure:
        raise
    except CompatkitError as error:
        done.refused.append(Refusal(what, error))
        return
    if apart is not None:
        done.apart.append(apart)
    elif log.new:
        moved.append(what)
