"""A plan of repair: changes in words, done when it is applied, and what is left to people."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, IntegrityError, LayoutError
from compatkit.registry import disk as durable
from compatkit.registry.disk import announced
from compatkit.registry.layout import MARKER, inspect
from compatkit.registry.maintenance.changes import Mender
from compatkit.registry.maintenance.check import Soundness
from compatkit.registry.maintenance.faults import Fault
from compatkit.registry.refs import LIMIT
from compatkit.registry.scan import Place, listed, scan

if TYPE_CHECKING:
    from compatkit.registry.store import Store

ASIDE, RESTORE, REFER = 1, 2, 3
"""Stages: what is damaged makes room, bytes come back, and only then is referred to what is there."""
SCHEMA = 1
Progress = Callable[[int, int, str], None]
"""Told actions done, actions in all, and what is being done."""


@attrs.frozen
class Action:
    """One change.

    Attributes:
        code: Code of the fault that it is for.
        path: What is changed, relative to the root.
        words: What it does, beginning with a verb: ``"move blobs/... to quarantine/"``.
        whose: References that are affected.
        stage: When it is done, among the others.
        work: Does it; returns False if that is no longer needed.
    """

    code: str
    path: str
    words: str
    whose: tuple[str, ...]
    stage: int = attrs.field(repr=False)
    work: Callable[[], bool] = attrs.field(repr=False, eq=False)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"code": self.code, "path": self.path, "words": self.words, "whose": list(self.whose)}


@attrs.frozen
class Outcome:
    """What became of an action.

    Attributes:
        done: False if it was no longer needed, or failed.
        error: Why it failed, else empty.
        code: Code of the error, else empty.
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
    """What would be done; nothing is done before ``apply``.

    Attributes:
        soundness: What the examination found.
        actions: In the order in which they are done.
        left: Faults that nothing here mends, with what to do as their remedy.
    """

    soundness: Soundness
    actions: tuple[Action, ...]
    left: tuple[Fault, ...]

    def apply(self, progress: Progress | None = None) -> tuple[Outcome, ...]:
        """Do it: each action looks again first, is atomic, and one that fails does not stop the others.

        Args:
            progress: Told actions done, actions in all, and what is being done.

        Returns:
            What became of each action.

        Raises:
            LayoutError: This version may only read the registry.
        """
        self._check_writer()
        outcomes: list[Outcome] = []
        with announced(self.soundness.root):
            for number, action in enumerate(self.actions):
                if progress is not None:
                    progress(number, len(self.actions), action.words)
                try:
                    outcomes.append(Outcome(action, action.work()))
                except (IntegrityError, EnvironmentFailure) as error:
                    outcomes.append(Outcome(action, False, str(error), error.code))
        return tuple(outcomes)

    def _check_writer(self) -> None:
        root = self.soundness.root
        if any(one.code == "marker-damaged" for one in self.left):
            raise LayoutError(
                f"{root / MARKER} is damaged and may be of a newer layout, so nothing is changed. Upgrade compatkit.",
                subject=root,
            )
        try:
            layout = inspect(root)
        except (IntegrityError, EnvironmentFailure):
            return  # damaged or missing, and written anew by an action
        layout.check_writer(root)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "schema": SCHEMA,
            "kind": "repair-plan",
            "root": str(self.soundness.root),
            "actions": [one.to_json() for one in self.actions],
            "left": [one.to_json() for one in self.left],
        }


@attrs.frozen
class Planned:
    """A plan in the making.

    Attributes:
        soundness: What the examination found.
        source: Another registry that may hold what is missing here.
    """

    soundness: Soundness
    source: Store | None
    left: list[Fault] = attrs.field(factory=list, init=False)
    _actions: dict[tuple[str, str], Action] = attrs.field(factory=dict, init=False)
    _errors: set[str] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._errors.update(one.path for one in self.soundness.faults if one.severity == "error")

    @property
    def root(self) -> Path:
        """The registry's folder."""
        return self.soundness.root

    @property
    def mender(self) -> Mender:
        """What changes its files."""
        return Mender(self.root)

    def finished(self) -> RepairPlan:
        """Return the plan, its actions by their stages."""
        actions = sorted(self._actions.values(), key=lambda one: one.stage)
        return RepairPlan(self.soundness, tuple(actions), tuple(self.left))

    def act(
        self, fault: Fault, stage: int, words: str, work: Callable[[], bool], path: str | None = None
    ) -> bool:
        """Plan a change, once; True, so that it can end a function that mended its fault."""
        place = fault.path if path is None else path
        self._actions.setdefault((place, words), Action(fault.code, place, words, fault.whose, stage, work))
        return True

    def give_rights(self, fault: Fault, mode: int) -> bool:
        """Plan to change rights; the fault is left where only another user may."""
        state = os.lstat(self.root / fault.path)
        if not hasattr(os, "geteuid") or os.geteuid() not in (0, state.st_uid):
            whom = f"ask user {state.st_uid}, who owns it: chmod {mode:o} {self.root / fault.path}"
            return self.leave(fault, whom)
        words = f"give {fault.path} the mode {mode:o}"
        return self.act(fault, ASIDE, words, partial(self.mender.give_rights, fault.path, mode))

    def leave(self, fault: Fault, remedy: str | None = None) -> bool:
        """Leave a fault to people, with what to do; True, as for ``act``."""
        self.left.append(fault if remedy is None else attrs.evolve(fault, remedy=remedy))
        return True

    def faulty(self, path: str) -> bool:
        """Tell whether the examination found an error at a path."""
        return path in self._errors

    def content(self, path: str | Path) -> bytes | None:
        """Return the beginning of a plain file; None where there is none, or it cannot be read."""
        try:
            found = durable.read(self.root / path, self.root, limit=LIMIT + 1)
        except CompatkitError:
            return None
        return None if found is None else found[0]

    def scan(self, *folders: str, **only: Any) -> Iterator[Place]:
        """Yield what is in folders, as ``scan`` does; what cannot be listed was told by the examination."""

        def entries(folder: str) -> list[os.DirEntry[str]]:
            with suppress(OSError):
                return listed(self.root, folder)
            return []

        return scan(self.root, *folders, entries=entries, **only)

    def is_copy(self) -> bool:
        """Tell whether the other registry is a copy of this one, and no other."""
        try:
            return self.source is not None and self.source.id == inspect(self.root).id
        except CompatkitError:
            return False
