"""Repair plans: actions to apply, and faults left to people.

Each change checks the file again, is atomic, and deletes nothing: a damaged file, or a hard link to it, goes to
``quarantine/`` before anything takes its place. A crash between two steps leaves additional files there, never missing
ones elsewhere, and the repair can be repeated.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, IntegrityError, LayoutError
from compatkit.registry import Progress
from compatkit.registry import disk as durable
from compatkit.registry.disk import announced
from compatkit.registry.layout import MARKER, inspect
from compatkit.registry.maintenance.check import Soundness
from compatkit.registry.maintenance.contents import PIECE, read_content
from compatkit.registry.maintenance.faults import Fault
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import LIMIT
from compatkit.registry.scan import RegistryEntry, listed, scan

if TYPE_CHECKING:
    from compatkit.registry.store import Store

ASIDE, RESTORE, REFER = 1, 2, 3
"""Stages: move damaged files away, restore blobs, then write references."""
SCHEMA = 1
Doubt = Callable[[Path], bool]
"""Returns whether the file at a path is still damaged."""


@attrs.frozen
class Action:
    """One change.

    Attributes:
        code: Code of the fault.
        path: Changed path, relative to the root.
        words: Description beginning with a verb: ``"move blobs/... to quarantine/"``.
        affected: Affected references.
        stage: Its stage.
        work: Carries it out; returns False if it is no longer needed.
    """

    code: str
    path: str
    words: str
    affected: tuple[str, ...]
    stage: int = attrs.field(repr=False)
    work: Callable[[], bool] = attrs.field(repr=False, eq=False)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"code": self.code, "path": self.path, "words": self.words, "affected": list(self.affected)}


@attrs.frozen
class ActionResult:
    """Result of an action.

    Attributes:
        done: False if it was no longer needed, or failed.
        error: Why it failed, or empty.
        code: Code of the error, or empty.
    """

    action: Action
    done: bool
    error: str = ""
    code: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**self.action.to_json(), "done": self.done, "error": self.error}


@attrs.frozen
class RepairPlan:
    """Plan of a repair; nothing happens before ``apply``.

    Attributes:
        soundness: Result of the verification.
        actions: Actions in order.
        left: Faults that cannot be repaired, with remedies.
    """

    soundness: Soundness
    actions: tuple[Action, ...]
    left: tuple[Fault, ...]

    def apply(self, progress: Progress | None = None) -> tuple[ActionResult, ...]:
        """Carry out all actions; one that fails does not stop the others.

        Args:
            progress: Called with actions done, actions in all, and what is being done.

        Returns:
            The result of each action.

        Raises:
            LayoutError: This version may only read the registry.
        """
        self._check_writer()
        results: list[ActionResult] = []
        with announced(self.soundness.root):
            for number, action in enumerate(self.actions):
                if progress is not None:
                    progress(number, len(self.actions), action.words)
                try:
                    results.append(ActionResult(action, action.work()))
                except (IntegrityError, EnvironmentFailure) as error:
                    results.append(ActionResult(action, False, str(error), error.code))
        return tuple(results)

    def _check_writer(self) -> None:
        root = self.soundness.root
        if any(fault.code == "marker-damaged" for fault in self.left):
            raise LayoutError(
                f"{root / MARKER} is damaged and may be of a newer layout, so nothing is changed. Upgrade compatkit.",
                subject=root,
            )
        try:
            layout = inspect(root)
        except (IntegrityError, EnvironmentFailure):
            return  # damaged or missing, and rewritten by an action
        layout.check_writer(root)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "schema": SCHEMA,
            "kind": "repair-plan",
            "root": str(self.soundness.root),
            "actions": [action.to_json() for action in self.actions],
            "left": [fault.to_json() for fault in self.left],
        }


@attrs.frozen
class Planned:
    """A repair plan under construction. Its planning methods return True, so that a repair can return their result.

    Attributes:
        soundness: Result of the verification.
        source: Another registry that may hold what is missing.
    """

    soundness: Soundness
    source: Store | None
    left: list[Fault] = attrs.field(factory=list, init=False)
    _actions: dict[tuple[str, str], Action] = attrs.field(factory=dict, init=False)

    @property
    def root(self) -> Path:
        """The registry's folder."""
        return self.soundness.root

    def finished(self) -> RepairPlan:
        """Return the plan, its actions sorted by stage."""
        actions = sorted(self._actions.values(), key=lambda action: action.stage)
        return RepairPlan(self.soundness, tuple(actions), tuple(self.left))

    def act(
        self, fault: Fault, stage: int, words: str, work: Callable[[], bool], path: str | None = None
    ) -> bool:
        """Plan an action, once; return True.

        Args:
            fault: That it repairs.
            stage: Actions of a lower stage are carried out first.
            words: Description for people.
            work: Carries it out; returns whether something changed.
            path: That changes; None for that of the fault.
        """
        place = fault.path if path is None else path
        self._actions.setdefault(
            (place, words), Action(fault.code, place, words, fault.affected, stage, work)
        )
        return True

    def leave(self, fault: Fault, remedy: str | None = None) -> bool:
        """Leave a fault to people, with a remedy; return True.

        Args:
            fault: That is not repaired.
            remedy: What to do; None for the fault's own.
        """
        self.left.append(fault if remedy is None else attrs.evolve(fault, remedy=remedy))
        return True

    def set_aside(
        self, fault: Fault, stage: int, words: str, damaged: Doubt, path: str | None = None
    ) -> bool:
        """Plan to move a damaged file to ``quarantine``; return True.

        Args:
            fault: That it repairs.
            stage: As for ``act``.
            words: Put after the description.
            damaged: Whether the file is still damaged when the plan is carried out.
            path: Of the file; None for that of the fault.
        """
        place = fault.path if path is None else path
        work = partial(self._set_aside, self.root / place, damaged)
        return self.act(fault, stage, f"move {place} to quarantine/{words}", work, place)

    def _set_aside(self, full: Path, damaged: Doubt) -> bool:
        with environment("move to quarantine", full):
            durable.check_folders(full.parent, self.root)
            if not os.path.lexists(full) or not damaged(full):
                return False
            self._move(full, self._away(full))
        return True

    def rewrite(self, fault: Fault, path: str, words: str, data: bytes, damaged: Doubt) -> bool:
        """Plan to replace a damaged file atomically; the old file stays in ``quarantine`` as a hard link.

        A folder cannot be replaced atomically; it is moved away first.

        Args:
            fault: That it repairs.
            path: Of the file.
            words: Description for people.
            data: New content.
            damaged: Whether the file is still damaged when the plan is carried out.
        """
        work = partial(self._rewrite, self.root / path, data, damaged)
        return self.act(fault, REFER, words, work, path)

    def _rewrite(self, full: Path, data: bytes, damaged: Doubt) -> bool:
        with environment("rewrite", full):
            durable.make_folder(full.parent, self.root)
            if os.path.lexists(full):
                if not damaged(full):
                    return False
                self._keep(full)
            durable.replace_file(full, data, root=self.root)
            durable.sync_up(full.parent, self.root)
        return True

    def _keep(self, path: Path) -> None:
        """Link a damaged file into ``quarantine``; if that is not possible, move or copy it there."""
        away, mode = self._away(path), os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            durable.move(path, away)
        elif not durable.link(path, away):
            opened = durable.read(path, self.root) if stat.S_ISREG(mode) else None
            if opened is None:
                durable.move(path, away)
            else:
                durable.write(away, [opened[0]], root=self.root)
        durable.sync_folder(away.parent)

    def put_back(self, fault: Fault, path: str, digest: str, origin: str) -> bool:
        """Plan to move a blob from ``trash`` or ``quarantine`` to its place, if its digest is right.

        Args:
            fault: That it repairs.
            path: Of the blob.
            digest: Of the blob.
            origin: Path of the copy, relative to the root.
        """
        work = partial(self._put_back, self.root / path, digest, self.root / origin)
        return self.act(fault, RESTORE, f"put {origin} back to {path}", work, path)

    def _put_back(self, full: Path, digest: str, origin: Path) -> bool:
        with environment("put back", full):
            durable.check_folders(origin.parent, self.root)
            durable.make_folder(full.parent, self.root)
            if os.path.lexists(full):
                return False
            _check(origin, digest, read_content(origin, self.root).digest)
            self._give_rights(origin, stat.S_IMODE(os.stat(self.root).st_mode) & 0o444)
            self._move(origin, full)
        return True

    def copy_in(self, fault: Fault, path: str, digest: str, source: Path) -> bool:
        """Plan to copy a blob from another registry, in pieces, if its digest is right.

        Args:
            fault: That it repairs.
            path: Of the blob.
            digest: Of the blob.
            source: Root of the other registry.
        """
        work = partial(self._copy_in, self.root / path, digest, source / path, source)
        return self.act(fault, RESTORE, f"copy {path} from {source}", work, path)

    def _copy_in(self, full: Path, digest: str, source: Path, root: Path) -> bool:
        with environment("copy to", full):
            if os.path.lexists(full):
                return False

            def place(draft: Path, digests: list[str]) -> None:
                _check(source, digest, digests[0])
                durable.make_folder(full.parent, self.root)
                if not durable.link(draft, full):
                    durable.move(draft, full)
                durable.sync_up(full.parent, self.root)

            try:
                durable.drafted(self.root, _Pieces(source, root), place, meanwhile=[_digest])
            except FileExistsError:
                return False
        return True

    def give_rights(self, fault: Fault, mode: int) -> bool:
        """Plan to change a mode; if another user owns the file, the fault is left to them.

        Args:
            fault: That it repairs.
            mode: Permission bits.
        """
        full = self.root / fault.path
        owner = os.lstat(full).st_uid
        if not hasattr(os, "geteuid") or os.geteuid() not in (0, owner):
            return self.leave(fault, f"ask user {owner}, who owns it: chmod {mode:o} {full}")
        work = partial(self._give_rights, full, mode)
        return self.act(fault, ASIDE, f"give {fault.path} the mode {mode:o}", work)

    def _give_rights(self, full: Path, mode: int) -> bool:
        with environment("change the rights of", full):
            durable.check_folders(full.parent, self.root)
            try:
                state = os.lstat(full)
            except FileNotFoundError:
                return False  # moved away
            if stat.S_ISLNK(state.st_mode) or stat.S_IMODE(state.st_mode) == mode:
                return False
            durable.step("chmod", full)
            os.chmod(full, mode)
        return True

    def make_folder(self, fault: Fault) -> bool:
        """Plan to create a folder of the layout."""
        work = partial(self._make_folder, self.root / fault.path)
        return self.act(fault, ASIDE, f"make the folder {fault.path}/", work)

    def _make_folder(self, full: Path) -> bool:
        with environment("make", full):
            if full.is_dir():
                return False
            durable.make_folder(full, self.root)
            durable.sync_up(full.parent, self.root)
        return True

    def _away(self, path: Path) -> Path:
        folder = self.root / "quarantine"
        durable.make_folder(folder, self.root)
        return folder / f"{path.name[:128]}-{durable.temporary(folder).name}"

    def _move(self, origin: Path, target: Path) -> None:
        durable.move(origin, target)
        durable.sync_up(target.parent, self.root)
        durable.sync_folder(origin.parent)

    def content(self, path: str | Path) -> bytes | None:
        """Return the beginning of a regular file; None if it is missing or unreadable."""
        try:
            opened = durable.read(self.root / path, self.root, limit=LIMIT + 1)
        except CompatkitError:
            return None
        return None if opened is None else opened[0]

    def scan(self, *folders: str, **only: Any) -> Iterator[RegistryEntry]:
        """Yield the places in folders, as ``scan``; folders that cannot be listed are reported elsewhere.

        Args:
            folders: Relative to the root.
            only: As for ``scan.scan``.
        """

        def entries(folder: str) -> list[os.DirEntry[str]]:
            with suppress(OSError):
                return listed(self.root, folder)
            return []

        return scan(self.root, *folders, entries=entries, **only)

    def is_copy(self) -> bool:
        """Return whether the other registry has the identity of this one."""
        try:
            return self.source is not None and self.source.id == inspect(self.root).id
        except CompatkitError:
            return False


@attrs.frozen
class _Pieces:
    """The content of a file of a registry, in pieces."""

    path: Path
    root: Path

    def __iter__(self) -> Iterator[bytes]:
        descriptor = durable.open_plain(self.path, self.root)
        if descriptor is None:
            raise IntegrityError(f"{self.path} is gone; verify again.", subject=self.path)
        with os.fdopen(descriptor, "rb") as file:
            while piece := file.read(PIECE):
                yield piece


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _check(path: Path, expected: str, actual: str) -> None:
    if actual != expected:
        raise IntegrityError(
            f"{path}: expected {expected}, got {actual}; the file is left where it is. Name another copy of the "
            "registry (--from ROOT), or publish the component again.",
            subject=path,
        )
