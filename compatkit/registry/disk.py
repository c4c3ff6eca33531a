"""Durable file operations, one function for each step that a crash or a full disk can interrupt.

``step`` is called before each of them and does nothing; tests replace it to fail or to die at any step. Nothing is
read or written through a symbolic link in place of a folder below the root. New files have the rights of the root
folder, whatever the umask of the process: a registry that a group shares stays shared.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TypeVar, cast

from compatkit.errors import IntegrityError
from compatkit.registry.os_errors import environment, failure
from compatkit.registry.synced_folders import is_synced, remember, state_before_sync

CHUNK = 2**23
"""Bytes of one write call."""
JOINED = 2**18
"""Bytes up to which small pieces are joined to one write call."""
TRIES = 100
"""Attempts to create a temporary file that another process removes."""
READS = 20
"""Attempts to read a new file without a final line feed, 10 ms apart."""
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}
_NO_RIGHTS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_TO_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NO_FOLLOW
Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


def step(operation: str, path: Path) -> None:
    """Do nothing; called with name and path before each change of the disk, for tests to replace.

    Args:
        operation: Name such as ``"rename"``.
        path: Path that is changed.
    """


def check_folders(folder: Path | str, root: Path) -> None:
    """Raise if ``folder``, or a folder between it and ``root``, is a symbolic link or not a folder.

    Missing folders pass.

    Args:
        folder: Folder below ``root``.
        root: Root folder of the registry.

    Raises:
        IntegrityError: There is such a link or file; its target was not changed.
    """
    current, full = str(root), str(folder)
    end = len(current)
    while end < len(full):
        end = full.find(os.sep, end + 1)
        end = len(full) if end < 0 else end
        current = full[:end]
        try:
            mode = os.lstat(current).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            raise IntegrityError(
                f"{current} is {'a symbolic link' if stat.S_ISLNK(mode) else 'a file'}, where the registry {root} has "
                "a folder; it was not followed. Remove it, and restore the folder from a copy of the registry.",
                subject=Path(current),
            )


def file_state(path: Path | str) -> os.stat_result | None:
    """Return the state of a regular file; None if it is missing or of another kind."""
    try:
        state = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return state if stat.S_ISREG(state.st_mode) else None


def make_folder(path: Path, root: Path) -> None:
    """Create ``path`` and the folders between it and ``root``; ``sync_up`` makes them durable.

    Args:
        path: Folder below ``root``.
        root: Root folder of the registry; it exists.

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
    """Set a mode despite the umask; ignore file systems without modes."""
    if os.name == "nt" or stat.S_IMODE(os.stat(target).st_mode) == mode:
        return
    try:
        os.chmod(target, mode)
    except OSError as error:
        if error.errno not in _NO_RIGHTS:
            raise


def sync_up(path: Path, root: Path, *others: Path) -> None:
    """Sync ``path`` and every folder above it, up to ``root``, so that their entries are durable.

    This covers folders that another process created and did not sync yet. Folders that did not change since this
    process synced them are left out.

    Args:
        path: Folder below ``root``.
        root: Root folder of the registry.
        others: Further folders below ``root``.
    """
    folders: dict[Path, None] = {}
    for folder in (path, *others):
        while folder not in folders:
            folders[folder] = None
            if folder != root:
                folder = folder.parent
    for folder in folders:
        if not is_synced(folder):
            state = state_before_sync(folder)
            sync_folder(folder)
            remember(folder, state)


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable, if the system supports it."""
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


def write(path: Path, pieces: Iterable[Buffer], *, root: Path | None = None) -> None:
    """Write a new file and make it durable; remove it again if that fails.

    Args:
        path: Path of the file, which must not exist.
        pieces: Consecutive parts of the content.
        root: Root folder of the registry, whose read permissions the file gets, without write permission. None for
            0644 without the umask.
    """
    step("create", path)
    mode = 0o644 if root is None else _rights(root, 0o444)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, mode)
    try:
        try:
            if root is not None:
                _give_rights(descriptor, mode)
            for piece in _joined(pieces):
                _write_all(descriptor, piece, path)
            step("sync", path)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        discard(path)
        raise


def _joined(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield pieces, small ones joined: hundreds of small tensors would take a system call each."""
    small: list[Buffer] = []
    size = 0
    for piece in pieces:
        if small and size + len(piece) > JOINED:
            yield b"".join(small)
            small, size = [], 0
        if len(piece) > JOINED:
            yield piece
        else:
            small.append(piece)
            size += len(piece)
    if small:
        yield b"".join(small)


