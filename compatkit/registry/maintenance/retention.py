"""Retention: withdraw all but the newest versions of each name, without those that something relies on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import NotFound, UsageError
from compatkit.foundation.arguments import texts_of
from compatkit.foundation.display import Shown, aligned
from compatkit.registry.dropping import policy_that_relies
from compatkit.registry.names import Reference, Version

if TYPE_CHECKING:
    from compatkit.registry.store import Store

NEWEST = "newest"
"""Reason of the versions that the number keeps."""


@attrs.frozen
class KeptVersion:
    """Version that is not withdrawn.

    Attributes:
        reference: ``name@version``.
        why: ``"newest"``, or what relies on it.
    """

    reference: str
    why: str


@attrs.frozen(repr=False)
class RetentionPlan(Shown):
    """Plan of withdrawals; nothing changes before ``apply``.

    Attributes:
        keep: Number of newest versions that stay for each name.
        reason: Text shown to users who request a withdrawn version.
        withdrawn: ``name@version`` of the versions to withdraw, oldest first for each name.
        kept: Versions that stay.
    """

    keep: int
    reason: str
    withdrawn: tuple[str, ...]
    kept: tuple[KeptVersion, ...]
    store: Store = attrs.field(repr=False, eq=False)

    def __str__(self) -> str:
        newest = sum(version.why == NEWEST for version in self.kept)
        rows = [("withdraw", reference) for reference in self.withdrawn]
        rows += [
            ("keep", f"{version.reference}: {version.why}") for version in self.kept if version.why != NEWEST
        ]
        first = f"{len(self.withdrawn):,} versions to withdraw; {newest:,} of the newest {self.keep} of a name stay"
        return "\n".join([first, *aligned(rows)] if rows else [first])

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "keep": self.keep,
            "reason": self.reason,
            "withdrawn": list(self.withdrawn),
            "kept": [attrs.asdict(version) for version in self.kept],
        }

    def apply(self) -> RetentionPlan:
        """Withdraw the versions, except those that something relies on since.

        A killed call has withdrawn some of them; the same call continues.

        Returns:
            The plan as it was carried out.

        Raises:
            LayoutError: This version may only read the registry.
            NotAllowed: The settings of the registry do not let this author withdraw versions.
            EnvironmentFailure: No write permission, or the device failed; repeat the call to continue.
        """
        withdrawn: list[str] = []
        kept = list(self.kept)
        for label in self.withdrawn:
            name, _, number = label.partition("@")
            version = Version.parse(number)
            digest = self.store.references.digest(name, version)
            if digest is None:  # dropped meanwhile
                continue
            if why := _why_needed(self.store, Reference(name, version, digest=digest)):
                kept.append(KeptVersion(label, why))
                continue
            self.store.withdraw(name, version, self.reason)
            withdrawn.append(label)
        return attrs.evolve(self, withdrawn=tuple(withdrawn), kept=tuple(kept))


def plan(store: Store, patterns: str | Sequence[str], *, keep: int, reason: str) -> RetentionPlan:
    """Find the versions to withdraw; reads only.

    Of each name the newest versions stay, and those that an alias points at, that are part of a recombination, or that
    a policy measures new versions with. Withdrawn versions do not count.

    Args:
        store: Registry of the versions.
        patterns: Names or globs of names, such as ``"digits/*"``.
        keep: Number of newest versions that stay, from 1.
        reason: Text shown to users who request a withdrawn version.

    Raises:
        NotFound: A pattern matches no name.
        UsageError: ``keep`` is below 1, there is no reason, or a pattern names versions.
        IntegrityError: A version file or manifest is damaged, so it is unknown what relies on it.
    """
    if type(keep) is not int or keep < 1:
        raise UsageError(f"Expected a number of versions from 1 to keep, got {keep!r}.", subject=keep)
    if not reason.strip():
        raise UsageError("Withdrawing versions needs a reason; it is shown to users who request them.")
    names: dict[str, None] = {}
    for pattern in texts_of(patterns, "patterns", "a name or a glob of names such as 'digits/*'"):
        if "@" in pattern or ":" in pattern:
            raise UsageError(
                f"{pattern!r:.100}: expected a name or a glob of names without a version; the number to keep chooses "
                "the versions.",
                subject=pattern,
            )
        matches = store.names(pattern)
        if not matches:
            raise NotFound(f"{pattern!r:.100} matches no name; see `compatkit ls`.", subject=pattern)
        names.update(dict.fromkeys(matches))
    withdrawn: list[str] = []
    kept: list[KeptVersion] = []
    for name in names:
        gone = store.references.withdrawn(name)
        numbers = [number for number in store.references.versions(name) if number not in gone]
        for number in numbers[:-keep]:
            digest = store.references.digest(name, number)
            why = "" if digest is None else _why_needed(store, Reference(name, number, digest=digest))
            if why:
                kept.append(KeptVersion(f"{name}@{number}", why))
            elif digest is not None:
                withdrawn.append(f"{name}@{number}")
        kept += [KeptVersion(f"{name}@{number}", NEWEST) for number in numbers[-keep:]]
    return RetentionPlan(keep, reason, tuple(withdrawn), tuple(kept), store)


def _why_needed(store: Store, reference: Reference) -> str:
    """Return what relies on a version; empty if nothing does."""
    pointing = [
        alias for alias, version in store.aliases(reference.name).items() if version == str(reference.version)
    ]
    if pointing:
        return f"the alias {', '.join(pointing)} points at it"
    for user in store.index.search(kind="recombination", parent=reference.digest):
        return f"it is part of the recombination {user.name}@{user.version}"
    relying = policy_that_relies(store, reference)
    if relying is not None:
        policy, partner = relying
        return f"the policy of {policy.scope} measures with it and {partner}"
    return ""
