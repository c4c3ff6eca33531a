"""Content-addressed blobs: named by their sha256, written once, and verified when they are read."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs

from compatkit.errors import IntegrityError, UsageError
from compatkit.foundation.codec import digest as digest_of
from compatkit.foundation.mounts import is_local
from compatkit.registry import disk as durable
from compatkit.registry.local_cache import LocalCache, Stamp
from compatkit.registry.names import check_digest
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.contracts.manifest import Edge

Verify = Literal["auto", "always", "never"]
Buffer = bytes | bytearray | memoryview

SMALL = 2**18
"""Bytes; smaller files are read into memory, and their state is not cached."""
LARGE = 2**23
"""Bytes; larger blobs are hashed while they are written, which a known blob is in vain."""
SETTLED_NS = 2 * 10**9
"""Age of a file before its state is cached, 2 s: coarse clocks could hide a later change."""
GRACE_SECONDS = 24 * 3600
"""Time for which unreferenced blobs are kept: a publish may be about to refer to them."""
HINT = "Publish the same component again, pull it from a remote, or copy the file from another copy of the registry"
RENEW_SECONDS = 3600
"""Age above which a blob that is used again gets a new time stamp; a younger file keeps its verified state."""


def blob_path(digest: str) -> str:
    """Return the path of a blob relative to the registry's root."""
    name = digest.removeprefix("sha256:")
    return f"blobs/sha256/{name[:2]}/{name}"


@attrs.frozen
class BlobMismatch:
    """Subject of an IntegrityError about a blob."""

    expected: str
    actual: str
    path: Path
    hint: str


