"""What would mend the faults that an examination found, in words first; nothing is ever deleted.

Damaged files go to ``quarantine/``; missing bytes come from ``trash/``, from a good copy in ``quarantine/``, or from
another copy of the registry, and only if their digest is right. What cannot be mended is said, with what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import EnvironmentFailure, IntegrityError, LayoutError, UsageError
from compatkit.registry.layout import MARKER, inspect
from compatkit.registry.repair.aliases import AliasRepair
from compatkit.registry.repair.blobs import BlobRepair
from compatkit.registry.repair.files import FileRepair
from compatkit.registry.repair.planning import Action, Planned
from compatkit.registry.repair.policies import PolicyRepair
from compatkit.registry.verify.faults import Fault
from compatkit.registry.verify.soundness import Soundness

if TYPE_CHECKING:
    from compatkit.registry.store import Store

__all__ = ["Action", "Outcome", "RepairPlan", "plan"]

SCHEMA = 1
Progress = Callable[[int, int, str], None]
"""Told actions done, actions in all, and what is being done."""


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


def plan(soundness: Soundness, *, source: Store | None = None) -> RepairPlan:
    """Say what would mend what an examination found. Changes nothing.

    Args:
        soundness: What ``examine`` returned.
        source: Another copy of the registry, or any that may hold the same bytes.

    Raises:
        UsageError: ``source`` is the registry itself.
    """
    if source is not None and source.root.resolve() == soundness.root.resolve():
        raise UsageError(
            f"{source.root} is the registry itself; name another copy of it.", subject=source.root
        )
    planned = Planned(soundness, source)
    blobs = BlobRepair(planned)
    files, aliases, policies = FileRepair(planned, blobs), AliasRepair(planned), PolicyRepair(planned)
    for fault in soundness.faults:
        if fault.severity != "info" or fault.code == "alias-behind":
            region = next((one for one in (blobs, aliases, policies, files) if one.takes(fault)), None)
            if region is None or not region.mend(fault):
                planned.leave(fault)
    actions = sorted(planned.actions, key=lambda one: one.stage)
    return RepairPlan(soundness, tuple(actions), tuple(planned.left))
