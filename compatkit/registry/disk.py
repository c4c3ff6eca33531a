"""Every step that changes the disk, one function each: what a crash or a full disk can interrupt.

``step`` is called before each of them and does nothing; tests replace it to fail or to die at any step. Nothing is
read or written through a folder below the root that is a symbolic link. What is made has the rights of the root
folder, whatever the umask of the process: a registry that a group shares stays shared.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from compatkit.errors import IntegrityError
from compatkit.registry.os_errors import environment

CHUNK = 2**23
"""Bytes a write call, so that a crash can fall between two."""
TRIES = 100
"""How often a temporary file is made again that somebody cleaned away."""
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}
_NO_RIGHTS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
Buffer = bytes | bytearray | memoryview


def step(operation: str, path: Path) -> None:
    """Do nothing; called before each change of the disk with its name and path."""


def check_folders(folder: Path, root: Path) -> None:
    """Refuse ``folder`` where it, or a folder between it and ``root``, is a symbolic link or no folder.

    What does not exist passes.

    Raises:
        IntegrityError: Names the link; what it points at was not touched.
    """
    inside, whole = str(root), str(folder)
    at = len(inside)
    while at < len(whole):
        at = whole.find(os.sep, at + 1)
        at = len(whole) if at < 0 else at
        inside = whole[:at]
        try:
            mode = os.lstat(inside).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            raise IntegrityError(
                f"{inside} is {'a symbolic link' if stat.S_ISLNK(mode) else 'no folder'}, where the registry {root} "
                "keeps a folder of its own; it was not followed. Remove it, and restore the folder from a copy of the "
                "registry.",
                subject=Path(inside),
            )


def make_folder(path: Path, root: Path) -> None:
    """Make ``path`` and the folders between it and ``root``; ``sync_up`` makes them durable.

    Raises:
        IntegrityError: One of them is a symbolic link.
    """
    check_folders(path, root)
    missing: list[Path] = []
    while path != root and not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        step("mkdir", folder)
        folder.mkdir(exist_ok=True)
        _give_rights(folder, _rights(root, 0o2777))


def _rights(root: Path, mask: int) -> int:
    return stat.S_IMODE(os.stat(root).st_mode) & mask


def _give_rights(target: Path | int, mode: int) -> None:
    """Undo what the umask took; a file system without rights is left as it is."""
    if os.name == "nt" or stat.S_IMODE(os.stat(target).st_mode) == mode:
        return
    try:
        os.chmod(target, mode)
    except OSError as error:
        if error.errno not in _NO_RIGHTS:
            raise


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
    path: Path,
    pieces: Iterable[Buffer],
    *,
    root: Path | None = None,
    meanwhile: Sequence[Callable[[], Any]] = (),
) -> list[Any]:
    """Write a new file and make it durable; remove it again if that fails.

    Args:
        path: Must not exist.
        pieces: The bytes, in one piece or in several.
        root: Of the registry, whose readers may read the file, and nobody write it; None gives the rights that the
            umask leaves of 0644.
        meanwhile: Work on the written file, such as hashing, that threads do while the disk works.

    Returns:
        What each of ``meanwhile`` returned.
    """
    step("create", path)
    mode = 0o644 if root is None else _rights(root, 0o444)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, mode)
    try:
        try:
            if root is not None:
                _give_rights(descriptor, mode)
            for piece in pieces:
                _fill(descriptor, piece, path)
            if not meanwhile:
                _sync(descriptor, path)
                return []
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(len(meanwhile)) as beside:
                results = [beside.submit(one) for one in meanwhile]
                _sync(descriptor, path)
                return [one.result() for one in results]
        finally:
            os.close(descriptor)
    except BaseException:
        discard(path)
        raise


def _fill(descriptor: int, data: Buffer, path: Path) -> None:
    view = memoryview(data)
    while view:
        step("write", path)
        view = view[os.write(descriptor, view[:CHUNK]) :]


def _sync(descriptor: int, path: Path) -> None:
    step("sync", path)
    os.fsync(descriptor)


def read(path: Path, root: Path, *, limit: int | None = None) -> tuple[bytes, os.stat_result] | None:
    """Read a regular file without following a link, and without waiting at a pipe.

    Args:
        path: Where.
        root: Of the registry; no folder below it may be a link.
        limit: Read at most so many bytes.

    Returns:
        The bytes and the state of the file before they were read; None if there is no such file.

    Raises:
        IntegrityError: A link, folder, pipe or device stands in its place.
        EnvironmentFailure: No right to read, device failed.
    """
    with environment("read", path):
        descriptor = open_plain(path, root)
        if descriptor is None:
            return None
        try:
            state = os.fstat(descriptor)
            with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
                return file.read(-1 if limit is None else limit) or b"", state
        finally:
            os.close(descriptor)


def open_plain(path: Path, root: Path) -> int | None:
    """Return a descriptor of a regular file, to read; None if there is no such file.

    Raises:
        IntegrityError: A link, folder, pipe or device stands in its place.
        OSError: It cannot be opened.
    """
    check_folders(path.parent, root)
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NO_FOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
            raise _no_file(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file(path)
    return descriptor


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


def touch(path: Path) -> None:
    """Set a file's modification time to now."""
    step("touch", path)
    os.utime(path, follow_symlinks=False)


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


