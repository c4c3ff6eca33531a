"""Detect changes of files and folders without reading them."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

SETTLED_NS = 2 * 10**9
"""What changed less than 2 s before it was looked at may change again without showing it: clocks can be coarse."""
ABANDONED_NS = 3600 * 10**9
"""A draft that is an hour old is nobody's any more: between its last byte and the link are milliseconds."""


def pulse(root: Path) -> int | None:
    """Return a number that every write by a program changes; None where the next write might not change it.

    Writers put drafts into ``tmp``, so its times change. The state of an abandoned draft is included: if its writer
    was only suspended and links it after all, that changes.
    """
    now = time.time_ns()
    try:
        states = [os.lstat(f"{root}/tmp"), os.lstat(f"{root}/refs")]
        if not all(stat.S_ISDIR(state.st_mode) for state in states):
            return None
        with os.scandir(f"{root}/tmp") as entries:
            drafts = [
                state.stat(follow_symlinks=False) for state in sorted(entries, key=lambda state: state.name)
            ]
    except OSError:  # no right to look: the state is unknown
        return None
    if not all(settled(state, now) for state in states) or any(
        _age(state, now) < ABANDONED_NS for state in drafts
    ):
        return None
    return hash(tuple(map(stamp, (*states, *drafts))))


def versions_state(folder: str, now: int) -> int | None:
    """Return a number that changes with every version or tombstone of a name; None if a later change might not show.

    Args:
        folder: Of the name.
        now: Time in ns, from before its files are read.
    """
    stamps: list[int] = []
    for kind in ("@versions", "@tombstones"):
        try:
            state = os.lstat(f"{folder}/{kind}")
        except OSError:
            stamps.append(0)
            continue
        if not settled(state, now):
            return None
        stamps.append(stamp(state))
    return hash(tuple(stamps))


def stamp(state: os.stat_result) -> int:
    """Return a number that differs between two states of a file or folder.

    It is the hash of a tuple of integers, which is not seeded: equal in every process of one Python build; another
    build reads everything once more. Inodes and times may exceed SQLite's integers, their hash does not.
    """
    return hash((state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))


def settled(state: os.stat_result, now: int) -> bool:
    """Return whether the last change is old enough that a further one would show in the times; False for the future.

    Args:
        state: Of a file or folder.
        now: Time in ns, from before the state was taken.
    """
    return _age(state, now) >= SETTLED_NS


def _age(state: os.stat_result, now: int) -> int:
    return now - max(state.st_mtime_ns, state.st_ctime_ns)