def _write_all(descriptor: int, data: Buffer, path: Path) -> None:
    view = memoryview(data)
    while view:
        step("write", path)
        view = view[os.write(descriptor, view[:CHUNK]) :]


def read(
    path: Path | str, root: Path | None, *, limit: int | None = None
) -> tuple[bytes, os.stat_result] | None:
    """Read a regular file without following a link, and without blocking on a pipe.

    Args:
        path: Path of the file.
        root: Root folder of the registry; no folder below it may be a link. None if the folders were checked already.
        limit: Maximum number of bytes to read.

    Returns:
        The bytes and the state of the file before they were read; None if it is missing.

    Raises:
        IntegrityError: The path is a link, folder, pipe or device.
        EnvironmentFailure: No permission to read, device failed.
    """
    try:
        opened = _opened(path, root)
        if opened is None:
            return None
        descriptor, state = opened
        try:
            if state.st_size < CHUNK:
                data = os.read(descriptor, state.st_size + 1 if limit is None else limit)
                if len(data) == state.st_size or len(data) == limit:  # else it grows or shrinks meanwhile
                    return data, state
                os.lseek(descriptor, 0, os.SEEK_SET)
            with FileIO(descriptor, closefd=False) as file:
                return file.read(-1 if limit is None else limit) or b"", state
        finally:
            os.close(descriptor)
    except OSError as error:
        raise failure("read", path, error) from error


def read_finished(path: Path | str, root: Path | None, *, limit: int) -> bytes | None:
    """Read a small file that ends with a line feed as ``read`` does, and wait for its content if it is being created.

    Without hard links a file exists before its content. Waits up to 0.2 s for a file younger than a second.

    Args:
        path: Path of the file.
        root: As for ``read``.
        limit: Maximum number of bytes to read.
    """
    for _ in range(READS):
        opened = read(path, root, limit=limit)
        if opened is None:
            return None
        if opened[0].endswith(b"\n") or time.time() - opened[1].st_mtime > 1:
            return opened[0]
        time.sleep(0.01)
    opened = read(path, root, limit=limit)
    return None if opened is None else opened[0]


def open_plain(path: Path | str, root: Path | None) -> int | None:
    """Return a descriptor to read a regular file; None if it is missing. Arguments as for ``read``.

    Raises:
        IntegrityError: The path is a link, folder, pipe or device.
        OSError: It cannot be opened.
    """
    opened = _opened(path, root)
    return None if opened is None else opened[0]


