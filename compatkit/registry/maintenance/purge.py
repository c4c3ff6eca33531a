"""Purge: delete the weights of withdrawn versions at once, with all copies in the registry, after a leak or by law.

As in a collection, a mark precedes the move to ``trash`` and another follows: a version that is published meanwhile
keeps its weights. There is no grace, so a publish that counts on weights before it drafts its version fails.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import IntegrityError, NotFound
from compatkit.foundation.arguments import texts_of
from compatkit.foundation.display import Shown, aligned
from compatkit.registry import Progress
from compatkit.registry import disk as durable
from compatkit.registry.blobs import blob_path
from compatkit.registry.layout import check_collects
from compatkit.registry.layout_scan import Aside, scan
from compatkit.registry.maintenance.ages import Ages
from compatkit.registry.maintenance.marks import Marker
from compatkit.registry.names import check_digest
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.store import Store

_AT_ONCE = Ages(math.inf, 0)
"""Everything is old, whatever the clocks say; all drafts are marked from, so that none counts as abandoned."""


@attrs.frozen
class PurgedWeights:
    """Weights of withdrawn versions.

    Attributes:
        digest: Digest of the blob.
        versions: ``name@version`` of the withdrawn versions.
        paths: Files with these bytes, relative to the registry; also damaged copies in ``quarantine``.
        bytes: Bytes of these files.
        needed_by: What still refers to the weights, which therefore stay; empty if nothing does.
    """

    digest: str
    versions: tuple[str, ...]
    paths: tuple[str, ...]
    bytes: int
    needed_by: str = ""


@attrs.frozen(repr=False)
class PurgePlan(Shown):
    """Plan of a purge, and its result; nothing changes before ``apply``.

    Attributes:
        weights: Weights to delete, with all their copies.
        needed: Weights that stay, because something else refers to them.
        unreadable: Withdrawn versions whose manifest cannot be read, so that their weights are unknown.
        applied: Whether ``weights`` are deleted.
    """

    weights: tuple[PurgedWeights, ...]
    needed: tuple[PurgedWeights, ...]
    unreadable: tuple[str, ...]
    store: Store = attrs.field(repr=False, eq=False)
    applied: bool = False
    lost: frozenset[str] = attrs.field(default=frozenset(), repr=False)

    def __str__(self) -> str:
        verb = "deleted" if self.applied else "to delete"
        rows = [
            (verb, ", ".join(item.versions), f"{len(item.paths):,} files", f"{item.bytes:,} bytes")
            for item in self.weights
        ]
        rows += [
            ("stays", ", ".join(item.versions), f"needed by {item.needed_by}", "") for item in self.needed
        ]
        rows += [("unknown", version, "its manifest cannot be read", "") for version in self.unreadable]
        first = "nothing to purge" if not self.weights else f"{self.bytes:,} bytes {verb}"
        return "\n".join([first, *aligned(rows)] if rows else [first])

    @property
    def bytes(self) -> int:
        """Bytes of all files to delete."""
        return sum(item.bytes for item in self.weights)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "applied": self.applied,
            "bytes": self.bytes,
            "weights": [attrs.asdict(item) for item in self.weights],
            "needed": [attrs.asdict(item) for item in self.needed],
            "unreadable": list(self.unreadable),
        }

    def apply(self, progress: Progress | None = None) -> PurgePlan:
        """Delete the weights, except those that something refers to by now.

        A killed call leaves the rest in ``blobs`` or ``trash``; the same call continues.

        Args:
            progress: Function called with the number of references followed.

        Returns:
            The plan as it was carried out.

        Raises:
            IntegrityError: A reference or document is damaged; nothing more is deleted, and moved files are restored.
            LayoutError: This version may only read the registry.
            EnvironmentFailure: No write permission, or the device failed; repeat the call to continue.
        """
        store, root = self.store, self.store.root
        store.layout.check_writer(root)
        marker = Marker(root, _AT_ONCE, withdrawn=True, lost=self.lost, all_drafts=True)
        digests = [item.digest for item in self.weights]
        with environment("purge weights in", root):
            marks = marker.mark(progress)
            moved = [digest for digest in digests if digest not in marks.reachable]
            for digest in moved:
                _move_to_trash(store, digest)
            try:
                marks = marker.mark(progress)
            except Exception:
                for digest in moved:
                    store.objects.retain(digest)
                raise
            needed = dict.fromkeys(digest for digest in digests if digest in marks.reachable)
            for digest in needed:
                store.objects.retain(digest)
            gone = {digest: _delete_copies(root, digest) for digest in digests if digest not in needed}
        done = [attrs.evolve(item, paths=gone[item.digest]) for item in self.weights if item.digest in gone]
        stay = [
            attrs.evolve(item, needed_by=marks.who_needs(item.digest))
            for item in self.weights
            if item.digest in needed
        ]
        return attrs.evolve(self, weights=tuple(done), needed=(*self.needed, *stay), applied=True)


def plan(
    store: Store,
    patterns: str | Sequence[str] | None = None,
    *,
    lost: Collection[str] = (),
    progress: Progress | None = None,
) -> PurgePlan:
    """Find the weights of withdrawn versions, their copies, and what still refers to them; reads only.

    Args:
        store: Registry to purge.
        patterns: Withdrawn versions, ``NAME`` or ``NAME@VERSION``, each part a glob; None for all.
        lost: As for ``gc.plan``.
        progress: Function called with the number of references followed.

    Raises:
        NotFound: A pattern matches no withdrawn version.
        UsageError: The registry is a remote.
        IntegrityError: A reference or document is missing or damaged, so its references are unknown.
        EnvironmentFailure: No read permission, or the device failed.
    """
    check_collects(store.root)
    missing = frozenset(map(check_digest, lost))
    marks = Marker(store.root, _AT_ONCE, withdrawn=True, lost=missing, all_drafts=True).mark(progress)
    users: dict[str, list[str]] = {}
    unreadable: list[str] = []
    for label, digest in _withdrawn(store, patterns):
        try:
            users.setdefault(store.manifest(digest).payload.file.blob, []).append(label)
        except IntegrityError:
            unreadable.append(label)
    weights: list[PurgedWeights] = []
    needed: list[PurgedWeights] = []
    with environment("read", store.root):
        for blob, labels in sorted(users.items()):
            paths = tuple(_copies(store.root, blob))
            size = sum(os.lstat(store.root / path).st_size for path in paths)
            item = PurgedWeights(blob, tuple(labels), paths, size, marks.who_needs(blob))
            if item.needed_by:
                needed.append(item)
            elif paths:
                weights.append(item)
    return PurgePlan(tuple(weights), tuple(needed), tuple(unreadable), store, lost=missing)


def _withdrawn(store: Store, patterns: str | Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """Yield label and manifest digest of the withdrawn versions that the patterns match."""
    wanted = (
        None if patterns is None else texts_of(patterns, "patterns", "a name or NAME@VERSION, globs allowed")
    )
    matched: set[str] = set()
    for name in store.references.names():
        for version in sorted(store.references.withdrawn(name)):
            label = f"{name}@{version}"
            matching = [pattern for pattern in wanted or () if _matches(pattern, name, label)]
            matched.update(matching)
            digest = store.references.digest(name, version) if wanted is None or matching else None
            if digest is not None:
                yield label, digest
    for pattern in wanted or ():
        if pattern not in matched:
            raise NotFound(
                f"{pattern!r:.100} matches no withdrawn version. Withdraw it first: `compatkit withdraw NAME@VERSION "
                "--reason TEXT`.",
                subject=pattern,
            )


def _matches(pattern: str, name: str, label: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(label, pattern)


def _copies(root: Path, digest: str) -> Iterator[str]:
    """Yield the paths of all files with the bytes of a blob, and of its damaged copies.

    In an order in which they may be deleted: a damaged copy alone would make the blob look lost, and not collected.
    """
    path, digits = blob_path(digest), digest.removeprefix("sha256:")
    for entry in scan(root, "tmp", "quarantine", "trash"):
        if not isinstance(entry, Aside):
            durable.check_folders(root / entry.path, root)
        elif entry.folder != "tmp":
            if entry.file.startswith(f"{digits}-"):
                yield entry.path
        elif _is_left_behind(root / entry.path) and _digest_of(root / entry.path) == digits:
            yield entry.path
    if durable.file_state(root / path) is not None:
        yield path


def _is_left_behind(path: Path) -> bool:
    """Return whether the process that wrote a draft is gone from this machine."""
    state = durable.file_state(path)
    return state is not None and Ages(state.st_mtime, 0).is_abandoned(path.name, state)


def _digest_of(path: Path) -> str:
    with suppress(FileNotFoundError), path.open("rb") as file:  # finished meanwhile
        return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


def _move_to_trash(store: Store, digest: str) -> None:
    path = store.objects.path(digest)
    durable.make_folder(store.root / "trash", store.root)
    durable.check_folders(path.parent, store.root)
    with suppress(FileNotFoundError):  # in trash already, or collected
        durable.move(path, store.root / "trash" / f"{path.name}-{durable.temporary(path).name}")


def _delete_copies(root: Path, digest: str) -> tuple[str, ...]:
    """Delete all copies of a blob, and return their paths."""
    deleted: list[str] = []
    for path in [*_copies(root, digest)]:
        with suppress(FileNotFoundError):  # restored or collected meanwhile
            durable.step("unlink", root / path)
            os.unlink(root / path)
            deleted.append(path)
    for folder in sorted({os.path.dirname(path) for path in deleted}):
        durable.sync_folder(root / folder)
    return tuple(deleted)
