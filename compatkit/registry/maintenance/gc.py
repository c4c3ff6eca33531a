"""Collecting garbage: blobs that nothing refers to are taken out, and deleted a grace time later.

Safe beside publishers and other collectors, without a lock. Whoever publishes makes the draft of a reference, then sees
that everything is there and young, then links the draft to its name. Collecting looks at all drafts and references,
moves to ``trash`` what is dead and old, and looks at them again: what was referred to in between comes back. Only what
was in ``trash`` before a look that found it dead is deleted.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.display import Shown, aligned
from compatkit.errors import CompatkitError, EnvironmentFailure, UsageError
from compatkit.registry import disk as durable
from compatkit.registry.blobs import GRACE_SECONDS, HELD_SECONDS, Objects
from compatkit.registry.maintenance.leftovers import Ages, Leftover, aside, clock, is_empty, remove_folders
from compatkit.registry.maintenance.marks import Marker, Marks
from compatkit.registry.names import check_digest
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.store import Store

Progress = Callable[[int, int, str], None]
GRACE = timedelta(seconds=GRACE_SECONDS)
SAFE = timedelta(seconds=HELD_SECONDS, hours=12)
"""A shorter grace is for whoever is alone. What a publisher found there may be ``HELD_SECONDS`` old already, and an
import copies all bytes, for hours, before it makes the draft of its first version."""


KINDS = ("blobs", "withdrawn", "drafts", "trash", "back", "quarantine", "young", "waiting")
"""The lists of files in a plan."""


@attrs.define
class Collected:
    """What a collection did.

    Attributes:
        moved: Digests of blobs that were taken out to ``trash``.
        moved_bytes: Their bytes, which are not free yet.
        back: Digests of blobs that came back, because something refers to them.
        drafts: Number of drafts that were deleted.
        deleted: Number of blobs in ``trash`` that were deleted.
        folders: Number of folders that were removed.
        freed: Bytes that the file system got back: a file with another name elsewhere frees none.
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
class Plan(Shown):
    """What a collection would do; nothing is done before ``apply``.

    Attributes:
        grace: What is younger is left alone.
        blobs: Those that nothing refers to, which go to ``trash``.
        withdrawn: Weights of versions withdrawn longer ago than the grace, which nothing else uses; they too go there.
        drafts: Files of processes that did not finish, which are deleted.
        trash: Blobs taken out longer than the grace ago, which are deleted.
        back: Blobs in ``trash`` that something refers to, which come back.
        quarantine: Damaged files; looked at by people, never deleted here.
        folders: Those that hold nothing, which are removed.
        young: Blobs that nothing refers to and that are left alone for now.
        waiting: Blobs in ``trash`` that are left there for now.
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
        """Collect what is planned, unless something refers to it by now or it is young again.

        Args:
            progress: Called with done, total and what is being done.

        Raises:
            IntegrityError: A reference or document is damaged; nothing more was deleted, what was taken out came back.
            LayoutError: This version may only read the registry.
            EnvironmentFailure: No right to write, device failed; the same call goes on where it stopped.
        """
        return _Sweep(self, self.store.root, self.store.objects).run(progress)


def plan(
    store: Store,
    *,
    grace: timedelta = GRACE,
    withdrawn: bool = False,
    alone: bool = False,
    lost: Collection[str] = (),
    referenced: Collection[str] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Find what could be collected; reads only.

    Args:
        store: The registry.
        grace: What changed within this time is left alone: somebody may be about to refer to it.
        withdrawn: Whether weights of versions that were withdrawn longer ago than the grace may go.
        alone: The caller vouches that nobody else is writing, so that the grace may be short.
        lost: Digests of manifests, results or other documents that are lost for good; what only they refer to may go.
        referenced: What versions refer to, if somebody knows it, such as ``known``; not together with ``withdrawn`` or
            ``lost``. It only saves time: ``Plan.apply`` looks at the files in any case, and takes out nothing that
            they keep.
        progress: Called with done, total and what is being done.

    Raises:
        UsageError: The grace is below 0, or short without ``alone``; or only the files can tell, and
            ``referenced`` is given.
        IntegrityError: A reference or document is missing or damaged, so that what it refers to is not known.
        EnvironmentFailure: No right to read, device failed.
    """
    _check_grace(grace, alone)
    if referenced is not None and (withdrawn or lost):
        raise UsageError(
            "what versions refer to (referenced=) does not tell which of them were withdrawn or lost; leave it out."
        )
    ages, missing = Ages(time.time(), grace.total_seconds()), frozenset(map(check_digest, lost))
    marks = Marker(store.root, missing).mark(
        ages.intends, ages.old if withdrawn else None, progress, referenced
    )
    with environment("read", store.root):
        dead, spared, young = _blobs(store.root, marks, ages)
        drafts, trash, quarantine = aside(store.root, ages)
        back = _lacking(store, trash, marks)
        rest = [one for one in trash if one not in back]
        return Plan(
            grace,
            dead,
            spared,
            tuple(drafts),
            tuple(one for one in rest if one.age >= ages.grace),
            back,
            tuple(quarantine),
            tuple(one for one in marks.empty if is_empty(store.root / one, ages)),
            young,
            tuple(one for one in rest if one.age < ages.grace),
            len(marks.alive),
            store,
            withdrawn,
            missing,
        )