@attrs.frozen(eq=False)
class Objects:
    """The blobs below ``<root>/blobs``.

    Attributes:
        root: Root folder of the registry.
        local_cache: Cache of verified files, shared by processes; None to remember them in this process only.
        stamps: State of each file when this process last verified its content.
    """

    root: Path
    local_cache: LocalCache | None = None
    stamps: dict[str, Stamp] = attrs.field(factory=dict, init=False, repr=False)

    def path(self, digest: str) -> Path:
        """Return the path of a blob.

        Raises:
            InvalidName: Not a digest.
        """
        return self.root / blob_path(check_digest(digest))

    def size(self, digest: str) -> int | None:
        """Return the number of bytes of a blob, None if it is missing."""
        path = self.path(digest)
        with environment("read", path):
            state = durable.file_state(path)
        return None if state is None else state.st_size

    def put(self, *pieces: Buffer) -> Edge:
        """Write bytes durably and return their edge; an existing blob is verified and not changed.

        Args:
            pieces: Consecutive parts of the content; they are not joined in memory.

        Raises:
            EnvironmentFailure: Disk full, no permission to write, ...; nothing is stored.
        """
        from compatkit.contracts.manifest import Edge

        size = sum(len(piece) for piece in pieces)
        if size >= LARGE:
            with environment("write below", self.root):
                return Edge(self._put_large(pieces), size)
        digest = _digest(pieces)
        with environment("write below", self.root):
            with suppress(FileNotFoundError):  # removed by another process
                if self._has_good_copy(digest):
                    durable.sync_up(self.path(digest).parent, self.root)
                    return Edge(digest, size)
            durable.drafted(self.root, pieces, lambda draft: self.link(draft, digest))
        return Edge(digest, size)

    def _put_large(self, pieces: Sequence[Buffer]) -> str:
        """Write bytes while another thread hashes them; return their digest. A known blob's draft is never synced."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as hashing:
            future = hashing.submit(_digest, pieces)

            def check() -> None:
                digest = future.result()
                if self._has_good_copy(digest):
                    durable.sync_up(self.path(digest).parent, self.root)
                    raise _Present

            with suppress(_Present):
                durable.drafted(
                    self.root, _Checked(pieces, check), lambda draft: self.link(draft, future.result())
                )
            return future.result()

    def read(
        self, digest: str, *, verify: Verify = "auto", max_bytes: int | None = None, quarantine: bool = True
    ) -> bytes:
        """Return the bytes of a blob.

        Args:
            digest: ``sha256:...``.
            verify: ``"auto"`` hashes a file the first time and whenever device, inode, size, mtime or ctime
                changed since; ``"always"`` every time; ``"never"`` trusts the disk.
            max_bytes: Limit; a larger blob is refused without being read.
            quarantine: Whether damaged bytes are moved to ``quarantine/``.

        Raises:
            IntegrityError: Missing, larger than ``max_bytes``, or damaged (moved to ``quarantine/``).
            EnvironmentFailure: No permission to read, device failed.
        """
        check_verify(verify)
        path = self.path(digest)
        with environment("read", path):
            known = None if max_bytes is None else durable.file_state(path)
        if known is not None and max_bytes is not None:
            _check_size(path, known.st_size, max_bytes)
        opened = durable.read(path, self.root)
        for _ in range(durable.TRIES):
            with environment("read", path):
                if opened is not None or not self._restore(path):
                    break
                opened = durable.read(path, self.root)
        if opened is None:
            raise self._missing(digest, path)
        data, state = opened
        if verify == "never" or (verify == "auto" and self._known(digest, state)):
            return data
        self._compare(digest, digest_of(data), path, state, quarantine=quarantine)
        if len(data) == state.st_size:
            self._stamp(digest, state)
        return data

    def view(
        self, digest: str, *, verify: Verify = "auto", max_bytes: int | None = None
    ) -> Buffer | mmap.mmap:
        """Return the bytes of a blob without copying them, where that is safe; else as ``read`` does.

        A large blob on a local disk is mapped privately: writing into the buffer does not change the file.

        Args:
            digest: Digest of the blob.
            verify: As for ``read``.
            max_bytes: As for ``read``.

        Raises:
            IntegrityError: Missing, larger than ``max_bytes``, or damaged (moved to ``quarantine/``).
            EnvironmentFailure: No permission to read, device failed.
        """
        check_verify(verify)
        path = self.path(digest)
        with environment("read", path):
            descriptor = durable.open_plain(path, self.root)
            if descriptor is None:
                return self.read(digest, verify=verify, max_bytes=max_bytes)  # restores it, or raises
            try:
                state = os.fstat(descriptor)
                if verify == "always" or state.st_size < SMALL or not is_local(state.st_dev):
                    return self.read(digest, verify=verify, max_bytes=max_bytes)
                if max_bytes is not None:
                    _check_size(path, state.st_size, max_bytes)
                mapped = mmap.mmap(descriptor, state.st_size, access=mmap.ACCESS_COPY)
                if verify == "never" or self._known(digest, state):
                    return mapped
                self._compare(digest, _file_digest(descriptor), path, state)
                if _stamp(os.fstat(descriptor)) == _stamp(state):
                    self._stamp(digest, state)
                return mapped
            finally:
                os.close(descriptor)

    def retain(self, digest: str) -> bool:
        """Return whether a blob exists, and keep it for the grace time even if nothing refers to it yet.

        A blob that gc moved to ``trash/`` is restored. Its content is not read.

        Raises:
            EnvironmentFailure: No permission to write, device failed.
        """
        path = self.path(digest)
        with environment("write below", self.root):
            durable.check_folders(path.parent, self.root)
            while True:
                try:
                    state = os.lstat(path)
                    if not stat.S_ISREG(state.st_mode):
                        return False
                    if not 0 <= time.time() - state.st_mtime < RENEW_SECONDS:
                        self._renew(path)
                    return True
                except FileNotFoundError:
                    if not self._restore(path):
                        return False

    def _renew(self, path: Path) -> None:
        """Set a blob's modification time to now; a file of another user cannot be touched and is replaced by a copy."""
        try:
            durable.touch(path)
        except PermissionError:
            opened = durable.read(path, self.root)
            if opened is None:
                raise FileNotFoundError(path) from None
            durable.drafted(self.root, [opened[0]], lambda draft: durable.move(draft, path))

    def _restore(self, path: Path) -> bool:
        """Move a blob back from ``trash/``; return False if it is not there, or the registry is read-only."""
        for _ in range(durable.TRIES):
            copies = self._copies("trash", path)
            if not copies:
                break
            try:
                durable.make_folder(path.parent, self.root)
                durable.move(copies[0], path)
                durable.sync_up(path.parent, self.root)
            except FileNotFoundError:
                continue  # another process was faster, or removed the empty folder
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                return False
            return True
        return path.exists()  # another process may have restored it

    def _has_good_copy(self, digest: str) -> bool:
        """Return whether an undamaged copy exists; a damaged one is moved to ``quarantine/``."""
        if not self.retain(digest):
            return False
        path = self.path(digest)
        try:
            if self.stamps.get(digest) != _stamp(os.lstat(path)):
                self.view(digest)
        except (FileNotFoundError, IntegrityError):
            return False
        return True

    def link(self, draft: Path, digest: str) -> None:
        """Link a finished, synced draft to the path of its digest, unless an undamaged copy exists.

        Args:
            draft: File in ``tmp`` with the bytes of the digest.
            digest: Digest of the blob.

        Raises:
            FileNotFoundError: The draft was removed.
        """
        target = self.path(digest)
        durable.make_folder(target.parent, self.root)
        if not self._has_good_copy(digest):
            try:
                if not durable.link(draft, target):
                    durable.move(draft, target)  # both have the same bytes
            except FileExistsError:
                if not self._has_good_copy(digest):
                    self.view(digest)  # raises if the existing one is damaged
                    raise
        durable.sync_up(target.parent, self.root)

    def _known(self, digest: str, state: os.stat_result) -> bool:
        stamp = _stamp(state)
        if self.stamps.get(digest) == stamp:
            return True
        if self.local_cache is None or state.st_size < SMALL or self.local_cache.stamp(digest) != stamp:
            return False
        self.stamps[digest] = stamp
        return True

    def _stamp(self, digest: str, state: os.stat_result) -> None:
        if time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) <= SETTLED_NS:
            return
        self.stamps[digest] = _stamp(state)
        if self.local_cache is not None and state.st_size >= SMALL:
            self.local_cache.remember_verified(digest, self.stamps[digest])

    def _compare(
        self, expected: str, actual: str, path: Path, state: os.stat_result, *, quarantine: bool = True
    ) -> None:
        if actual == expected:
            return
        self.stamps.pop(expected, None)
        outcome = self._quarantine(path, state) if quarantine else "It was not moved."
        raise IntegrityError(
            f"{path} does not match its digest: expected {expected}, got {actual}. {outcome} {HINT}.",
            subject=BlobMismatch(expected, actual, path, HINT),
        )

    def _quarantine(self, path: Path, state: os.stat_result) -> str:
        """Move a damaged file to quarantine; return a sentence for the message."""
        target = self.root / "quarantine" / durable.temporary(Path(path.name)).as_posix().replace("/", "-")
        try:
            durable.make_folder(target.parent, self.root)
            durable.move(path, target)
            if os.lstat(target).st_ino != state.st_ino:  # another process has replaced it meanwhile
                durable.move(target, path)
                return "Another process replaced it meanwhile; try again."
        except OSError as error:
            return f"It could not be moved to quarantine ({error.strerror})."
        return f"It was moved to {target}."

    def copies_aside(self, digest: str) -> list[Path]:
        """Return the copies of a blob in ``trash`` and ``quarantine``."""
        path = self.path(digest)
        with environment("read below", self.root):
            return [copy for folder in ("trash", "quarantine") for copy in self._copies(folder, path)]

    def _copies(self, folder: str, path: Path) -> list[Path]:
        """Return the copies of a blob in ``trash`` or ``quarantine``, sorted."""
        durable.check_folders(self.root / folder, self.root)
        with suppress(FileNotFoundError):  # a pattern for each digest would take longer than the listing
            names = os.listdir(self.root / folder)
            return sorted(self.root / folder / name for name in names if name.startswith(f"{path.name}-"))
        return []

    def _missing(self, digest: str, path: Path) -> IntegrityError:
        copies = {
            "a damaged copy": self._copies("quarantine", path),
            "a copy that cannot be restored": self._copies("trash", path),
        }
        known = [f"{what} is in {paths[-1]}" for what, paths in copies.items() if paths]
        actual = " and ".join(known) or "there is no such file"
        return IntegrityError(
            f"{path} is missing: expected {digest}, {actual}. {HINT}.",
            subject=BlobMismatch(digest, "missing", path, HINT),
        )


