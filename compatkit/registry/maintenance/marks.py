"""Mark phase of a garbage collection: find all digests that are reachable from references, reading only the files.

Versions, results and policies are references. So is a draft in ``tmp`` with the content of a reference, because it is
about to be published, and a damaged reference in ``quarantine``, because it may be repaired. Blobs are kept whatever
kind the referring document declares.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import attrs

from compatkit.errors import FormatError, IntegrityError
from compatkit.foundation.codec import MAX_BYTES
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry import Progress
from compatkit.registry import disk as durable
from compatkit.registry.blobs import blob_path
from compatkit.registry.document_graph import NamedDigest, Role, names, walk
from compatkit.registry.layout_scan import (
    Aside,
    Blob,
    Obstacle,
    PolicyFile,
    ResultPointer,
    TombstoneFile,
    VersionFile,
    scan,
)
from compatkit.registry.log import LIMIT
from compatkit.registry.maintenance.ages import Ages
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import LINE_LIMIT, References, digest_in, read_line

ATTEMPTS = 4
"""Number of marks before a missing blob is an error."""
PAUSE = 0.05
"""Seconds between two marks: another collection may be restoring a blob, and programs from before 2026-11 create a
version without hard links before they check that its blobs still exist."""
_DIGITS = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""Hex digits of a digest anywhere in a text."""
_HEAD_SIZE = 2**16
_STRENGTH = {"payload": 0, "named": 1, "blob": 2, "component": 3}


@attrs.frozen
class Marks:
    """Result of a mark.

    Attributes:
        reachable: Digests to keep.
        collectable: Weights used only by versions withdrawn long ago; part of ``reachable`` if these are not collected.
        blobs: Blob files by path.
        referrers: What refers to each digest to keep: a version, file or other digest.
    """

    reachable: frozenset[str]
    collectable: frozenset[str]
    blobs: tuple[Blob, ...]
    referrers: Mapping[str, str] = attrs.field(factory=dict, repr=False)

    def who_needs(self, digest: str) -> str:
        """Return the version or file that leads to a digest to keep; empty for another digest."""
        if digest not in self.reachable:
            return ""
        while digest in self.referrers:
            digest = self.referrers[digest]
        return digest


class _Missing(IntegrityError):
    """A referenced blob is missing."""


class _Step(NamedTuple):
    """A step of the walk to a digest to keep.

    Attributes:
        role: ``component`` and ``blob`` are read; ``named`` only if it is a document.
        referrer: Referring file or document, for messages.
        required: Whether the blob must exist.
        living: False if the blob is reached only from versions whose weights may be collected.
        collectable: Whether the blob is weights that may be collected.
    """

    digest: str
    role: Role
    referrer: str
    required: bool
    living: bool = True
    collectable: bool = False

    @property
    def strength(self) -> tuple[bool, bool, int, bool]:
        """Sort key; a digest that is reached again with a greater strength is followed again."""
        return self.living, not self.collectable, _STRENGTH[self.role], self.required


