"""Plan of a repair: actions to apply, and faults that need a person.

Each action checks the file again, is atomic, and deletes nothing: a damaged file is moved or hard-linked to
``quarantine/`` before it is replaced. After a crash there may be additional files in ``quarantine/`` but nothing is
lost, and the repair can be repeated.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import EnvironmentFailure, FormatError, IntegrityError
from compatkit.registry import Progress
from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.layout import MARKER, inspect
from compatkit.registry.maintenance.check import VerificationReport
from compatkit.registry.maintenance.contents import CHUNK_SIZE
from compatkit.registry.maintenance.faults import Fault
from compatkit.registry.os_errors import environment

SET_ASIDE, RESTORE, REFER = 1, 2, 3
"""Stages: move damaged files away, restore blobs, then write references."""
SCHEMA = 1
IsDamaged = Callable[[Path], bool]
"""Function that returns whether the file at a path is still damaged."""


@attrs.frozen
class Action:
    """One change.

    Attributes:
        code: Code of the fault.
        path: Changed path, relative to the root.
        words: Description such as ``"move blobs/... to quarantine/"``.
        affected: Affected references.
        stage: ``SET_ASIDE``, ``RESTORE`` or ``REFER``.
        work: Function that carries the action out; returns False if it is no longer needed.
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
        error: Error message, or empty.
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
    """Plan of a repair; nothing changes before ``apply``.

    Attributes:
        report: Result of the verification.
        actions: Actions in order.
        left: Faults that cannot be repaired, with remedies.
    """

    report: VerificationReport
    actions: tuple[Action, ...]
    left: tuple[Fault, ...]

    def apply(self, progress: Progress | None = None) -> tuple[ActionResult, ...]:
        """Carry out all actions; one that fails does not stop the others.

        Args:
            progress: Called with actions done, total actions, and what is being done.

        Returns:
            The result of each action.

        Raises:
            LayoutError: This version may only read the registry.
            FormatError: ``compatkit.json`` is damaged, so the layout may be newer.
        """
        root = self.report.root
        rewritten = any(action.path == MARKER for action in self.actions)
        if self.actions:
            with suppress(FormatError) if rewritten else nullcontext():
                inspect(root).check_writer(root)
        results: list[ActionResult] = []
        with durable.announced(root):
            for number, action in enumerate(self.actions):
                if progress is not None:
                    progress(number, len(self.actions), action.words)
                try:
                    with environment("repair", root / action.path):
                        results.append(ActionResult(action, action.work()))
                except (IntegrityError, EnvironmentFailure) as error:
                    results.append(ActionResult(action, False, str(error), error.code))
        return tuple(results)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "schema": SCHEMA,
            "kind": "repair-plan",
            "root": str(self.report.root),
            "actions": [action.to_json() for action in self.actions],
            "left": [fault.to_json() for fault in self.left],
        }


@attrs.frozen
class Changes:
    """Changes to the files of a registry. Each method returns False if the change is no longer needed."""

    root: Path

    def set_aside(self, path: str, damaged: IsDamaged) -> bool:
        """Move a damaged file to ``quarantine``."""
        full = self.root / path
        durable.check_folders(full.parent, self.root)
        if not os.path.lexists(full) or not damaged(full):
            return False
        quarantined = self._quarantine_path(full)
        durable.move(full, quarantined)
        durable.sync_up(quarantined.parent, self.root)
        durable.sync_folder(full.parent)
        return True

    def make_folder(self, path: str) -> bool:
        """Create a folder of the layout."""
        full = self.root / path
        if full.is_dir():
            return False
        durable.make_folder(full, self.root)
        durable.sync_up(full.parent, self.root)
        return True

    def protect(self, path: str) -> bool:
        """Make a blob read-only."""
        full = self.root / path
        durable.check_folders(full.parent, self.root)
        state = durable.file_state(full)
        if state is None or not state.st_mode & 0o222:
            return False
        durable.step("chmod", full)
        os.chmod(full, stat.S_IMODE(state.st_mode) & ~0o222)
        return True

    def rewrite(self, path: str, data: bytes, damaged: IsDamaged) -> bool:
        """Replace a damaged file atomically; the old file gets a hard link in ``quarantine``.

        A folder cannot be replaced atomically; it is moved first.
        """
        full = self.root / path
        durable.make_folder(full.parent, self.root)
        if os.path.lexists(full):
            if not damaged(full):
                return False
            self._keep_in_quarantine(full)
        durable.replace_file(full, data, root=self.root)
        durable.sync_up(full.parent, self.root)
        return True

    def restore(self, path: str, digest: str, origin: Path, root: Path) -> bool:
        """Restore a missing blob from an intact copy.

        Args:
            path: Path of the blob.
            digest: Digest of the blob.
            origin: Path of the copy in ``trash``, ``quarantine``, or another registry.
            root: Registry that contains the copy.
        """
        if os.path.lexists(self.root / path):
            return False
        objects = Objects(self.root)
        durable.drafted(self.root, _Pieces(origin, root, digest), lambda draft: objects.link(draft, digest))
        return True

    def _keep_in_quarantine(self, path: Path) -> None:
        """Link a damaged file into ``quarantine``; if that is not possible, move or copy it there."""
        quarantined, mode = self._quarantine_path(path), os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            durable.move(path, quarantined)
        elif not durable.link(path, quarantined):
            opened = durable.read(path, self.root) if stat.S_ISREG(mode) else None
            if opened is None:
                durable.move(path, quarantined)
            else:
                durable.write(quarantined, [opened[0]], root=self.root)
        durable.sync_folder(quarantined.parent)

    def _quarantine_path(self, path: Path) -> Path:
        folder = self.root / "quarantine"
        durable.make_folder(folder, self.root)
        return folder / f"{path.name[:128]}-{durable.temporary(folder).name}"


@attrs.frozen
class _Pieces:
    """Pieces of a copy of a blob; iteration raises at the end if the digest is wrong."""

    path: Path
    root: Path
    digest: str

    def __iter__(self) -> Iterator[bytes]:
        descriptor = durable.open_plain(self.path, self.root)
        if descriptor is None:
            raise IntegrityError(f"{self.path} is missing now; verify again.", subject=self.path)
        hashed = hashlib.sha256()
        with os.fdopen(descriptor, "rb") as file:
            while piece := file.read(CHUNK_SIZE):
                hashed.update(piece)
                yield piece
        if (actual := f"sha256:{hashed.hexdigest()}") != self.digest:
            raise IntegrityError(
                f"{self.path}: expected {self.digest}, got {actual}; the file was not changed. Use another copy of the "
                "registry (--from ROOT), or publish the component again.",
                subject=self.path,
            )
