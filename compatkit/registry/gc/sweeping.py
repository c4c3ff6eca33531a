"""Carrying out a plan of collection, beside whoever publishes, reads or collects at the same time."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure
from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.gc import leftovers
from compatkit.registry.gc.leftovers import Ages, Leftover
from compatkit.registry.gc.marking import Marker, Marks
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.gc.collecting import Plan

Progress = Callable[[int, int, str], None]


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


@attrs.define(eq=False)
class Sweep:
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
            listed = list(leftovers.trashed(self.root, ages))
            marks = self._look(marker, ages, progress)
            # before others go there, so that a full disk has room for their names
            self._empty_trash(listed, marks, progress)
            self._take_out(marks, ages, progress)
            if self._taken:
                listed = list(leftovers.trashed(self.root, ages))
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
        self.done.folders = leftovers.remove_folders(self.root, {*self.plan.folders, *emptied}, self._now())

    def _now(self) -> Ages:
        return Ages(leftovers.clock(self.root), self.plan.grace.total_seconds())

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
