"""What file systems can be relied on for: files are mapped into memory on local disks only.

A mapped file that becomes unreadable kills the process (SIGBUS), which no program can turn into an error: a local
disk does that only if it breaks, a network file system whenever a server restarts.
"""

from __future__ import annotations

from functools import lru_cache

LOCAL = frozenset(
    [
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "f2fs",
        "bcachefs",
        "tmpfs",
        "overlay",
        "apfs",
        "jfs",
        "reiserfs",
    ]
)


SHARED = frozenset(["nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs", "wekafs"])
"""File systems over a network whose folders have a time of their last change; those of object stores make one up."""


def is_local(device: int) -> bool:
    """Return whether a device (``st_dev``) is known to be a local disk; False if the system does not say."""
    return _all_of(device, LOCAL)


def times_folders(device: int) -> bool:
    """Return whether a folder of a device is known to change its time with its entries; False if nothing says so."""
    return _all_of(device, LOCAL | SHARED)


@lru_cache(maxsize=64)
def _all_of(device: int, known: frozenset[str]) -> bool:
    import os

    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            kinds = [
                line.partition(" - ")[2].split(" ", 1)[0] for line in file if line.split(" ", 3)[2] == wanted
            ]
    except OSError:
        return False
    return bool(kinds) and all(kind in known for kind in kinds)
