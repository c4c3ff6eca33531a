"""Kinds of mounted file systems: files are mapped into memory on local disks only.

A mapped file that becomes unreadable kills the process (SIGBUS), which no program can turn into an error: on a local
disk only if the disk breaks, on a network file system whenever a server restarts.
"""

from __future__ import annotations

import os
from functools import lru_cache

LOCAL = frozenset("ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs tmpfs overlay apfs jfs reiserfs".split())
SHARED = frozenset("nfs nfs4 lustre gpfs ceph beegfs wekafs".split())
"""Network file systems with true modification times of folders; mounted object stores invent them."""


def is_local(device: int) -> bool:
    """Return whether a device (``st_dev``) is known to be a local disk; False if its kind is unknown."""
    return _is_kind(device, LOCAL)


def times_folders(device: int) -> bool:
    """Return whether folders of a device are known to change their time with their entries; False if unknown."""
    return _is_kind(device, LOCAL | SHARED)


def _is_kind(device: int, kinds: frozenset[str]) -> bool:
    return kind(device) in kinds


@lru_cache(maxsize=64)
def kind(device: int) -> str | None:
    """Return the kind of file system of a device, such as ``ext4``; None if it is unknown, or mounted as several."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.split(" ", 3)[2] == wanted]
    except OSError:
        return None
    found = {line.partition(" - ")[2].split(" ", 1)[0] for line in lines}
    return found.pop() if len(found) == 1 else None
