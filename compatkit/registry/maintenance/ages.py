"""Ages of files: find abandoned drafts, and blobs that were in ``trash`` for the grace time."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import attrs

from compatkit.registry import disk as durable
from compatkit.registry.blobs import GRACE_SECONDS
from compatkit.registry.layout_scan import Aside, scan

_DRAFT = re.compile(r"([1-9][0-9]{0,9})-[0-9a-f]{16}")
_TRASHED = re.compile(r"(?:([0-9a-f]{64})|version-[0-9.]+)-[1-9][0-9]{0,9}-[0-9a-f]{16}")
"""File name of a blob in ``trash``, or of the file of a dropped version."""


@attrs.frozen
class UnneededFile:
    """Draft, unreferenced blob or damaged file.

    Attributes:
        path: Path relative to the registry.
        digest: ``sha256:...`` if it is a blob.
        bytes: Size in bytes.
        age: Seconds since it was written or moved to ``trash``; negative if its time is in the future.
    """

    path: str
    digest: str | None
    bytes: int
    age: float


@attrs.frozen
class Ages:
    """Computes ages of files, and which files are older than the grace time.

    Attributes:
        now: Current time in seconds since 1970.
        grace: Grace time in seconds; younger files stay.
    """

    now: float
    grace: float

    def of(self, state: os.stat_result) -> float:
        """Return the seconds since a file was last written or touched."""
        return self.now - state.st_mtime

    def is_old(self, state: os.stat_result) -> bool:
        """Return whether a file is older than the grace. A time in the future, from another clock, counts as young."""
        return self.of(state) >= max(self.grace, 0)

    def in_trash(self, state: os.stat_result) -> float:
        """Return the seconds since a file was moved to ``trash``, by mtime or ctime.

        Moving touches the file; another user's cannot be touched, but its ctime changes.
        """
        foreign = hasattr(os, "geteuid") and state.st_uid != os.geteuid()
        return self.now - (max(state.st_mtime, state.st_ctime) if foreign else state.st_mtime)

    def is_expired(self, state: os.stat_result) -> bool:
        """Return whether a file has been in ``trash`` for the grace time."""
        return self.in_trash(state) >= max(self.grace, 0)

    def is_abandoned(self, name: str, state: os.stat_result) -> bool:
        """Return whether a draft in ``tmp`` is abandoned.

        A draft of a process that runs on this machine is kept for 24 h whatever the grace.
        """
        match = _DRAFT.fullmatch(name)
        if match is None or not self.is_old(state):
            return False
        return self.of(state) >= GRACE_SECONDS or not _is_running(int(match[1]))


def clock(root: Path) -> float:
    """Return the time on the clock of the registry's file system, or on this machine's if that is behind.

    Ages are relative to times written by the file system; if this machine's clock were ahead, everything would look
    old.
    """
    folder = root / "tmp"
    durable.make_folder(folder, root)
    durable.touch(folder)  # needs no space, so it works on a full disk
    return min(time.time(), os.lstat(folder).st_mtime)


def list_unneeded(
    root: Path, ages: Ages
) -> tuple[list[UnneededFile], list[UnneededFile], list[UnneededFile]]:
    """Return the abandoned drafts, the blobs and dropped versions in ``trash``, and the files in ``quarantine``."""
    drafts: list[UnneededFile] = []
    trash: list[UnneededFile] = []
    quarantine: list[UnneededFile] = []
    for entry in scan(root, "tmp", "trash", "quarantine"):
        if not isinstance(entry, Aside):
            durable.check_folders(root / entry.path, root)
            continue
        state = durable.file_state(root / entry.path)
        if state is None:
            continue
        if entry.folder == "quarantine":
            quarantine.append(UnneededFile(entry.path, None, state.st_size, ages.of(state)))
        elif entry.folder == "trash" and (match := _TRASHED.fullmatch(entry.file)):
            digest = None if match[1] is None else f"sha256:{match[1]}"
            trash.append(UnneededFile(entry.path, digest, state.st_size, ages.in_trash(state)))
        elif entry.folder == "tmp" and ages.is_abandoned(entry.file, state):
            drafts.append(UnneededFile(entry.path, None, state.st_size, ages.of(state)))
    return drafts, trash, quarantine


def _is_running(process: int) -> bool:
    if os.name == "nt":
        return True  # on Windows, sending a signal would kill it
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
