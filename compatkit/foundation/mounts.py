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


@lru_cache(maxsize=64)
def is_local(device: int) -> bool:
    """Return whether a device (``st_dev``) is known to be a local disk; False if the system does not say."""
    import os

    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            kinds = [
                line.partition(" - ")[2].split(" ", 1)[0] for line in file if line.split(" ", 3)[2] == wanted
            ]
    except OSError:
        return False
    return bool(kinds) and LOCAL.issuperset(kinds)
