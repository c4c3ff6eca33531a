"""Detect changes of files and folders without reading them."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

SETTLED_NS = 2 * 10**9
"""Age from which a further change shows in the times of a file, 2 s: clocks can be coarse."""
ABANDONED_NS = 3600 * 10**9
"""Age from which a draft counts as abandoned, an hour: it is normally linked within milliseconds."""


def pulse(root: Path) -> int | None:
    """Return a number that every write by a program changes; None if the next write might not change it.

    Writers create drafts in ``tmp``, which changes its times. The states of abandoned drafts are included, because a
    suspended writer may still link one.
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
    except OSError:  # no permission: the state is unknown
        return None
    if not all(settled(state, now) for state in states) or any(
        _age(state, now) < ABANDONED_NS for state in drafts
    ):
        return None
    return hash(tuple(map(stamp, (*states, *drafts))))


def versions_state(folder: str, now: int) -> int | None:
    """Return a number that changes with every version or tombstone of a name; None if a later change might not show.

    Args:
        folder: Folder of the name.
        now: Time in ns, taken before the files are read.
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

    The hash of a tuple of integers is not seeded, so it is equal in every process of one Python build; after a change
    of the build, all files are read again. Inodes and times may exceed SQLite's integers; their hash does not.
    """
    return hash((state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))


def settled(state: os.stat_result, now: int) -> bool:
    """Return whether the last change is so old that a further one would show in the times; False for future times.

    Args:
        state: State of a file or folder.
        now: Time in ns, taken before the state.
    """
    return _age(state, now) >= SETTLED_NS


def _age(state: os.stat_result, now: int) -> int:
    return now - max(state.st_mtime_ns, state.st_ctime_ns)
