"""Folders whose entries are known to be durable, so that they need not be synced again.

A sync of an unchanged folder still flushes the disk, which takes milliseconds. Each change of a folder's entries gives
it a new time, so a folder that is as it was right before this process synced it needs no second sync. Times of a clock
that ticks coarsely tell this only of a folder that had not changed for a while, and only on file systems whose times
are true.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from compatkit.foundation.mounts import is_local

SETTLED_NS = 2 * 10**9
"""Time without a change before a sync, after which the folder's state is remembered, 2 s."""
LIMIT = 4096
"""Largest number of folders that are remembered."""
State = tuple[int, int, int, int]

_synced: dict[str, State] = {}


def state_before_sync(folder: Path) -> State | None:
    """Return the state of a folder, to be remembered once it is synced; None if a later change could keep it."""
    state = os.stat(folder)
    age = time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns)
    return _state(state) if age > SETTLED_NS and is_local(state.st_dev) else None


def remember(folder: Path, state: State | None) -> None:
    """Remember the state of a folder that was synced since; None forgets it."""
    if state is None or len(_synced) >= LIMIT:
        _synced.pop(str(folder), None)
    else:
        _synced[str(folder)] = state


def is_synced(folder: Path) -> bool:
    """Return whether a folder has not changed since this process synced it."""
    known = _synced.get(str(folder))
    return known is not None and known == _state(os.stat(folder))


def _state(state: os.stat_result) -> State:
    return state.st_dev, state.st_ino, state.st_mtime_ns, state.st_ctime_ns
