"""What stands below ``refs``, found with as few looks at the disk as possible; no link is ever followed."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import attrs

from compatkit.errors import InvalidName
from compatkit.registry.names import Version, check_segment

SETTLED_NS = 2 * 10**9
"""What changed less than 2 s before it was looked at may change again without showing it: clocks can be coarse."""
DEAD_NS = 3600 * 10**9
"""A draft that is an hour old is nobody's any more: between its last byte and the link are milliseconds."""
DEPTH = 3
KEPT = ("@versions", "@tombstones")
LINE_BYTES = 72
Number = tuple[int, int, int]

_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@attrs.frozen
class Seen:
    """A folder below ``refs`` as it was when its entries were read.

    Attributes:
        name: Path below ``refs`` with ``/``; ``""`` for ``refs`` itself.
        state: See ``state``; taken before the entries were read.
        settled: Whether a later change is sure to change ``state``.
        children: Last parts of the names of the folders in it that may be, or lead to, components.
        versions: Whether it holds versions.
        tombstones: Whether it holds tombstones.
        aliased: Whether it holds aliases, or held some.
    """

    name: str
    state: int
    settled: bool
    children: frozenset[str]
    versions: bool
    tombstones: bool
    aliased: bool


@attrs.frozen
class Watch:
    """``<root>/tmp`` at one moment: every writer makes a draft in it before, and removes it after, what it does.

    Attributes:
        stamp: Of the folder.
        quiet: No writer was at work, and a change after this moment is sure to change ``stamp``.
    """

    stamp: int
    quiet: bool

    @classmethod
    def take(cls, root: Path) -> Watch:
        """Look at ``<root>/tmp``."""
        folder, now = f"{root}{os.sep}tmp", time.time_ns()
        try:
            state = os.lstat(folder)
            if not stat.S_ISDIR(state.st_mode):
                return cls(0, False)
            with os.scandir(folder) as entries:
                states = [one.stat(follow_symlinks=False) for one in entries]
        except FileNotFoundError:
            return cls(0, not os.path.lexists(folder))
        except OSError:  # whoever may not look cannot know
            return cls(0, False)
        alive = any(now - max(one.st_mtime_ns, one.st_ctime_ns) < DEAD_NS for one in states)
        return cls(stamp(state), not alive and settled(state, now))

    def holds(self, root: Path) -> bool:
        """Tell whether certainly no writer came by since."""
        if not self.quiet:
            return False
        try:
            return stamp(os.lstat(f"{root}{os.sep}tmp")) == self.stamp
        except OSError:
            return self.stamp == 0


def stamp(state: os.stat_result) -> int:
    """Return a number that tells the states of a file or folder apart.

    The hash of a tuple of integers, which is not seeded: the same in every process of one kind of Python; another
    kind reads everything once more. Inodes and times do not fit into SQLite's integers one by one.
    """
    return hash((state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))


def settled(state: os.stat_result, now: int) -> bool:
    """Tell whether a file or folder changed long enough before ``now`` for its times to tell; not if later."""
    return now - max(state.st_mtime_ns, state.st_ctime_ns) >= SETTLED_NS


def state(folder: str, versions: bool, tombstones: bool) -> int | None:
    """Return a number that changes whenever an entry of a component's folders does; None if one is gone.

    Files that are rewritten in place change no folder.

    Args:
        folder: Of the component.
        versions: Whether it had versions when it was last read.
        tombstones: The same of tombstones.
    """
    try:
        own = stamp(os.lstat(folder))
        if not versions and not tombstones:
            return hash((own, 0, 0))
        inside = stamp(os.lstat(f"{folder}/@versions")) if versions else 0
        return hash((own, inside, stamp(os.lstat(f"{folder}/@tombstones")) if tombstones else 0))
    except OSError:
        return None


def look(refs: str, name: str, now: int) -> Seen | None:
    """Read the entries of a folder; None if it is none (any more).

    Args:
        refs: Path of ``<root>/refs``.
        name: Path below it.
        now: Time in ns, taken before the first look.

    Raises:
        OSError: It cannot be read.
    """
    folder = f"{refs}/{name}" if name else refs
    while True:
        try:
            own = os.lstat(folder)
            if not stat.S_ISDIR(own.st_mode):
                return None
            with os.scandir(folder) as entries:
                inside = {one.name for one in entries if one.is_dir(follow_symlinks=False)}
        except (FileNotFoundError, NotADirectoryError):
            return None
        kept = [kind for kind in KEPT if name and kind in inside]
        try:
            states = {kind: os.lstat(f"{folder}/{kind}") for kind in kept}
            break
        except FileNotFoundError:
            continue  # it was there a moment ago: look again
    within = [stamp(states[kind]) if kind in states else 0 for kind in KEPT]
    deep = name.count("/") + 1 >= DEPTH
    return Seen(
        name,
        hash((stamp(own), *within)),
        all(settled(one, now) for one in (own, *states.values())),
        frozenset() if deep else frozenset(one for one in inside if _is_segment(one)),
        KEPT[0] in states,
        KEPT[1] in states,
        not inside.isdisjoint(("@aliases", "@log")),
    )


def version_files(folder: str) -> Iterator[tuple[Number, os.DirEntry[str]]]:
    """Yield what is named by a version in ``@versions`` or ``@tombstones``; nothing where that is gone.

    Raises:
        OSError: It cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                number = parsed(entry.name)
                if number is not None:
                    yield number, entry
    except (FileNotFoundError, NotADirectoryError):
        return


@lru_cache(maxsize=2**14)  # most names have the same few
def parsed(text: str) -> Number | None:
    """Return the three numbers of a version, None if the text is none."""
    try:
        return attrs.astuple(Version.parse(text))
    except InvalidName:
        return None


def read_plain(path: str, limit: int) -> tuple[os.stat_result, bytes]:
    """Read the beginning of a regular file in one piece; the state is taken before.

    Raises:
        OSError: There is none, or something else stands there.
    """
    descriptor = os.open(path, _OPEN)
    try:
        known = os.fstat(descriptor)
        if not stat.S_ISREG(known.st_mode):
            raise OSError(f"{path} is no regular file")
        return known, os.read(descriptor, min(limit, known.st_size))
    finally:
        os.close(descriptor)


def _is_segment(text: str) -> bool:
    try:
        return bool(check_segment(text))
    except InvalidName:
        return False
