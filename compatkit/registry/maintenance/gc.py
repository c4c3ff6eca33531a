"""Garbage collection: unreferenced blobs are moved to ``trash``, and deleted a grace time later.

Safe beside publishers and other collectors, without a lock. A publish makes the draft of a reference, then checks that
everything is there and young, then links the draft to its name. A collection marks from all drafts and references,
moves to ``trash`` what is dead and old, and marks again: what is referred to by now comes back. Only what was in
``trash`` before a mark that found it dead is deleted.
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

from compatkit.contracts.display import Shown, aligned
from compatkit.errors import CompatkitError, EnvironmentFailure, UsageError
from compatkit.registry import Progress
from compatkit.registry import disk as durable
from compatkit.registry.blobs import GRACE_SECONDS, HELD_SECONDS, Objects
from compatkit.registry.maintenance.leftovers import Ages, Leftover, aside, clock, is_empty, remove_folders
from compatkit.registry.maintenance.marks import Marker, Marks
from compatkit.registry.names import check_digest
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.store import Store

GRACE = timedelta(seconds=GRACE_SECONDS)
SAFE = timedelta(seconds=HELD_SECONDS, hours=12)
"""A shorter grace is safe only without other writers. Bytes that a publish relies on may be ``HELD_SECONDS`` old
already, and an import copies bytes for hours before it makes the draft of its first version."""


KINDS = ("blobs", "withdrawn", "drafts", "trash", "back", "quarantine", "young", "waiting")
"""The lists of files in a plan."""


@attrs.define
class Collected:
    """What a collection did.

    Attributes:
        moved: Digests of blobs that were moved to ``trash``.
        moved_bytes: Their bytes, which are not free yet.
        back: Digests of blobs that were moved back, because something refers to them.
        drafts: Number of drafts that were deleted.
        deleted: Number of blobs in ``trash`` that were deleted.
        folders: Number of folders that were removed.
        freed: Bytes that the file system got back; a file with another hard link frees none.
    """

    moved: list[str] = attrs.field(factory=list)
    moved_bytes: int = 0
    back: list[str] = attrs.field(factory=list)
    drafts: int = 0
    deleted: int = 0
    folders: int = 0
    freed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return attrs.asdict(self)


@attrs.frozen(repr=False)
class CollectionPlan(Shown):
    """What a collection would do; nothing is done before ``apply``.

    Attributes:
        grace: What is younger is left alone.
        blobs: Those that nothing refers to, which go to ``trash``.
        withdrawn: Weights of versions withdrawn longer ago than the grace, which nothing else uses; they too go there.
        drafts: Files of processes that did not finish, which are deleted.
        trash: Blobs moved there longer than the grace ago, which are deleted.
        back: Blobs in ``trash`` that something refers to, which are moved back.
        quarantine: Damaged files, which are never deleted here.
        folders: Empty ones, which are removed.
        young: Unreferenced blobs that are too young.
        waiting: Blobs in ``trash`` that have not been there for the grace.
        kept: Number of digests that something refers to.
    """

    grace: timedelta
    blobs: tuple[Leftover, ...]
    withdrawn: tuple[Leftover, ...]
    drafts: tuple[Leftover, ...]
    trash: tuple[Leftover, ...]
    back: tuple[Leftover, ...]
    quarantine: tuple[Leftover, ...]
    folders: tuple[str, ...]
    young: tuple[Leftover, ...]
    waiting: tuple[Leftover, ...]
    kept: int
    store: Store = attrs.field(repr=False, eq=False)
    spares: bool = attrs.field(default=False, repr=False)
    lost: frozenset[str] = attrs.field(default=frozenset(), repr=False)

    def __str__(self) -> str:
        rows = [
            (name, f"{len(getattr(self, name)):,} files", f"{size:,} bytes")
            for name, size in self.bytes.items()
        ]
        found = [one for one in rows if getattr(self, one[0])]
        first = "nothing to collect" if self.is_empty else "what apply() would collect"
        return "\n".join(
            [f"{first}; {self.kept:,} digests are referred to and stay", *(aligned(found) if found else [])]
        )

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of each kind, by its name here."""
        return {name: sum(one.bytes for one in getattr(self, name)) for name in KINDS}

    @property
    def is_empty(self) -> bool:
        """Whether ``apply`` would do nothing."""
        return not any((self.blobs, self.withdrawn, self.drafts, self.trash, self.back, self.folders))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: every file, and the totals."""
        lists = {name: [attrs.asdict(one) for one in getattr(self, name)] for name in KINDS}
        return {
            "grace_seconds": self.grace.total_seconds(),
            "kept": self.kept,
            "totals": {name: {"files": len(lists[name]), "bytes": size} for name, size in self.bytes.items()},
            **lists,
            "folders": list(self.folders),
        }

    def apply(self, progress: Progress | None = None) -> Collected:
        """Collect what is planned, except what is referred to or was touched by now.

        Args:
            progress: Called with done, total and what is being done.

        Raises:
            IntegrityError: A reference or document is damaged; nothing more was deleted, what was moved out came back.
            LayoutError: This version may only read the registry.
            EnvironmentFailure: No right to write, device failed; the same call continues where it stopped.
        """
        return _Sweep(self, self.store.root, self.store.objects).run(progress)


def plan(
    store: Store,
    *,
    grace: timedelta = GRACE,
    withdrawn: bool = False,
    alone: bool = False,
    lost: Collection[str] = (),
    indexed: bool = False,
    progress: Progress | None = None,
) -> CollectionPlan:
    """Find what could be collected; reads only.

    Args:
        store: The registry.
        grace: What changed within this time is left alone: a publish may be about to refer to it.
        withdrawn: Whether weights of versions that were withdrawn longer ago than the grace may go.
        alone: The caller guarantees that nobody else is writing, so that the grace may be short.
        lost: Digests of documents that are lost for good; what only they refer to may go.
        indexed: Whether the index is asked what versions refer to; it does not know which were withdrawn or lost. It
            only saves time: ``CollectionPlan.apply`` asks the files in any case, and takes out nothing that they keep.
        progress: Called with done, total and what is being done.

    Raises:
        UsageError: The grace is below 0, or short without ``alone``.
        IntegrityError: A reference or document is missing or damaged, so that what it refers to is not known.
        EnvironmentFailure: No right to read, device failed.
    """
    if grace < timedelta(0):
        raise UsageError(f"The grace is a time of 0 or more, got {grace}.")
    if grace < SAFE and not alone:
        raise UsageError(
            f"A grace of {grace} is below {SAFE}: what somebody is about to publish could be taken away from them. "
            f"Take {SAFE} or more; or, if nobody else is writing to this registry, say so (alone=True, --alone)."
        )
    root, ages = store.root, Ages(time.time(), grace.total_seconds())
    missing = frozenset(map(check_digest, lost))
    referenced = known(store, progress) if indexed and not withdrawn and not missing else None
    marks = Marker(root, ages, withdrawn, missing).mark(progress, referenced)
    found: dict[str, list[Leftover]] = {kind: [] for kind in KINDS}
    with environment("read", root):
        for blob in marks.blobs:
            if blob.digest in marks.alive:
                continue  # most are; what is kept need not be looked at
            if (state := durable.file_state(root / blob.path)) is not None:
                dead = "withdrawn" if blob.digest in marks.spared else "blobs"
                kind = dead if ages.old(state) else "young"
                found[kind].append(Leftover(blob.path, blob.digest, state.st_size, ages.of(state)))
        found["drafts"], trash, found["quarantine"] = aside(root, ages)
        back = {
            one.digest: one
            for one in trash
            if one.digest is not None and one.digest in marks.alive and store.objects.size(one.digest) is None
        }
        for one in trash:
            kind = "trash" if one.age >= ages.grace else "waiting"
            found["back" if back.get(one.digest or "") is one else kind].append(one)
        empty = tuple(one for one in marks.empty if is_empty(root / one, ages))
    files = {kind: tuple(those) for kind, those in found.items()}
    return CollectionPlan(
        grace=grace,
        folders=empty,
        kept=len(marks.alive),
        store=store,
        spares=withdrawn,
        lost=missing,
        **files,
    )


def known(store: Store, progress: Progress | None = None) -> set[str] | None:
    """Return what versions refer to, from the index; None if it is missing or reports damage.

    Making an index takes several times as long as reading the files. It misses version files that another program
    rewrote in place, and manifests that went missing since it read them. So a plan that is made with it may name blobs
    that ``apply`` then leaves, or leave out some that are dead; what is deleted depends on the files alone.

    Args:
        store: The registry.
        progress: Called with done, total and the name that is read, where the index is not up to date.

    Raises:
        IntegrityError: The folder ``refs`` is a symbolic link.
        EnvironmentFailure: The files below ``refs`` cannot be read.
    """
    if not store.index.path.exists():
        return None
    store.index.refresh(progress=progress)
    return None if store.index.status().damaged else store.index.referenced()


@attrs.define(eq=False)
class _Sweep:
    """One collection; see ``CollectionPlan.apply``."""

    plan: CollectionPlan
    root: Path
    objects: Objects
    done: Collected = attrs.field(factory=Collected)
    _taken: set[str] = attrs.field(factory=set)

    def run(self, progress: Progress | None) -> Collected:
        """Delete abandoned drafts and old trash, move out what is dead, mark again, move back what is not."""
        self.plan.store.layout.check_writer(self.root)
        with environment("collect garbage in", self.root):
            ages = self._now()
            marker = Marker(self.root, ages, self.plan.spares, self.plan.lost, every_draft=True)
            self._delete_drafts(ages)  # first: they keep nothing, and nothing can be linked from them
            # listed before the mark: what that finds dead may be deleted
            listed = aside(self.root, ages)[1]
            marks = marker.mark(progress)
            # before more is moved there, so that a full disk has room for the names
            self._empty_trash(listed, marks, progress)
            self._take_out(marks, ages, progress)
            if self._taken:
                listed = aside(self.root, ages)[1]
                try:
                    marks = marker.mark(progress)
                except CompatkitError:
                    self._undo()
                    raise
                self._empty_trash(listed, marks, progress)
            self._remove_folders()
        return self.done

    def _delete_drafts(self, ages: Ages) -> None:
        for one in self.plan.drafts:
            path = self.root / one.path
            with suppress(FileNotFoundError):  # its process finished it, or another collection was faster
                if ages.given_up(path.name, os.lstat(path)):
                    self._delete(path)
                    self.done.drafts += 1

    def _take_out(self, marks: Marks, ages: Ages, progress: Progress | None) -> None:
        """Move to ``trash`` what is planned, still dead and still old."""
        planned = [*self.plan.blobs, *self.plan.withdrawn]
        if planned:
            durable.make_folder(self.root / "trash", self.root)
        for count, one in enumerate(planned):
            if progress is not None:
                progress(count, len(planned), "taking out")
            if one.digest is not None and one.digest not in marks.alive:
                with suppress(FileNotFoundError):  # another collection was faster
                    self._take(one.digest, ages)

    def _take(self, digest: str, ages: Ages) -> None:
        path = self.objects.path(digest)
        durable.check_folders(path.parent, self.root)
        before = durable.file_state(path)
        if before is None or not ages.old(before):
            return
        away = self.root / "trash" / f"{path.name}-{durable.temporary(path).name}"
        durable.move(path, away)
        self._taken.add(f"trash/{away.name}")
        if not ages.old(os.lstat(away)):  # touched meanwhile: a publish is about to refer to it
            self.objects.hold(digest)
            return
        with suppress(PermissionError):  # another user's; that its state changed now says when it was moved
            durable.touch(away)
        self.done.moved.append(digest)
        self.done.moved_bytes += before.st_size

    def _empty_trash(self, listed: list[Leftover], marks: Marks, progress: Progress | None) -> None:
        """Move back what is referred to and only in ``trash``; delete what was planned and is old enough."""
        for digest in sorted({one.digest for one in listed if one.digest is not None} & marks.alive):
            if self.objects.size(digest) is None and self.objects.hold(digest):
                self.done.back.append(digest)
            if digest in self.done.moved:
                self.done.moved.remove(digest)
                self.done.moved_bytes -= next(one.bytes for one in listed if one.digest == digest)
        planned = {one.path for one in self.plan.trash} | self._taken
        ages = self._now()
        for count, one in enumerate(listed):
            if progress is not None:
                progress(count, len(listed), "deleting")
            if one.path not in planned or one.digest is None:
                continue
            if one.digest in marks.alive and self.objects.size(one.digest) is None:
                continue  # it could not be brought back; this is the only copy
            path = self.root / one.path
            with suppress(FileNotFoundError):  # brought back, or another collection was faster
                if ages.long_out(os.lstat(path)):
                    self._delete(path)
                    self.done.deleted += 1

    def _remove_folders(self) -> None:
        emptied = {f"blobs/sha256/{digest[7:9]}" for digest in self.done.moved}
        self.done.folders = remove_folders(self.root, {*self.plan.folders, *emptied}, self._now())

    def _now(self) -> Ages:
        return Ages(clock(self.root), self.plan.grace.total_seconds())

    def _delete(self, path: Path) -> None:
        state = os.lstat(path)
        durable.step("unlink", path)
        os.unlink(path)
        if state.st_nlink == 1:
            self.done.freed += state.st_size

    def _undo(self) -> None:
        """Move back what was moved out: a reference to it may be among what could not be read."""
        for digest in self.done.moved:
            with suppress(EnvironmentFailure):  # stays in trash, from where reading brings it back
                self.objects.hold(digest)