@attrs.define(eq=False)
class Marker:
    """Finds digests to keep; documents are read once for all marks.

    Attributes:
        root: Folder of the registry.
        ages: Ages of drafts and tombstones.
        withdrawn: Whether weights of versions withdrawn long ago may be collected.
        lost: Digests of documents that may be unreadable, because the caller accepts their loss.
        all_drafts: Whether abandoned drafts count too. A plan ignores them; they must be deleted before any blob,
            because a stalled publish can still link an existing draft.
    """

    root: Path
    ages: Ages
    withdrawn: bool = False
    lost: frozenset[str] = frozenset()
    all_drafts: bool = False
    _documents: dict[str, tuple[NamedDigest, ...]] = attrs.field(factory=dict, init=False)
    _trash: dict[str, list[str]] = attrs.field(factory=dict, init=False)

    def mark(self, progress: Progress | None = None) -> Marks:
        """Mark from all references.

        Args:
            progress: Function called with the number of references followed.

        Raises:
            IntegrityError: A reference or document is damaged, or remains missing, so its references are unknown.
            EnvironmentFailure: No read permission, or the device failed.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return self._marks(progress)
            except _Missing:
                time.sleep(PAUSE)
        return self._marks(progress)

    def _marks(self, progress: Progress | None) -> Marks:
        """Make one pass of ``mark``."""
        self._trash = _trash_paths(self.root)
        versions: list[tuple[VersionFile, str]] = []
        starts: list[_Step] = []
        last_entries: dict[tuple[str, object], TombstoneFile] = {}
        blobs: list[Blob] = []
        try:
            for entry in scan(self.root):
                match entry:
                    case VersionFile():
                        if (digest := self._version_digest(entry)) is not None:
                            versions.append((entry, digest))
                    case TombstoneFile():
                        key = entry.name, entry.version
                        last_entries[key] = max(
                            entry, last_entries.get(key, entry), key=lambda file: file.number
                        )
                    case ResultPointer():
                        starts += self._result(entry)
                    case Aside(folder="tmp"):
                        starts += self._draft(entry)
                    case Aside(folder="quarantine") | PolicyFile():
                        starts += self._mentioned_digests(entry)
                    case Blob():
                        blobs.append(entry)
                    case Obstacle():  # an error, as it may hide references
                        durable.check_folders(self.root / entry.path, self.root)
                    case _:
                        pass
        except OSError as error:
            with environment("read", error.filename or self.root):
                raise
        withdrawn = {
            key
            for key, entry in last_entries.items()
            if self.withdrawn and entry.number % 2 and self.ages.is_old(os.lstat(self.root / entry.path))
        }
        withdrawn_only = {digest for entry, digest in versions if (entry.name, entry.version) in withdrawn}
        withdrawn_only -= {
            digest for entry, digest in versions if (entry.name, entry.version) not in withdrawn
        }
        # the versions in use first, as the first referrer of a digest is named as its user
        versions.sort(key=lambda version: (version[0].name, version[0].version) in withdrawn)
        starts += [
            _Step(digest, "component", f"{entry.name}@{entry.version}", True, digest not in withdrawn_only)
            for entry, digest in versions
        ]
        starts.sort(
            key=lambda step: not step.living
        )  # living ones first, so that few digests are visited twice
        reachable, collectable, referrers = set[str](), set[str](), dict[str, str]()
        for step in walk(
            _report_progress(starts, progress),
            partial(self._next_steps, withdrawn_only),
            key=lambda step: step.digest,
            rank=lambda step: step.strength,
        ):
            if step.collectable:
                collectable.add(step.digest)
            else:
                reachable.add(step.digest)
                referrers.setdefault(step.digest, step.referrer)
        return Marks(frozenset(reachable), frozenset(collectable - reachable), tuple(blobs), referrers)

    def _version_digest(self, file: VersionFile) -> str | None:
        data = _head(f"{self.root}/{file.path}")
        if not data:
            return None  # an interrupted publish without hard links
        if digest := digest_in(data, f"{file.name}@{file.version}"):
            return digest
        return References(self.root).digest(file.name, file.version)  # waits for a writer, then raises

    def _result(self, pointer: ResultPointer) -> Iterator[_Step]:
        path = self.root / pointer.path
        data = _head(str(path))
        if data and data != f"sha256:{pointer.result}\n".encode():
            raise IntegrityError(
                f"{path}: expected the digest in its name, got {data[:80]!r}; nothing is collected, as its references "
                "are unknown. Move it to quarantine with `compatkit verify --repair`, or restore it from another copy.",
                subject=path,
            )
        if data is not None:
            yield _Step(f"sha256:{pointer.result}", "blob", f"the result {path}", bool(data))

    def _draft(self, draft: Aside) -> Iterator[_Step]:
        """Yield the target of a drafted reference."""
        path = self.root / draft.path
        state = durable.file_state(path)
        if state is None or (not self.all_drafts and self.ages.is_abandoned(draft.file, state)):
            return
        if state.st_size <= LINE_LIMIT and (line := read_line(_head(str(path)) or b"")):
            yield _Step(line[0], "component", f"the draft {path}", False)

    def _mentioned_digests(self, file: Aside | PolicyFile) -> Iterator[_Step]:
        """Yield the digests in a policy or damaged reference."""
        path = self.root / file.path
        state = durable.file_state(path)
        if state is not None and state.st_size <= LIMIT:  # larger files are damaged weights
            for digits in sorted(set(_DIGITS.findall((durable.read(path, None) or (b"",))[0]))):
                yield _Step(f"sha256:{digits.decode()}", "named", str(path), False)

    def _next_steps(self, withdrawn_only: Collection[str], step: _Step) -> Iterator[_Step]:
        if step.role == "payload":
            return
        # a publish checks direct references of manifests only
        required = step.required and step.role == "component"
        for digest, role in self._document(step):
            collectable = not step.living and role == "payload" and step.digest in withdrawn_only
            yield _Step(digest, role, step.digest, required and role != "named", step.living, collectable)

    def _document(self, step: _Step) -> tuple[NamedDigest, ...]:
        """Return the references of a blob; empty if it is not a document."""
        digest, role, referrer, required = step[:4]
        known = self._documents.get(digest)
        if known is not None:
            return known
        content = self._content(digest, head_only=role == "named", retry=required)
        if content is None and required and digest not in self.lost:
            raise self._error(digest, referrer, "is missing, from trash/ too", _Missing)
        if content is None or digest in self.lost or (role == "named" and not content[0].startswith(b"{")):
            return ()
        data, size = content
        if size > MAX_BYTES:
            if role == "component":
                raise self._error(digest, referrer, f"has {size} bytes, too many for a document")
            return ()
        if (actual := digest_of(data)) != digest:
            raise self._error(digest, referrer, f"has the digest {actual}")
        try:
            self._documents[digest] = names(data, digest, component=required and role == "component")
        except FormatError as error:
            raise self._error(digest, referrer, f"cannot be read ({error})") from error
        return self._documents[digest]

    def _content(self, digest: str, *, head_only: bool, retry: bool) -> tuple[bytes, int] | None:
        """Return the bytes and the size of a blob in ``blobs`` or ``trash``; None if it does not exist.

        The bytes are neither verified nor moved. Only the beginning of a larger file than any document is returned.

        Args:
            digest: Digest of the blob.
            head_only: Whether to return only the beginning, unless it looks like a document.
            retry: Whether to retry, because another process may be moving the blob.
        """
        path = f"{self.root}/{blob_path(digest)}"
        content = _read(path, head_only)
        for _ in range(3 if retry else 1):
            for entry in () if content is not None else (*self._trash.get(digest[7:], ()), path):
                content = _read(entry, head_only) if content is None else content
            if content is None:
                self._trash = _trash_paths(self.root)
        return content

    def _error(
        self, digest: str, referrer: str, what: str, kind: type[IntegrityError] = IntegrityError
    ) -> IntegrityError:
        return kind(
            f"{self.root}/{blob_path(digest)} {what}, and {referrer} refers to it; nothing is collected, as its own "
            "references are unknown. `compatkit verify` shows the remedy. If it is lost for good, `compatkit gc --lost "
            f"{digest}` collects without it.",
            subject=digest,
        )


def _report_progress(starts: list[_Step], progress: Progress | None) -> Iterator[_Step]:
    for done, start in enumerate(starts):
        if progress is not None and done % 256 == 0:
            progress(done, len(starts), "following references")
        yield start


def _read(path: str, head_only: bool) -> tuple[bytes, int] | None:
    opened = durable.read(path, None, limit=_HEAD_SIZE)
    if opened is None:
        return None
    data, size = opened[0], opened[1].st_size
    if 0 < len(data) < size <= MAX_BYTES and (data.startswith(b"{") or not head_only):
        data = (durable.read(path, None) or opened)[0]
    return data, size


def _head(path: str) -> bytes | None:
    """Return the beginning of a regular file, longer than any reference; None if it does not exist."""
    descriptor = durable.open_plain(path, None)
    if descriptor is None:
        return None
    try:
        return os.read(descriptor, LINE_LIMIT)
    finally:
        os.close(descriptor)


def _trash_paths(root: Path) -> dict[str, list[str]]:
    """Return the paths of the blobs in ``trash``, by the hex digits of their digests."""
    paths: dict[str, list[str]] = defaultdict(list)
    for entry in scan(root, "trash"):
        if isinstance(entry, Aside):
            paths[entry.file[:64]].append(f"{root}/{entry.path}")
        else:
            durable.check_folders(root / entry.path, root)
    return paths
