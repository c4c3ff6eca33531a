"""Content-addressed bytes: each blob is named by its sha256, written once, and verified when it is read."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import attrs

from compatkit.contracts.manifest import Edge
from compatkit.errors import IntegrityError, UsageError
from compatkit.foundation.codec import digest as digest_of
from compatkit.foundation.mounts import is_local
from compatkit.registry import disk as durable
from compatkit.registry.memory import Memory, Stamp
from compatkit.registry.names import check_digest
from compatkit.registry.os_errors import environment

Verify = Literal["auto", "always", "never"]
Buffer = bytes | bytearray | memoryview

SMALL = 2**18
"""Bytes; smaller files are read into memory and their state is not remembered."""
SETTLED_NS = 2 * 10**9
"""A file that changed less than 2 s ago is not stamped: coarse clocks could hide one more change."""
GRACE_SECONDS = 24 * 3600
"""Unreferenced blobs are kept for so long: a publish may be about to refer to them."""
HINT = "Publish the same component again, or copy the file from another copy of the registry"
HELD_SECONDS = 3600
"""A blob that is reused is made young again when it is older; a younger file keeps its verified state."""


def blob_path(digest: str) -> str:
    """Return the path of a blob relative to the registry's root."""
    name = digest.removeprefix("sha256:")
    return f"blobs/sha256/{name[:2]}/{name}"


@attrs.frozen
class BlobMismatch:
    """The ``subject`` of an IntegrityError about a blob."""

    expected: str
    actual: str
    path: Path
    hint: str