def _opened(path: Path | str, root: Path | None) -> tuple[int, os.stat_result] | None:
    """Return the descriptor of ``open_plain`` and the state of the file."""
    if root is not None:
        check_folders(Path(path).parent, root)
    try:
        descriptor = os.open(path, _TO_READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
            raise _not_a_file(path) from None
        raise
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        os.close(descriptor)
        raise _not_a_file(path)
    return descriptor, state


def _not_a_file(path: Path | str) -> IntegrityError:
    return IntegrityError(
        f"{path} is a link, folder, pipe or device, where the registry has a file; it was not "
        "followed. Remove it, and restore the file from a copy of the registry.",
        subject=Path(path),
    )


def link(source: Path, target: Path) -> bool:
    """Create the hard link ``target`` to ``source``; return False if the file system has no hard links.

    Args:
        source: Existing file.
        target: New path on the same file system.

    Raises:
        FileExistsError: The target exists; it is not changed.
    """
    step("link", target)
    try:
        os.link(source, target, follow_symlinks=False)
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
    """Rename atomically; an existing target is replaced.

    Args:
        source: Existing file.
        target: New path on the same file system.
    """
    step("rename", target)
    os.replace(source, target)


def discard(path: Path) -> None:
    """Remove a temporary file if possible; never raises, because nothing refers to the file."""
    with suppress(OSError):
        step("unlink", path)
        os.unlink(path)


def temporary(folder: Path) -> Path:
    """Return a new path in ``folder`` that no other process chooses."""
    return folder / f"{os.getpid()}-{os.urandom(8).hex()}"


@contextmanager
def announced(root: Path) -> Iterator[None]:
    """Keep an empty draft in ``tmp`` meanwhile, so that the index notices changes that create no draft.

    Errors are ignored: a full disk can still be repaired.
    """
    draft = temporary(root / "tmp")
    with suppress(OSError, IntegrityError):
        check_folders(draft.parent, root)
        write(draft, [], root=root)
    try:
        yield
    finally:
        discard(draft)


def drafted(root: Path, pieces: Iterable[Buffer], use: Callable[[Path], T]) -> T:
    """Write a draft in ``tmp``, and return the result of ``use``; try again if another process removed the draft.

    Args:
        root: Root folder of the registry.
        pieces: Consecutive parts of the content; iterated in each attempt.
        use: Function that moves or links the draft, given its path; it raises FileNotFoundError if the draft, or an
            empty folder, was removed.

    Raises:
        FileNotFoundError: Each draft was removed before its use.
    """
    drafts = root / "tmp"
    for _ in range(TRIES):
        make_folder(drafts, root)
        draft = temporary(drafts)
        try:
            write(draft, pieces, root=root)
            return use(draft)
        except FileNotFoundError:
            continue
        finally:
            discard(draft)
    raise FileNotFoundError(errno.ENOENT, "another process removes temporary files", str(drafts))


def create_once(
    path: Path,
    data: bytes,
    root: Path,
    ready: Callable[[], object] | None = None,
    *,
    sync: bool = True,
    others: Sequence[Path] = (),
) -> bool:
    """Create a small file with its content in one step; return False if it exists.

    A finished draft is linked by ``link(2)``. Without hard links, an empty file is created and the draft is renamed
    over it, so that a crash between the two leaves an empty file. Either step fails if the draft was removed. Garbage
    collection keeps the blobs that a draft refers to: ``ready`` is called while the draft exists.

    Args:
        path: Path of the file; missing folders are created.
        data: Content of the file.
        root: Root folder of the registry; the draft is in its ``tmp``.
        ready: Function that ensures that the blobs that the content refers to exist and are kept.
        sync: Whether to make the name durable; otherwise the caller does so. The content is durable before.
        others: Further folders below ``root`` to make durable.

    Raises:
        FileNotFoundError: Each draft was removed before its use.
    """

    def create(draft: Path) -> None:
        if ready is not None:
            ready()
        make_folder(path.parent, root)
        if not link(draft, path):
            write(path, [])
            try:
                move(draft, path)
            except BaseException:
                discard(path)
                raise
        if sync:
            sync_up(path.parent, root, *others)

    try:
        drafted(root, [data], create)
    except FileExistsError:
        return False
    return True


def replace_file(path: Path, data: Buffer | Sequence[Buffer], *, root: Path | None = None) -> None:
    """Write ``data`` to ``path`` atomically and durably: readers see the old content or the new, never a part.

    Args:
        path: Path of the file, in an existing folder.
        data: New content, in one piece or several.
        root: Root folder of the registry of the file, in whose ``tmp`` the draft is written. None for the folder of the
            file.

    Raises:
        EnvironmentFailure: Disk full, no permission to write, device failed; the old file is not changed.
    """
    pieces = data if isinstance(data, (list, tuple)) else [cast(Buffer, data)]

    def replace(draft: Path) -> None:
        if root is not None:
            make_folder(path.parent, root)
        move(draft, path)
        sync_folder(path.parent)

    with environment("write", path):
        if root is not None:
            drafted(root, pieces, replace)
            return
        draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}.part")
        write(draft, pieces)
        try:
            replace(draft)
        finally:
            discard(draft)
