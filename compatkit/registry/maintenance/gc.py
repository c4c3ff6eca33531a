"""Garbage collection: unreferenced blobs are moved to ``trash``, and deleted after a grace time.

It needs no lock, even if others publish or collect at the same time. A publish writes the draft of a reference, checks
that all blobs exist and are young, then links the draft to its name. A collection marks from all drafts and references,
moves old unmarked blobs to ``trash``, and marks again; newly marked blobs are moved back. It deletes only blobs that
were already in ``trash`` before a mark that did not reach them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, UsageError
from compatkit.foundation.display import Shown, aligned
from compatkit.registry import Progress
from compatkit.registry import disk as durable
from compatkit.registry.blobs import GRACE_SECONDS, RENEW_SECONDS, Objects
from compatkit.registry.layout import check_collects
from compatkit.registry.maintenance.ages import Ages, UnneededFile, clock, list_unneeded
from compatkit.registry.maintenance.marks import Marker, Marks
from compatkit.registry.names import check_digest
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.store import Store

GRACE = timedelta(seconds=GRACE_SECONDS)
SAFE = timedelta(seconds=RENEW_SECONDS, hours=12)
"""A shorter grace is safe only without other writers: blobs that a publish relies on may already be ``RENEW_SECONDS``
old, and an import may copy for hours before it drafts its first version."""


KINDS = ("blobs", "withdrawn", "drafts", "trash", "back", "quarantine", "young", "waiting")
"""Names of the file lists in a plan."""


@attrs.define
class CollectionResult:
    """Result of a collection.

    Attributes:
        moved: Digests of blobs moved to ``trash``.
        moved_bytes: Bytes of these blobs, which are not freed yet.
        back: Digests of restored blobs, because something refers to them.
        drafts: Number of deleted drafts.
        deleted: Number of blobs deleted from ``trash``.
        freed: Freed bytes; a file with another hard link frees none.
    """

    moved: list[str] = attrs.field(factory=list)
    moved_bytes: int = 0
    back: list[str] = attrs.field(factory=list)
    drafts: int = 0
    deleted: int = 0
    freed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return attrs.asdict(self)


@attrs.frozen(repr=False)
class CollectionPlan(Shown):
    """Plan of a collection; nothing changes before ``apply``.

    Attributes:
        grace: Grace time; younger files stay.
        blobs: Unreferenced blobs, to be moved to ``trash``.
        withdrawn: Weights used only by versions withdrawn longer ago than the grace; also to be moved.
        drafts: Files of aborted processes, to be deleted.
        trash: Blobs in ``trash`` for longer than the grace, to be deleted.
        back: Blobs in ``trash`` that something refers to, to be moved back.
        quarantine: Damaged files, which are never deleted here.
        young: Unreferenced blobs within the grace.
        waiting: Blobs in ``trash`` within the grace.
        referenced: Number of referenced digests.
    """

    grace: timedelta
    blobs: tuple[UnneededFile, ...]
    withdrawn: tuple[UnneededFile, ...]
    drafts: tuple[UnneededFile, ...]
    trash: tuple[UnneededFile, ...]
    back: tuple[UnneededFile, ...]
    quarantine: tuple[UnneededFile, ...]
    young: tuple[UnneededFile, ...]
    waiting: tuple[UnneededFile, ...]
    referenced: int
    store: Store = attrs.field(repr=False, eq=False)
    collect_withdrawn: bool = attrs.field(default=False, repr=False)
    lost: frozenset[str] = attrs.field(default=frozenset(), repr=False)

    def __str__(self) -> str:
        rows = [
            (name, f"{len(files):,} files", f"{self.bytes[name]:,} bytes")
            for name in KINDS
            if (files := getattr(self, name))
        ]
        first = "nothing to collect" if self.is_empty else "what apply() would collect"
        lines = [f"{first}; {self.referenced:,} blobs are in use and stay"]
        return "\n".join([*lines, *aligned(rows)] if rows else lines)

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of each file list by name."""
        return {name: sum(file.bytes for file in getattr(self, name)) for name in KINDS}

    @property
    def is_empty(self) -> bool:
        """Whether ``apply`` would do nothing."""
        return not any((self.blobs, self.withdrawn, self.drafts, self.trash, self.back))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: all files, and totals."""
        lists = {name: [attrs.asdict(file) for file in getattr(self, name)] for name in KINDS}
        return {
            "grace_seconds": self.grace.total_seconds(),
            "kept": self.referenced,
            "totals": {name: {"files": len(lists[name]), "bytes": size} for name, size in self.bytes.items()},
            **lists,
        }

    def apply(self, progress: Progress | None = None) -> CollectionResult:
        """Carry out the plan, except for files that were referenced or touched since.

        Args:
            progress: Function called with done, total and a description.

        Raises:
            IntegrityError: A reference or document is damaged; deletion stops, and moved files are restored.
            LayoutError: This version may only read the registry.
            EnvironmentFailure: No write permission, or the device failed; repeat the call to continue.
        """
        return _Sweep(self, self.store.root, self.store.objects).run(progress)


def plan(
    store: Store,
    *,
    grace: timedelta = GRACE,
    withdrawn: bool = False,
    alone: bool = False,
    lost: Collection[str] = (),
    progress: Progress | None = None,
) -> CollectionPlan:
    """Find what could be collected; reads only.

    Args:
        store: Registry to collect in.
        grace: Grace time; files changed within it stay, because a publish may be about to refer to them.
        withdrawn: Whether to collect weights of versions withdrawn longer ago than the grace.
        alone: Whether the caller guarantees that no other process is writing, which allows a short grace.
        lost: Digests of documents lost for good; blobs that only they refer to may be collected.
        progress: Function called with done, total and a description.

    Raises:
        UsageError: The grace is negative, or short without ``alone``; or the registry is a remote.
        IntegrityError: A reference or document is missing or damaged, so its references are unknown.
        EnvironmentFailure: No read permission, or the device failed.
    """
    check_collects(store.root)
    if grace < timedelta(0):
        raise UsageError(f"Expected a grace time of 0 or more, got {grace}.")
    if grace < SAFE and not alone:
        raise UsageError(
            f"Expected a grace of at least {SAFE}, got {grace}: blobs that another process is about to publish could "
            "be removed. If nobody else is writing to this registry, pass alone=True (--alone)."
        )
    root, ages = store.root, Ages(time.time(), grace.total_seconds())
    missing = frozenset(map(check_digest, lost))
    marks = Marker(root, ages, withdrawn, missing).mark(progress)
    files: dict[str, list[UnneededFile]] = {kind: [] for kind in KINDS}
    with environment("read", root):
        for blob in marks.blobs:
            if blob.digest in marks.reachable:
                continue  # referenced: no need to look at the file
            if (state := durable.file_state(root / blob.path)) is not None:
                unneeded = "withdrawn" if blob.digest in marks.collectable else "blobs"
                kind = unneeded if ages.is_old(state) else "young"
                files[kind].append(UnneededFile(blob.path, blob.digest, state.st_size, ages.of(state)))
        files["drafts"], trash, files["quarantine"] = list_unneeded(root, ages)
        back = {
            file.digest: file
            for file in trash
            if file.digest in marks.reachable and store.objects.size(str(file.digest)) is None
        }
        for file in trash:
            kind = "trash" if file.age >= ages.grace else "waiting"
            files["back" if back.get(str(file.digest)) is file else kind].append(file)
    lists = {kind: tuple(members) for kind, members in files.items()}
    return CollectionPlan(
        grace,
        **lists,
        referenced=len(marks.reachable),
        store=store,
        collect_withdrawn=withdrawn,
        lost=missing,
    )


@attrs.define(eq=False)
class _Sweep:
    """One run of a collection; see ``CollectionPlan.apply``."""

    plan: CollectionPlan
    root: Path
    objects: Objects
    done: CollectionResult = attrs.field(factory=CollectionResult)
    _moved: set[str] = attrs.field(factory=set)

    def run(self, progress: Progress | None) -> CollectionResult:
        """Delete abandoned drafts and old trash, move unreferenced blobs, mark again, restore referenced ones."""
        self.plan.store.layout.check_writer(self.root)
        with environment("collect garbage in", self.root):
            ages = self._now()
            marker = Marker(self.root, ages, self.plan.collect_withdrawn, self.plan.lost, all_drafts=True)
            self._delete_drafts(ages)  # first, so that no version can be linked from them
            # listed before the mark: only what was in trash before it may be deleted
            listed = list_unneeded(self.root, ages)[1]
            marks = marker.mark(progress)
            # before more is moved there, so that a full disk has room for the new names
            self._empty_trash(listed, marks, progress)
            self._move_to_trash(marks, ages, progress)
            if self._moved:
                listed = list_unneeded(self.root, ages)[1]
                try:
                    marks = marker.mark(progress)
                except CompatkitError:
                    self._undo()
                    raise
                self._empty_trash(listed, marks, progress)
        return self.done

    def _delete_drafts(self, ages: Ages) -> None:
        for draft in self.plan.drafts:
            path = self.root / draft.path
            with suppress(FileNotFoundError):  # its process or another collection was faster
                if ages.is_abandoned(path.name, os.lstat(path)):
                    self._delete(path)
                    self.done.drafts += 1

    def _move_to_trash(self, marks: Marks, ages: Ages, progress: Progress | None) -> None:
        """Move planned blobs to ``trash`` that are still unmarked and old."""
        planned = [*self.plan.blobs, *self.plan.withdrawn]
        if planned:
            durable.make_folder(self.root / "trash", self.root)
        for count, file in enumerate(planned):
            if progress is not None:
                progress(count, len(planned), "moving to trash")
            if file.digest is not None and file.digest not in marks.reachable:
                with suppress(FileNotFoundError):  # another collection was faster
                    self._move_blob(file.digest, ages)

    def _move_blob(self, digest: str, ages: Ages) -> None:
        path = self.objects.path(digest)
        durable.check_folders(path.parent, self.root)
        before = durable.file_state(path)
        if before is None or not ages.is_old(before):
            return
        trash_path = self.root / "trash" / f"{path.name}-{durable.temporary(path).name}"
        durable.move(path, trash_path)
        self._moved.add(f"trash/{trash_path.name}")
        if not ages.is_old(os.lstat(trash_path)):  # touched by a publish that is about to refer to it
            self.objects.retain(digest)
            return
        with suppress(PermissionError):  # another user's file; its ctime shows when it was moved
            durable.touch(trash_path)
        self.done.moved.append(digest)
        self.done.moved_bytes += before.st_size

    def _empty_trash(self, listed: list[UnneededFile], marks: Marks, progress: Progress | None) -> None:
        """Restore referenced blobs that exist only in ``trash``; delete planned ones that are old enough."""
        for digest in sorted({file.digest for file in listed if file.digest is not None} & marks.reachable):
            if self.objects.size(digest) is None and self.objects.retain(digest):
                self.done.back.append(digest)
            if digest in self.done.moved:
                self.done.moved.remove(digest)
                self.done.moved_bytes -= next(file.bytes for file in listed if file.digest == digest)
        planned = {file.path for file in self.plan.trash} | self._moved
        ages = self._now()
        for count, file in enumerate(listed):
            if progress is not None:
                progress(count, len(listed), "deleting")
            if file.path not in planned:
                continue
            if file.digest in marks.reachable and self.objects.size(str(file.digest)) is None:
                continue  # restoring failed; this is the only copy
            path = self.root / file.path
            with suppress(FileNotFoundError):  # restored, or deleted by another collection
                if ages.is_expired(os.lstat(path)):
                    self._delete(path)
                    self.done.deleted += 1

    def _now(self) -> Ages:
        return Ages(clock(self.root), self.plan.grace.total_seconds())

    def _delete(self, path: Path) -> None:
        state = os.lstat(path)
        durable.step("unlink", path)
        os.unlink(path)
        if state.st_nlink == 1:
            self.done.freed += state.st_size

    def _undo(self) -> None:
        """Restore moved blobs, because an unreadable document may refer to them."""
        for digest in self.done.moved:
            with suppress(EnvironmentFailure):  # it stays in trash; reading restores it from there
                self.objects.retain(digest)