@contextmanager
def announced(root: Path) -> Iterator[None]:
    """Keep an empty draft in ``tmp`` meanwhile, so that the index sees what changes without a draft of its own.

    Where that is not possible, nothing is said: a full disk can still be repaired.
    """
    draft = temporary(root / "tmp")
    with suppress(OSError, IntegrityError):
        check_folders(draft.parent, root)
        write(draft, [], root=root)
    try:
        yield
    finally:
        discard(draft)


def create_once(path: Path, data: bytes, root: Path, ready: Callable[[], object] | None = None) -> bool:
    """Create a small file with its whole content in one step; False if the name is taken.

    Through ``link(2)`` of a finished file; where there are no hard links, through an exclusive create. The finished
    file in ``tmp`` tells whoever collects unused blobs what will be referred to: ``ready`` is called while it is there.

    Args:
        path: The name; folders are made as needed.
        data: The content.
        root: Of the registry; the temporary file is made in its ``tmp``.
        ready: Sees to it that what the content refers to is there.

    Raises:
        FileNotFoundError: Temporary files vanish as fast as they are made.
    """
    for _ in range(TRIES):
        make_folder(root / "tmp", root)
        draft = temporary(root / "tmp")
        try:
            write(draft, [data], root=root)
            if ready is not None:
                ready()
            make_folder(path.parent, root)
            if not link(draft, path):
                write(path, [data], root=root)
                try:
                    if ready is not None:
                        ready()
                except BaseException:
                    discard(path)
                    raise
            sync_up(path.parent, root)
        except FileExistsError:
            return False
        except FileNotFoundError:
            continue  # the temporary file, or a folder that was still empty, was cleaned away
        finally:
            discard(draft)
        return True
    raise FileNotFoundError(errno.ENOENT, f"temporary files in {root / 'tmp'} vanish; give up", str(path))


def replace_file(path: Path, data: Buffer | Sequence[Buffer], *, root: Path | None = None) -> None:
    """Put ``data`` at ``path`` atomically and durably: readers see the old content or the new, never a part.

    Args:
        path: Any file; its folder exists.
        data: The new content, in one piece or in several.
        root: Of the registry that the file is in; the temporary file is made in its ``tmp``. None takes the file's own
            folder.

    Raises:
        EnvironmentFailure: Disk full, no right to write, device failed; the old file is untouched.
    """
    pieces = data if isinstance(data, (list, tuple)) else [cast(Buffer, data)]
    with environment("write", path):
        for _ in range(TRIES):
            if root is None:
                draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}.part")
            else:
                make_folder(root / "tmp", root)
                draft = temporary(root / "tmp")
            write(draft, pieces, root=root)
            try:
                if root is not None:
                    make_folder(path.parent, root)
                move(draft, path)
                sync_folder(path.parent)
            except FileNotFoundError:
                if root is None:
                    raise
                continue  # the temporary file, or a folder that was still empty, was cleaned away
            finally:
                discard(draft)
            return
        raise FileNotFoundError(errno.ENOENT, "temporary files vanish; give up", str(path))
