"""A repair plan in the making: actions in words, and what is left to people."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import CompatkitError
from compatkit.registry import disk as durable
from compatkit.registry.refs import LIMIT
from compatkit.registry.repair.mending import Mender
from compatkit.registry.verify.faults import Fault
from compatkit.registry.verify.soundness import Soundness

if TYPE_CHECKING:
    from compatkit.registry.store import Store

ASIDE, RESTORE, REFER = 1, 2, 3
"""Stages: what is damaged makes room, bytes come back, and only then is referred to what is there."""


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


@attrs.define
class Planned:
    """Actions and left faults as they are found.

    Attributes:
        soundness: What the examination found.
        source: Another registry that may hold what is missing here.
    """

    soundness: Soundness
    source: Store | None
    actions: list[Action] = attrs.field(factory=list)
    left: list[Fault] = attrs.field(factory=list)

    @property
    def root(self) -> Path:
        """The registry's folder."""
        return self.soundness.root

    @property
    def mender(self) -> Mender:
        """What changes its files."""
        return Mender(self.root)

    def act(
        self, fault: Fault, stage: int, words: str, work: Callable[[], bool], path: str | None = None
    ) -> bool:
        """Plan a change, once; True, so that it can end a function that mended its fault."""
        place = fault.path if path is None else path
        if not any((one.path, one.words) == (place, words) for one in self.actions):
            self.actions.append(Action(fault.code, place, words, fault.whose, stage, work))
        return True

    def give_rights(self, fault: Fault, mode: int) -> bool:
        """Plan to change rights; False, and the fault is left, where only another user may."""
        state = os.lstat(self.root / fault.path)
        if not hasattr(os, "geteuid") or os.geteuid() not in (0, state.st_uid):
            self.leave(
                fault, f"ask user {state.st_uid}, who owns it: chmod {mode:o} {self.root / fault.path}"
            )
            return True
        words = f"give {fault.path} the mode {mode:o}"
        return self.act(fault, ASIDE, words, partial(self.mender.give_rights, fault.path, mode))

    def leave(self, fault: Fault, remedy: str | None = None) -> None:
        """Leave a fault to people, with what to do."""
        self.left.append(fault if remedy is None else attrs.evolve(fault, remedy=remedy))

    def faulty(self, path: str) -> bool:
        """Tell whether the examination found an error at a path."""
        return any(one.path == path and one.severity == "error" for one in self.soundness.faults)

    def content(self, path: str | Path) -> bytes | None:
        """Return the beginning of a plain file; None where there is none, or it cannot be read."""
        try:
            found = durable.read(self.root / path, self.root, limit=LIMIT + 1)
        except CompatkitError:
            return None
        return None if found is None else found[0]