def known(store: Store, progress: Progress | None = None) -> set[str] | None:
    """Return what versions refer to as the index tells it; None where only the files can, or it would have to be made.

    Making one takes several times as long as the look at the files that it spares. The index misses version files that
    another program rewrote in place, and manifests that went missing since it read them. So a plan that is made with it
    may name blobs that ``apply`` then leaves, or leave out some that are dead; what is deleted depends on the files
    alone.

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
    status = store.index.status()
    return None if status.damaged else store.index.referenced()


def _blobs(
    root: Path, marks: Marks, ages: Ages
) -> tuple[tuple[Leftover, ...], tuple[Leftover, ...], tuple[Leftover, ...]]:
    """Return the dead blobs, the weights of withdrawn versions, and the dead that are too young."""
    dead: list[Leftover] = []
    spared: list[Leftover] = []
    young: list[Leftover] = []
    for blob in marks.blobs:
        if blob.digest in marks.alive:
            continue  # most are; what is kept need not be looked at
        with suppress(FileNotFoundError):  # another collection took it out
            state = os.lstat(root / blob.path)
            if stat.S_ISREG(state.st_mode):
                one = Leftover(blob.path, blob.digest, state.st_size, ages.of(state))
                (young if not ages.old(state) else spared if blob.digest in marks.spared else dead).append(
                    one
                )
    return tuple(dead), tuple(spared), tuple(young)


def _lacking(store: Store, trash: list[Leftover], marks: Marks) -> tuple[Leftover, ...]:
    """Return the blobs in ``trash`` that something refers to and that are nowhere else, one for each digest."""
    needed = {one.digest: one for one in trash if one.digest is not None and one.digest in marks.alive}
    return tuple(one for digest, one in needed.items() if store.objects.size(digest) is None)


def _check_grace(grace: timedelta, alone: bool) -> None:
    if grace < timedelta(0):
        raise UsageError(f"The grace is a time of 0 or more, got {grace}.")
    if grace < SAFE and not alone:
        raise UsageError(
            f"A grace of {grace} is below {SAFE}: what somebody is about to publish could be taken away from them. "
            f"Take {SAFE} or more; or, if nobody else is writing to this registry, say so (alone=True, --alone)."
        )


@attrs.define(eq=False)
class _Sweep:
    """One collection; see ``Plan.apply``."""

    plan: Plan
    root: Path
    objects: Objects
    done: Collected = attrs.field(factory=Collected)
    _taken: set[str] = attrs.field(factory=set)

    def run(self, progress: Progress | None) -> Collected:
        """Delete drafts and what was out for long enough, take out what is dead, look again, bring back what is not."""
        self.plan.store.layout.check_writer(self.root)
        with environment("collect garbage in", self.root):
            ages = self._now()
            marker = Marker(self.root, self.plan.lost)
            self._delete_drafts(ages)  # first, so that what nobody will finish keeps nothing
            # listed before the look: what that finds dead may be deleted
            listed = aside(self.root, ages)[1]
            marks = self._look(marker, ages, progress)
            # before others go there, so that a full disk has room for their names
            self._empty_trash(listed, marks, progress)
            self._take_out(marks, ages, progress)
            if self._taken:
                listed = aside(self.root, ages)[1]
                try:
                    marks = self._look(marker, ages, progress)
                except CompatkitError:
                    self._undo()
                    raise
                self._empty_trash(listed, marks, progress)
            self._remove_folders()
        return self.done

    def _look(self, marker: Marker, ages: Ages, progress: Progress | None) -> Marks:
        return marker.mark(ages.intends, ages.old if self.plan.spares else None, progress)

    def _delete_drafts(self, ages: Ages) -> None:
        for one in self.plan.drafts:
            path = self.root / one.path
            with suppress(FileNotFoundError):  # its process finished it, or another collection was faster
                if ages.given_up(path.name, os.lstat(path)):
                    self._delete(path)
                    self.done.drafts += 1

    def _take_out(self, marks: Marks, ages: Ages, progress: Progress | None) -> None:
        """Move to ``trash`` what is in the plan, still dead and still old."""
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
        before = os.lstat(path)
        if not stat.S_ISREG(before.st_mode) or not ages.old(before):
            return
        away = self.root / "trash" / f"{path.name}-{durable.temporary(path).name}"
        durable.move(path, away)
        self._taken.add(f"trash/{away.name}")
        if not ages.old(os.lstat(away)):  # touched at this moment: somebody is about to refer to it
            self.objects.hold(digest)
            return
        with suppress(PermissionError):  # another user's; that its state changed now says when it was moved
            durable.touch(away)
        self.done.moved.append(digest)
        self.done.moved_bytes += before.st_size

    def _empty_trash(self, listed: list[Leftover], marks: Marks, progress: Progress | None) -> None:
        """Bring back what is referred to and lies only in ``trash``, whoever took it out; delete what is old."""
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
        """Bring back what was taken out: what it may be referred to by could not be read."""
        for digest in self.done.moved:
            with suppress(EnvironmentFailure):  # stays in trash, from where reading brings it back
                self.objects.hold(digest)
