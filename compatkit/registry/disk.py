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
from compatkit.registry.os_errors import environment

CHUNK = 2**23
"""Bytes a write call, so that a crash can fall between two."""
TRIES = 100
"""How often a temporary file is made again that somebody cleaned away."""
PATIENCE = 20
"""How often a young file without a final line feed is read again, 10 ms apart."""
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}
_NO_RIGHTS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


def step(operation: str, path: Path) -> None:
    """Do nothing; called with name and path before each change of the disk, for tests to replace.

    Args:
        operation: Such as ``"rename"``.
        path: That is changed.
    """


def check_folders(folder: Path, root: Path) -> None:
    """Refuse ``folder`` where it, or a folder between it and ``root``, is a symbolic link or no folder.

    What does not exist passes.

    Args:
        folder: Below ``root``.
        root: Of the registry.

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


def file_state(path: Path | str) -> os.stat_result | None:
    """Return the state of a plain file; None where there is none, or something else."""
    try:
        state = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return state if stat.S_ISREG(state.st_mode) else None


def make_folder(path: Path, root: Path) -> None:
    """Make ``path`` and the folders between it and ``root``; ``sync_up`` makes them durable.

    Args:
        path: Below ``root``.
        root: Of the registry; it exists.

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
    """Set a mode, whatever the umask took away; a file system without rights is left alone."""
    if os.name == "nt" or stat.S_IMODE(os.stat(target).st_mode) == mode:
        return
    try:
        os.chmod(target, mode)
    except OSError as error:
        if error.errno not in _NO_RIGHTS:
            raise


def sync_up(path: Path, root: Path) -> None:
    """Sync ``path`` and every folder above it, up to ``root``, so that their entries are durable.

    This covers folders that another process made and did not sync yet; unchanged ones cost nothing.

    Args:
        path: A folder below ``root``.
        root: Of the registry.
    """
    while True:
        sync_folder(path)
        if path in (root, path.parent):
            return
        path = path.parent


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable, where the system can."""
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
        path: Must not exist.
        pieces: The bytes, in one piece or in several.
        root: Of the registry; the file gets its read rights, and no right to write. None gives 0644 less the umask.
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
            step("sync", path)
            os.fsync(descriptor)
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


def read(
    path: Path | str, root: Path | None, *, limit: int | None = None
) -> tuple[bytes, os.stat_result] | None:
    """Read a regular file without following a link, and without waiting at a pipe.

    Args:
        path: Where.
        root: Of the registry; no folder below it may be a link. None where the folders were looked at already.
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
            with FileIO(descriptor, closefd=False) as file:
                return file.read(-1 if limit is None else limit) or b"", state
        finally:
            os.close(descriptor)


def read_finished(path: Path, root: Path, *, limit: int) -> bytes | None:
    """Read a small file that ends with a line feed as ``read`` does, and wait for its content if it is being created.

    Without hard links a name is taken before its content is there. Waits up to 0.2 s for a file younger than a second.

    Args:
        path: Of the file.
        root: Of the registry.
        limit: Bytes to read at most.
    """
    for _ in range(PATIENCE):
        opened = read(path, root, limit=limit)
        if opened is None:
            return None
        if opened[0].endswith(b"\n") or time.time() - opened[1].st_mtime > 1:
            return opened[0]
        time.sleep(0.01)
    opened = read(path, root, limit=limit)
    return None if opened is None else opened[0]


def open_plain(path: Path | str, root: Path | None) -> int | None:
    """Return a descriptor of a regular file, to read; None if there is no such file. Arguments as for ``read``.

    Raises:
        IntegrityError: A link, folder, pipe or device stands in its place.
        OSError: It cannot be opened.
    """
    if root is not None:
        check_folders(Path(path).parent, root)
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


def _no_file(path: Path | str) -> IntegrityError:
    return IntegrityError(
        f"{path} is a link, folder, pipe or device where the registry keeps a plain file; it was not "
        "followed. Remove it, and restore the file from a copy of the registry.",
        subject=Path(path),
    )


def link(source: Path, target: Path) -> bool:
    """Give ``source`` the second name ``target``; False where this system has no hard links.

    Args:
        source: An existing file.
        target: Its new name, on the same file system.

    Raises:
        FileExistsError: The target exists; it is untouched.
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
    """Rename atomically; a file that has the target's name is replaced.

    Args:
        source: An existing file.
        target: Its new name, on the same file system.
    """
    step("rename", target)
    os.replace(source, target)


def discard(path: Path) -> None:
    """Remove a temporary file if possible; never fails, because nothing refers to what is left."""
    with suppress(OSError):
        step("unlink", path)
        os.unlink(path)


def temporary(folder: Path) -> Path:
    """Return a new path in ``folder`` that no other process chooses."""
    return folder / f"{os.getpid()}-{os.urandom(8).hex()}"


@contextmanager
def announced(root: Path) -> Iterator[None]:
    """Keep an empty draft in ``tmp`` meanwhile, so that the index notices changes that make no draft of their own.

    Where that fails, the work goes on: a full disk can still be repaired.
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
    """Write a finished draft in ``tmp``, and return what is made of it; begin again where somebody cleaned it away.

    Args:
        root: Of the registry.
        pieces: The bytes; taken again at each attempt.
        use: Takes the draft, given its path, to its place; a FileNotFoundError means that the draft, or a folder that
            was still empty, was cleaned away.

    Raises:
        FileNotFoundError: Temporary files vanish as fast as they are made.
    """
    scratch = root / "tmp"
    for _ in range(TRIES):
        make_folder(scratch, root)
        draft = temporary(scratch)
        try:
            write(draft, pieces, root=root)
            return use(draft)
        except FileNotFoundError:
            continue
        finally:
            discard(draft)
    raise FileNotFoundError(errno.ENOENT, "temporary files vanish; give up", str(scratch))


def create_once(path: Path, data: bytes, root: Path, ready: Callable[[], object] | None = None) -> bool:
    """Create a small file with its whole content in one step; False if the name is taken.

    Through ``link(2)`` of a finished draft. Where there are no hard links, an empty file takes the name and the draft
    is renamed over it, so that a crash between the two leaves an empty file. Either step fails if the draft was
    cleaned away. Garbage collection keeps what a draft refers to: ``ready`` is called while the draft is there.

    Args:
        path: The name; folders are made as needed.
        data: The content.
        root: Of the registry; the draft is made in its ``tmp``.
        ready: Ensures that what the content refers to is there and stays.

    Raises:
        FileNotFoundError: Temporary files vanish as fast as they are made.
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
        sync_up(path.parent, root)

    try:
        drafted(root, [data], create)
    except FileExistsError:
        return False
    return True


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
