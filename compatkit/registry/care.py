"""What keeps a registry sound, and shows that it is: one door to examining, mending, collecting and copying."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

import attrs

from compatkit.registry.history import Entry, log
from compatkit.registry.maintenance.check import Soundness, examine
from compatkit.registry.maintenance.gc import GRACE, Plan, Progress, known, plan
from compatkit.registry.maintenance.plan import RepairPlan
from compatkit.registry.maintenance.repair import plan as plan_repair
from compatkit.registry.usage import Usage, usage

if TYPE_CHECKING:
    from compatkit.registry.copy.admission import Deciding
    from compatkit.registry.copy.choice import Accept
    from compatkit.registry.copy.report import Moved
    from compatkit.registry.copy.selection import Versions
    from compatkit.registry.store import Store


@attrs.frozen
class Care:
    """Care of one registry.

    Attributes:
        store: Its files.
        deciding: Makes what answers the questions of policies on what is imported; None: nobody.
    """

    store: Store
    deciding: Deciding | None = None

    def verify(
        self,
        patterns: Iterable[str] | None = None,
        *,
        deep: bool = True,
        progress: Progress | None = None,
    ) -> Soundness:
        """Look for everything that can be wrong; changes nothing. See ``soundness.examine``."""
        return examine(self.store, patterns=patterns, deep=deep, progress=progress)

    def repair(self, soundness: Soundness, *, source: Store | None = None) -> RepairPlan:
        """Say what would mend what was found; its ``apply`` does it. See ``repair.plan``."""
        return plan_repair(soundness, source=source)

    def gc(
        self,
        *,
        grace: timedelta = GRACE,
        withdrawn: bool = False,
        progress: Progress | None = None,
    ) -> Plan:
        """Find what nothing refers to, as the index tells it where it can; see ``collecting.plan`` and ``known``.

        ``apply`` takes it out; it asks the files, and never the index.
        """
        referenced = None if withdrawn else known(self.store, progress)
        return plan(self.store, grace=grace, withdrawn=withdrawn, referenced=referenced, progress=progress)

    def usage(self, pattern: str | None = None) -> Usage:
        """Return what takes how much of the disk. See ``usage.usage``."""
        return usage(self.store.index, self.store.objects, pattern)

    def log(self, name: str) -> list[Entry]:
        """Return what happened to a name, newest first. See ``history.log``."""
        return log(self.store, name)

    def import_from(
        self,
        source: Store,
        patterns: Iterable[str] = ("*",),
        *,
        versions: Versions = "all",
        aliases: bool = False,
        evidence: bool = True,
        accept: Accept | None = None,
        deciding: Deciding | None = None,
        unmeasured: bool = False,
        progress: Progress | None = None,
    ) -> Moved:
        """Copy components of another registry, all or none; whose signature the store asks for, they must have.

        Args:
            source: Where they are; only read.
            patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"``.
            versions: ``"all"`` or ``"latest"``, one of each name.
            aliases: Whether aliases of the names are set here as they are there.
            evidence: Whether measured results of pairs come along, where both parts do.
            accept: Refuses a version before anything comes; see ``copy.choice``.
            deciding: Makes what answers the questions of policies here.
            unmeasured: Let in what nobody measured as a policy asks; the log of the policy tells.
            progress: Called with done, total and what is being done.

        Returns:
            What was copied. Raises as ``import_components`` does.
        """
        from compatkit.registry.copy.choice import Choice
        from compatkit.registry.remotes.pushpull import import_components

        choice = Choice(
            versions=versions,
            aliases=aliases,
            evidence=evidence,
            accept=accept,
            deciding=deciding or self.deciding,
            unmeasured=unmeasured,
            progress=progress,
        )
        return import_components(source, self.store, patterns, choice=choice)