@attrs.frozen(eq=False)
class Objects:
    """The blobs below ``<root>/blobs``.

    Attributes:
        root: Of the registry.
        memory: Files that were verified earlier, by other processes too; None for this process only.
        stamps: State of each file when this process last verified its whole content.
    """

    root: Path
    memory: Memory | None = None
    stamps: dict[str, Stamp] = attrs.field(factory=dict, init=False, repr=False)

    def path(self, digest: str) -> Path:
        """Return where the blob is kept.

        Raises:
            InvalidName: Not a digest.
        """
        return self.root / blob_path(check_digest(digest))

    def size(self, digest: str) -> int | None:
        """Return the number of bytes of a blob, None if it is not there."""
        path = self.path(digest)
        with environment("read", path):
            state = durable.file_state(path)
        return None if state is None else state.st_size

    def put(self, *pieces: Buffer) -> Edge:
        """Write bytes durably and return their edge; an existing blob is verified and left alone.

        Args:
            pieces: The bytes, in one piece or several, which are not joined.

        Raises:
            EnvironmentFailure: Disk full, no right to write, ...; nothing is kept.
        """
        size, hashed = sum(len(piece) for piece in pieces), hashlib.sha256()
        for piece in pieces:
            hashed.update(piece)
        digest = f"sha256:{hashed.hexdigest()}"
        with environment("write below", self.root):
            with suppress(FileNotFoundError):  # taken out at this moment
                if self._held(digest):
                    durable.sync_up(self.path(digest).parent, self.root)
                    return Edge(digest, size)
            durable.drafted(self.root, pieces, lambda draft: self.place(draft, digest))
        return Edge(digest, size)

    def read(
        self, digest: str, *, verify: Verify = "auto", most: int | None = None, aside: bool = True
    ) -> bytes:
        """Return the bytes of a blob.

        Args:
            digest: ``sha256:...``.
            verify: ``"auto"`` hashes a file the first time and whenever device, inode, size, mtime or ctime
                changed since; ``"always"`` every time; ``"never"`` trusts the disk.
            most: A blob of more bytes is refused without being read.
            aside: Whether damaged bytes are moved to ``quarantine/``.

        Raises:
            IntegrityError: Missing, larger than ``most``, or other bytes than promised (moved to ``quarantine/``).
            EnvironmentFailure: No right to read, device failed.
        """
        check_verify(verify)
        path = self.path(digest)
        if most is not None:
            _check_size(path, self.size(digest), most)
        opened = durable.read(path, self.root)
        for _ in range(durable.TRIES):
            with environment("read", path):
                if opened is not None or not self._take_back(path):
                    break
                opened = durable.read(path, self.root)
        if opened is None:
            raise self._missing(digest, path)
        data, state = opened
        if verify == "never" or (verify == "auto" and self._known(digest, state)):
            return data
        self._compare(digest, digest_of(data), path, state, aside=aside)
        if len(data) == state.st_size:
            self._stamp(digest, state)
        return data

    def view(self, digest: str, *, verify: Verify = "auto", most: int | None = None) -> Buffer | mmap.mmap:
        """Return the bytes of a blob without copying them, where that is safe; else as ``read`` does.

        A large blob on a local disk is mapped, privately: what is written into the buffer stays in this process.

        Args:
            digest: Of the blob.
            verify: As for ``read``.
            most: As for ``read``.

        Raises:
            IntegrityError: Missing, larger than ``most``, or other bytes than promised (moved to ``quarantine/``).
            EnvironmentFailure: No right to read, device failed.
        """
        check_verify(verify)
        path = self.path(digest)
        with environment("read", path):
            descriptor = durable.open_plain(path, self.root)
            if descriptor is None:
                return self.read(digest, verify=verify, most=most)  # takes it back, or says what is missing
            try:
                state = os.fstat(descriptor)
                if verify == "always" or state.st_size < SMALL or not is_local(state.st_dev):
                    return self.read(digest, verify=verify, most=most)
                if most is not None:
                    _check_size(path, state.st_size, most)
                mapped = mmap.mmap(descriptor, state.st_size, access=mmap.ACCESS_COPY)
                if verify == "never" or self._known(digest, state):
                    return mapped
                self._compare(digest, digest_of(memoryview(mapped)), path, state)
                if _stamp(os.fstat(descriptor)) == _stamp(state):
                    self._stamp(digest, state)
                return mapped
            finally:
                os.close(descriptor)

    def hold(self, digest: str) -> bool:
        """Return whether a blob is there, and keep it for the grace time although nothing refers to it yet.

        A blob that gc moved to ``trash/`` comes back. Its content is not read.

        Raises:
            EnvironmentFailure: No right to write, device failed.
        """
        path = self.path(digest)
        with environment("write below", self.root):
            durable.check_folders(path.parent, self.root)
            while True:
                try:
                    state = os.lstat(path)
                    if not stat.S_ISREG(state.st_mode):
                        return False
                    if not 0 <= time.time() - state.st_mtime < HELD_SECONDS:
                        self._renew(path)
                    return True
                except FileNotFoundError:
                    if not self._take_back(path):
                        return False

    def _renew(self, path: Path) -> None:
        """Set a blob's time to now; one that another user owns cannot be touched, and is replaced by a copy."""
        try:
            durable.touch(path)
        except PermissionError:
            opened = durable.read(path, self.root)
            if opened is None:
                raise FileNotFoundError(path) from None
            durable.drafted(self.root, [opened[0]], lambda draft: durable.move(draft, path))

    def _take_back(self, path: Path) -> bool:
        """Move a blob back from ``trash/``; False if it is not there, or the registry cannot be written."""
        for _ in range(durable.TRIES):
            copies = self._copies("trash", path)
            if not copies:
                break
            try:
                durable.make_folder(path.parent, self.root)
                durable.move(copies[0], path)
                durable.sync_up(path.parent, self.root)
            except FileNotFoundError:
                continue  # another process was faster, or removed the folder that was still empty
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                return False
            return True
        return path.exists()  # it came back at this moment

    def _held(self, digest: str) -> bool:
        """Return whether a good copy is there; a damaged one is moved to ``quarantine/``."""
        if not self.hold(digest):
            return False
        path = self.path(digest)
        try:
            if self.stamps.get(digest) != _stamp(os.lstat(path)):
                self.view(digest)
        except (FileNotFoundError, IntegrityError):
            return False
        return True

    def place(self, draft: Path, digest: str) -> None:
        """Link a finished, synced draft to the name of its digest, unless a good copy is there.

        Args:
            draft: In ``tmp``, with the bytes of the digest.
            digest: Of the blob.

        Raises:
            FileNotFoundError: The file was cleaned away.
        """
        target = self.path(digest)
        durable.make_folder(target.parent, self.root)
        if not self._held(digest):
            try:
                if not durable.link(draft, target):
                    durable.move(draft, target)  # same bytes, whoever wins
            except FileExistsError:
                if not self._held(digest):
                    self.view(digest)  # raises the reason why the damaged one is still there
                    raise
        durable.sync_up(target.parent, self.root)

    def _known(self, digest: str, state: os.stat_result) -> bool:
        stamp = _stamp(state)
        if self.stamps.get(digest) == stamp:
            return True
        if self.memory is None or state.st_size < SMALL or self.memory.stamp(digest) != stamp:
            return False
        self.stamps[digest] = stamp
        return True

    def _stamp(self, digest: str, state: os.stat_result) -> None:
        if time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) <= SETTLED_NS:
            return
        self.stamps[digest] = _stamp(state)
        if self.memory is not None and state.st_size >= SMALL:
            self.memory.verified(digest, self.stamps[digest])

    def _compare(
        self, expected: str, actual: str, path: Path, state: os.stat_result, *, aside: bool = True
    ) -> None:
        if actual == expected:
            return
        self.stamps.pop(expected, None)
        place = self._set_aside(path, state) if aside else "It was left where it is."
        raise IntegrityError(
            f"{path} holds other bytes than its name promises: expected {expected}, got {actual}. {place} "
            f"{HINT}.",
            subject=BlobMismatch(expected, actual, path, HINT),
        )

    def _set_aside(self, path: Path, state: os.stat_result) -> str:
        """Move a damaged file to quarantine; return a sentence about where it is."""
        away = self.root / "quarantine" / durable.temporary(Path(path.name)).as_posix().replace("/", "-")
        try:
            durable.make_folder(away.parent, self.root)
            durable.move(path, away)
            if os.lstat(away).st_ino != state.st_ino:  # meanwhile another process put a good one there
                durable.move(away, path)
                return "It was replaced at this moment; try again."
        except OSError as error:
            return f"It could not be moved to quarantine ({error.strerror})."
        return f"It was moved to {away}."

    def _copies(self, folder: str, path: Path) -> list[Path]:
        """Return the files in ``trash`` or ``quarantine`` that were a blob, sorted."""
        durable.check_folders(self.root / folder, self.root)
        return sorted((self.root / folder).glob(f"{path.name}-*"))

    def _missing(self, digest: str, path: Path) -> IntegrityError:
        copies = {
            "a damaged copy": self._copies("quarantine", path),
            "a copy that cannot be moved from here": self._copies("trash", path),
        }
        places = [f"{what} is in {paths[-1]}" for what, paths in copies.items() if paths]
        actual = " and ".join(places) or "there is no such file"
        return IntegrityError(
            f"{path} is missing: expected {digest}, {actual}. {HINT}.",
            subject=BlobMismatch(digest, "missing", path, HINT),
        )


def _check_size(path: Path, size: int | None, most: int) -> None:
    """Refuse a blob of more bytes before it is read."""
    if size is not None and size > most:
        raise IntegrityError(
            f"{path} has {size} bytes, and what is expected here has at most {most}; it was not read.",
            subject=path,
        )


def check_verify(verify: str) -> None:
    """Raise if ``verify`` is no known mode.

    Raises:
        UsageError: Neither ``"auto"``, ``"always"`` nor ``"never"``.
    """
    if verify not in ("auto", "always", "never"):
        raise UsageError(f"verify is 'auto', 'always' or 'never', got {verify!r}.")


def _stamp(state: os.stat_result) -> Stamp:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
