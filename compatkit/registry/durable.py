"""Every step that changes the disk, one function each: what a crash or a full disk can interrupt.

``step`` is called before each of them and does nothing; tests replace it to fail or to die at any step.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from compatkit.errors import IntegrityError
from compatkit.registry.surroundings import environment

CHUNK = 2**23
"""Bytes a write call, so that a crash can fall between two."""
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
Result = TypeVar("Result")


def step(operation: str, path: Path) -> None:
    """Do nothing; called before each change of the disk with its name and path."""


def make_folder(path: Path, root: Path) -> None:
    """Make ``path`` and the folders between it and ``root``; ``sync_up`` makes them durable."""
    missing: list[Path] = []
    while path != root and not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        step("mkdir", folder)
        folder.mkdir(exist_ok=True)


def sync_up(path: Path, root: Path) -> None:
    """Make the entries of ``path`` and of every folder above it, up to ``root``, durable.

    Folders that another process made and did not sync yet are covered; those without news cost nothing.
    """
    while True:
        sync_folder(path)
        if path in (root, path.parent):
            return
        path = path.parent


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable; a system that cannot do so is believed."""
    step("sync-folder", path)
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def write(
    path: Path, data: bytes, *, mode: int = 0o444, meanwhile: Callable[[], Result] | None = None
) -> Result | None:
    """Write a new file and make it durable; remove it again if that fails.

    The mode is given at creation, so that the umask is honoured without reading it: 0444 under umask 027 is
    0440, and the open descriptor may still write.

    Args:
        path: Must not exist.
        data: The bytes.
        mode: Rights before the umask.
        meanwhile: Work, such as hashing, that is done by a thread while the disk works.

    Returns:
        What ``meanwhile`` returned.
    """
    step("create", path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, mode)
    try:
        try:
            if meanwhile is None:
                _fill(descriptor, data, path)
                return None
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(1) as beside:
                result = beside.submit(meanwhile)
                _fill(descriptor, data, path)
                return result.result()
        finally:
            os.close(descriptor)
    except BaseException:
        discard(path)
        raise


def _fill(descriptor: int, data: bytes, path: Path) -> None:
    view = memoryview(data)
    while view:
        step("write", path)
        view = view[os.write(descriptor, view[:CHUNK]) :]
    step("sync", path)
    os.fsync(descriptor)


def read(path: Path, *, limit: int | None = None) -> tuple[bytes, os.stat_result] | None:
    """Read a regular file without following a link at its end, and without waiting at a pipe.

    Args:
        path: Where.
        limit: Read at most so many bytes.

    Returns:
        The bytes and the state of the file before they were read; None if there is no such file.

    Raises:
        IntegrityError: A link, folder, pipe or device stands in its place.
        EnvironmentFailure: No right to read, device failed.
    """
    with environment("read", path):
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NO_FOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
                raise _no_file(path) from None
            raise
        try:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise _no_file(path)
            with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
                return file.read(-1 if limit is None else limit) or b"", state
        finally:
            os.close(descriptor)


def _no_file(path: Path) -> IntegrityError:
    return IntegrityError(
        f"{path} is a link, folder, pipe or device where the registry keeps a plain file; it was not "
        "followed. Remove it, and restore the file from a copy of the registry.",
        subject=path,
    )


def link(source: Path, target: Path) -> bool:
    """Give ``source`` the second name ``target``; False where this system has no hard links.

    Raises:
        FileExistsError: The target exists; it is untouched.
    """
    step("link", target)
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    except NotImplementedError:
        return False
    return True


def move(source: Path, target: Path) -> None:
    """Rename atomically; a file that has the target's name is replaced."""
    step("rename", target)
    os.replace(source, target)


def discard(path: Path) -> None:
    """Remove a temporary file if that is possible; never fails: left-over bytes are referenced by nothing."""
    with suppress(OSError):
        step("unlink", path)
        os.unlink(path)


def temporary(folder: Path) -> Path:
    """Return a new path in ``folder`` that no other process chooses."""
    return folder / f"{os.getpid()}-{os.urandom(8).hex()}"


def create_once(path: Path, data: bytes, root: Path) -> bool:
    """Create a small file with its whole content in one step; False if the name is taken.

    Through ``link(2)`` of a finished file; where there are no hard links, through an exclusive create.

    Args:
        path: The name; folders are made as needed.
        data: The content.
        root: Of the registry; the temporary file is made in its ``tmp``.
    """
    make_folder(root / "tmp", root)
    make_folder(path.parent, root)
    draft = temporary(root / "tmp")
    write(draft, data)
    try:
        try:
            if not link(draft, path):
                write(path, data)
        except FileExistsError:
            return False
        sync_up(path.parent, root)
        return True
    finally:
        discard(draft)


def replace_file(path: Path, data: bytes, *, scratch: Path | None = None) -> None:
    """Put ``data`` at ``path`` atomically and durably: readers see the old content or the new, never a part.

    Args:
        path: Any file; its folder exists.
        data: The new content.
        scratch: Folder for the temporary file on the same file system; None takes the file's own folder.

    Raises:
        EnvironmentFailure: Disk full, no right to write, device failed; the old file is untouched.
    """
    draft = temporary(scratch) if scratch else path.with_name(f".{path.name}.{os.urandom(6).hex()}.part")
    with environment("write", path):
        write(draft, data, mode=0o644)
        try:
            move(draft, path)
        except BaseException:
            discard(draft)
            raise
        sync_folder(path.parent)
