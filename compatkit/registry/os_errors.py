"""Raise errors of the operating system as EnvironmentFailure, with the action, the path and a remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compatkit.errors import EnvironmentFailure

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free space and run the same command again",
    errno.EDQUOT: "the disk quota is used up; free space and run the same command again",
    errno.EFBIG: "the file is larger than this system or a limit (ulimit -f) allows",
    errno.EROFS: "the file system is mounted read-only; use another folder, or mount it writable",
    errno.EACCES: "check owner and mode of the folder, or use another",
    errno.EPERM: "check owner, mode and attributes of the folder, or use another",
    errno.EMFILE: "this process has too many files open; raise the limit (ulimit -n) or use fewer workers",
    errno.ENFILE: "the system has too many files open; try again later",
    errno.EIO: "the device failed to read or write; check the disk before you go on",
    errno.ESTALE: "the network file system lost the file; try again",
    errno.EEXIST: "there is a file in place of a folder; name another folder",
    errno.ENOTDIR: "a part of the path is a file in place of a folder; name another folder",
    errno.ENAMETOOLONG: "the path is too long for this file system; use a shorter root folder",
}


@contextmanager
def environment(action: str, path: Path | str) -> Iterator[None]:
    """Turn an OSError into an EnvironmentFailure that names action, path, cause and remedy.

    Args:
        action: Verb for the message: ``"read"``, or a change such as ``"write"``.
        path: Path of the file or folder.

    Raises:
        EnvironmentFailure: In place of any OSError.
    """
    try:
        yield
    except OSError as error:
        raise failure(action, path, error) from error


def failure(action: str, path: Path | str, error: OSError) -> EnvironmentFailure:
    """Return the error of ``environment``, for code that is called so often that its context manager would show.

    Args:
        action: As for ``environment``.
        path: As for ``environment``.
        error: Error of the operating system.
    """
    name = errno.errorcode.get(error.errno or 0, "OSError")
    remedy = _REMEDIES.get(error.errno or 0, "check the file system and try again")
    unchanged = "" if action == "read" else " No partial files were left behind."
    return EnvironmentFailure(
        f"could not {action} {path}: {error.strerror or error} ({name}); {remedy}.{unchanged}",
        subject=Path(path),
    )
