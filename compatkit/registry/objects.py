"""Content-addressed bytes: each blob is named by its sha256, written once, and verified when it is read."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Literal

import attrs

from compatkit.errors import IntegrityError, UsageError
from compatkit.registry import durable
from compatkit.registry.canonical import digest as digest_of
from compatkit.registry.manifest import Edge
from compatkit.registry.names import check_digest
from compatkit.registry.surroundings import environment

Verify = Literal["auto", "always", "never"]
Stamp = tuple[int, int, int, int, int]

SMALL = 2**18
"""Bytes; smaller blobs are hashed before they are written, larger ones while the disk works."""
SETTLED_NS = 2 * 10**9
"""A file that changed less than 2 s ago is not stamped: coarse clocks could hide one more change."""


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
        stamps: State of each file when its whole content was last verified in this process.
    """

    root: Path
    stamps: dict[str, Stamp] = attrs.field(factory=dict, init=False, repr=False)

    def path(self, digest: str) -> Path:
        """Return where the blob is kept.

        Raises:
            InvalidName: Not a digest.
        """
        hexadecimal = check_digest(digest).removeprefix("sha256:")
        return self.root / "blobs" / "sha256" / hexadecimal[:2] / hexadecimal

    def size(self, digest: str) -> int | None:
        """Return the number of bytes of a blob, None if it is not there."""
        path = self.path(digest)
        with environment("read", path):
            try:
                state = os.lstat(path)
            except FileNotFoundError:
                return None
        return state.st_size if stat.S_ISREG(state.st_mode) else None

    def put(self, data: bytes) -> Edge:
        """Keep ``data`` durably and return its edge; a blob that is there already is verified and left.

        Raises:
            EnvironmentFailure: Disk full, no right to write, ...; nothing is kept.
        """
        scratch = self.root / "tmp"
        with environment("write below", self.root):
            if len(data) < SMALL and self._held(known := digest_of(data)):
                durable.sync_up(self.path(known).parent, self.root)
                return Edge(known, len(data))
            durable.make_folder(scratch, self.root)
            draft = durable.temporary(scratch)
            meanwhile = None if len(data) < SMALL else lambda: digest_of(data)
            digest = durable.write(draft, data, meanwhile=meanwhile) or digest_of(data)
            try:
                self._place(draft, digest)
            finally:
                durable.discard(draft)
        return Edge(digest, len(data))

    def read(self, digest: str, *, verify: Verify = "auto") -> bytes:
        """Return the bytes of a blob.

        Args:
            digest: ``sha256:...``.
            verify: ``"auto"`` hashes a file the first time and whenever device, inode, size, mtime or ctime
                changed since; ``"always"`` every time; ``"never"`` trusts the disk.

        Raises:
            IntegrityError: Missing, or other bytes than promised (moved to ``quarantine/``).
            EnvironmentFailure: No right to read, device failed.
        """
        if verify not in ("auto", "always", "never"):
            raise UsageError(f"verify is 'auto', 'always' or 'never', got {verify!r}.")
        path = self.path(digest)
        found = durable.read(path)
        if found is None:
            raise self._missing(digest, path)
        data, state = found
        stamp = _stamp(state)
        if verify == "never" or (verify == "auto" and self.stamps.get(digest) == stamp):
            return data
        actual = digest_of(data)
        if actual != digest:
            raise self._quarantine(digest, actual, path)
        if len(data) == state.st_size and _settled(state):
            self.stamps[digest] = stamp
        return data

    def _held(self, digest: str) -> bool:
        """Tell whether a good copy is there; a bad one is moved away to make room."""
        try:
            state = os.lstat(self.path(digest))
        except FileNotFoundError:
            return False
        if self.stamps.get(digest) == _stamp(state):
            return True
        try:
            self.read(digest)
        except IntegrityError:
            return False
        return True

    def _place(self, draft: Path, digest: str) -> None:
        target = self.path(digest)
        durable.make_folder(target.parent, self.root)
        if not self._held(digest):
            try:
                if not durable.link(draft, target):
                    durable.move(draft, target)  # same bytes, whoever wins
            except FileExistsError:
                if not self._held(digest):
                    raise
        durable.sync_up(target.parent, self.root)

    def _quarantine(self, expected: str, actual: str, path: Path) -> IntegrityError:
        self.stamps.pop(expected, None)
        folder = self.root / "quarantine"
        away = folder / durable.temporary(Path(path.name)).as_posix().replace("/", "-")
        try:
            durable.make_folder(folder, self.root)
            durable.move(path, away)
            place = f"It was moved to {away}."
        except OSError as error:
            place = f"It could not be moved to quarantine ({error.strerror})."
        hint = "Publish the same component again, or copy the file from another copy of the registry"
        return IntegrityError(
            f"{path} holds other bytes than its name promises: expected {expected}, got {actual}. {place} "
            f"{hint}.",
            subject=Mismatch(expected, actual, path, hint),
        )

    def _missing(self, digest: str, path: Path) -> IntegrityError:
        bad = sorted((self.root / "quarantine").glob(f"{path.name}-*"))
        actual = f"a damaged copy is in {bad[-1]}" if bad else "there is no such file"
        hint = "Publish the same component again, or copy the file from another copy of the registry"
        return IntegrityError(
            f"{path} is missing: expected {digest}, {actual}. {hint}.",
            subject=Mismatch(digest, "missing", path, hint),
        )


def _stamp(state: os.stat_result) -> Stamp:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _settled(state: os.stat_result) -> bool:
    return time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) > SETTLED_NS