class _Present(Exception):
    """The blob is stored already."""


@attrs.frozen(eq=False)
class _Checked:
    """Pieces that are checked after the last one is written, before they are synced."""

    pieces: Sequence[Buffer]
    check: Callable[[], None]

    def __iter__(self) -> Iterator[Buffer]:
        yield from self.pieces
        self.check()


def _digest(pieces: Sequence[Buffer]) -> str:
    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(piece)
    return f"sha256:{hashed.hexdigest()}"


def _file_digest(descriptor: int) -> str:
    """Return the digest of an open file; unlike hashing a mapping, reading leaves none of its pages in memory."""
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _check_size(path: Path, size: int | None, max_bytes: int) -> None:
    """Refuse a larger blob before it is read."""
    if size is not None and size > max_bytes:
        raise IntegrityError(
            f"{path} has {size} bytes; expected at most {max_bytes}. It was not read.",
            subject=path,
        )


def check_verify(verify: str) -> None:
    """Raise if ``verify`` is not a known mode.

    Raises:
        UsageError: ``verify`` is none of ``"auto"``, ``"always"`` and ``"never"``.
    """
    if verify not in ("auto", "always", "never"):
        raise UsageError(f"verify is 'auto', 'always' or 'never', got {verify!r}.")


def _stamp(state: os.stat_result) -> Stamp:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
