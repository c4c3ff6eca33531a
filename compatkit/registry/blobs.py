"""Content-addressed bytes: each blob is named by its sha256, written once, and verified when it is read."""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import attrs

from compatkit.contracts.codec import digest as digest_of
from compatkit.contracts.manifest import Edge
from compatkit.errors import IntegrityError, UsageError
from compatkit.registry import disk as durable
from compatkit.registry.memory import Memory, Stamp
from compatkit.registry.mounts import is_local
from compatkit.registry.names import check_digest
from compatkit.registry.os_errors import environment

Verify = Literal["auto", "always", "never"]
Buffer = bytes | bytearray | memoryview

SMALL = 2**18
JOINED = 2**22
"""Bytes below which one write and one hash in memory are faster than threads beside the disk."""
"""Bytes; smaller blobs are hashed before they are written and read into memory, larger ones while the disk works."""
SETTLED_NS = 2 * 10**9
"""A file that changed less than 2 s ago is not stamped: coarse clocks could hide one more change."""
GRACE_SECONDS = 24 * 3600
"""Blobs that nothing refers to are left alone for so long: somebody may be about to publish what refers to them."""
HINT = "Publish the same component again, or copy the file from another copy of the registry"
HELD_SECONDS = 3600
"""A blob that is reused is made young again when it is older; a younger file keeps its verified state."""
_HEXADECIMAL = re.compile("[0-9a-f]{64}")


@attrs.frozen
class Mismatch:
    """What an IntegrityError about a blob carries as its ``subject``."""

    expected: str
    actual: str
    path: Path
    hint: str


@attrs.frozen(eq=False)
class Objects:
    """The blobs below ``<root>/blobs``.

    Attributes:
        root: Of the registry.
        memory: Which files were verified earlier, by other processes too; None for this process only.
        stamps: State of each file when its whole content was last verified in this process.
    """

    root: Path
    memory: Memory | None = None
    stamps: dict[str, Stamp] = attrs.field(factory=dict, init=False, repr=False)

    def path(self, digest: str) -> Path:
        """Return where the blob is kept.

        Raises:
            InvalidName: Not a digest.
        """
        hexadecimal = check_digest(digest).removeprefix("sha256:")
        return self.root / f"blobs/sha256/{hexadecimal[:2]}/{hexadecimal}"

    def size(self, digest: str) -> int | None:
        """Return the number of bytes of a blob, None if it is not there."""
        path = self.path(digest)
        with environment("read", path):
            try:
                state = os.lstat(path)
            except FileNotFoundError:
                return None
        return state.st_size if stat.S_ISREG(state.st_mode) else None

    def each(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the digest and state of every blob, sorted; other files are left out.

        Raises:
            IntegrityError: A folder of blobs is a symbolic link.
        """
        above = self.root / "blobs" / "sha256"
        for shard in _sorted(above, self.root):
            if len(shard.name) == 2 and shard.is_dir(follow_symlinks=False):
                for blob in _sorted(above / shard.name, self.root):
                    known = _HEXADECIMAL.fullmatch(blob.name) and blob.name.startswith(shard.name)
                    if known and blob.is_file(follow_symlinks=False):
                        try:
                            state = blob.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue  # taken out at this moment
                        yield f"sha256:{blob.name}", state

    def put(self, data: Buffer) -> Edge:
        """Keep ``data`` durably and return its edge; a blob that is there already is verified and left.

        Raises:
            EnvironmentFailure: Disk full, no right to write, ...; nothing is kept.
        """
        return self.put_pieces([data])[0]

    def put_pieces(
        self, pieces: Sequence[Buffer], examine: Callable[[memoryview], Any] | None = None
    ) -> tuple[Edge, Any]:
        """Keep bytes that come in pieces, without joining them; see ``put``.

        Args:
            pieces: In order.
            examine: Is given the bytes as they were written, beside the disk's work.

        Returns:
            The edge, and what ``examine`` returned.

        Raises:
            EnvironmentFailure: Disk full, no right to write, ...; nothing is kept.
        """
        size = sum(len(one) for one in pieces)
        scratch = self.root / "tmp"
        with environment("write below", self.root):
            digest, seen = "", None
            if size < JOINED:
                whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces = [whole]
                digest, seen = digest_of(whole), examine(memoryview(whole)) if examine else None
                with suppress(FileNotFoundError):  # taken out at this moment
                    if self._held(digest):
                        durable.sync_up(self.path(digest).parent, self.root)
                        return Edge(digest, size), seen
            for _ in range(durable.TRIES):
                durable.make_folder(scratch, self.root)
                draft = durable.temporary(scratch)
                try:
                    found = durable.write(
                        draft, pieces, root=self.root, meanwhile=_work(draft, size, examine)
                    )
                    if found:
                        digest, seen = found[0], found[-1] if examine else None
                    self.place(draft, digest)
                    return Edge(digest, size), seen
                except FileNotFoundError:
                    continue  # the temporary file, or a folder that was still empty, was cleaned away
                finally:
                    durable.discard(draft)
            raise FileNotFoundError(errno.ENOENT, "temporary files vanish; give up", str(scratch))

    def read(
        self, digest: str, *, verify: Verify = "auto", most: int | None = None, aside: bool = True
    ) -> bytes:
        """Return the bytes of a blob.

        Args:
            digest: ``sha256:...``.
            verify: ``"auto"`` hashes a file the first time and whenever device, inode, size, mtime or ctime
                changed since; ``"always"`` every time; ``"never"`` trusts the disk.
            most: A blob of more bytes is refused without being read.
            aside: Whether damaged bytes are moved to ``quarantine/``; not by who only looks around.

        Raises:
            IntegrityError: Missing, larger than ``most``, or other bytes than promised (moved to ``quarantine/``).
            EnvironmentFailure: No right to read, device failed.
        """
        check_verify(verify)
        path = self.path(digest)
        size = self.size(digest) if most is not None else None
        if most is not None and size is not None and size > most:
            raise IntegrityError(
                f"{path} has {size} bytes, and what is expected here has at most {most}; it was not read.",
                subject=path,
            )
        found = durable.read(path, self.root)
        for _ in range(durable.TRIES):
            with environment("read", path):
                if found is not None or not self._take_back(path):
                    break
                found = durable.read(path, self.root)
        if found is None:
            raise self._missing(digest, path)
        data, state = found
        if verify == "never" or (verify == "auto" and self._known(digest, state)):
            return data
        self._compare(digest, digest_of(data), path, state, aside=aside)
        if len(data) == state.st_size:
            self._stamp(digest, state)
        return data

    def view(self, digest: str, *, verify: Verify = "auto") -> Buffer | mmap.mmap:
        """Return the bytes of a blob without copying them, where that is safe; else as ``read`` does.

        A large blob on a local disk is mapped, privately: what is written into the buffer stays in this process.

        Raises:
            IntegrityError: Missing, or other bytes than promised (moved to ``quarantine/``).
            EnvironmentFailure: No right to read, device failed.
        """
        check_verify(verify)
        path = self.path(digest)
        with environment("read", path):
            descriptor = durable.open_plain(path, self.root)
            if descriptor is None:
                return self.read(digest, verify=verify)  # takes it back, or says what is missing
            try:
                state = os.fstat(descriptor)
                if verify == "always" or state.st_size < SMALL or not is_local(state.st_dev):
                    return self.read(digest, verify=verify)
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
        """Tell whether a blob is there, and see to it that it stays for the grace time although nothing refers to it.

        A blob that was taken out because nothing referred to it comes back. Its content is not read.

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
        """Make a blob young; what belongs to another user, and cannot be touched, is replaced by a copy."""
        try:
            durable.touch(path)
        except PermissionError:
            found = durable.read(path, self.root)
            if found is None:
                raise FileNotFoundError(path) from None
            durable.make_folder(self.root / "tmp", self.root)
            draft = durable.temporary(self.root / "tmp")
            durable.write(draft, [found[0]], root=self.root)
            try:
                durable.move(draft, path)
            finally:
                durable.discard(draft)

    def _take_back(self, path: Path) -> bool:
        """Bring back what was taken out as unused; False if it was not, or the registry cannot be written."""
        for _ in range(durable.TRIES):
            kept = [
                Path(one.path)
                for one in _sorted(self.root / "trash", self.root)
                if one.name.startswith(path.name)
            ]
            if not kept:
                break
            try:
                durable.make_folder(path.parent, self.root)
                durable.move(kept[0], path)
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
        """Tell whether a good copy is there; a bad one is moved away to make room."""
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
        """Give a finished, synced file in ``tmp`` the name of its digest; where a good copy is there, it is left.

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
                    self.view(digest)  # says why the bad one is still there
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
            subject=Mismatch(expected, actual, path, HINT),
        )

    def _set_aside(self, path: Path, state: os.stat_result) -> str:
        """Move a damaged file to quarantine; return a sentence that says where it is."""
        away = self.root / "quarantine" / durable.temporary(Path(path.name)).as_posix().replace("/", "-")
        try:
            durable.make_folder(away.parent, self.root)
            durable.move(path, away)
            if os.lstat(away).st_ino != state.st_ino:  # in between, somebody put a good one in its place
                durable.move(away, path)
                return "It was replaced at this moment; try again."
        except OSError as error:
            return f"It could not be moved to quarantine ({error.strerror})."
        return f"It was moved to {away}."

    def _missing(self, digest: str, path: Path) -> IntegrityError:
        kept = {
            what: sorted((self.root / folder).glob(f"{path.name}-*"))
            for folder, what in (
                ("quarantine", "a damaged copy"),
                ("trash", "a copy that cannot be moved from here"),
            )
        }
        there = [f"{what} is in {paths[-1]}" for what, paths in kept.items() if paths]
        actual = " and ".join(there) or "there is no such file"
        return IntegrityError(
            f"{path} is missing: expected {digest}, {actual}. {HINT}.",
            subject=Mismatch(digest, "missing", path, HINT),
        )


def check_verify(verify: str) -> None:
    """Refuse a word that says no way of verifying.

    Raises:
        UsageError: Neither ``"auto"``, ``"always"`` nor ``"never"``.
    """
    if verify not in ("auto", "always", "never"):
        raise UsageError(f"verify is 'auto', 'always' or 'never', got {verify!r}.")


def _work(path: Path, size: int, examine: Callable[[memoryview], Any] | None) -> list[Callable[[], Any]]:
    """Return what is done beside the disk's work; on the file, so that the digest is that of what was written."""
    if size < JOINED:
        return []
    wanted = [digest_of] if examine is None else [digest_of, examine]
    return [lambda one=one: _on_file(path, one) for one in wanted]


def _on_file(path: Path, work: Callable[[memoryview], Any]) -> Any:
    """Return what ``work`` makes of the content of a file that nobody else knows."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        try:
            return work(view)
        finally:
            view.release()


def _sorted(folder: Path, root: Path) -> list[os.DirEntry[str]]:
    durable.check_folders(folder, root)
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _stamp(state: os.stat_result) -> Stamp:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
