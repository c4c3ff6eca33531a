"""Checks of a version number against the changes since the version before.

When a version is published, its number must be as large as all changes require. Later, two manifests do not show
whether new weights were measured. Then only changes count that no measurement excuses: lost partners, changed labels,
dropped heads, new weights as a PATCH. If the number is too small even so, ``^1`` could select a version that does not
fit.
"""

from __future__ import annotations

from functools import cache
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import VersionTooSmall
from compatkit.registry.versions.diff import Difference, diff
from compatkit.registry.versions.rules import MEASURED, UNREAD

if TYPE_CHECKING:
    from compatkit.contracts.manifest import Manifest
    from compatkit.registry.names import Version

MAX_LISTED = 8
"""Maximum number of reasons in a message; a head may lose thousands of labels at once."""
PUBLISHED, ADMITTED = ", published as measured", ", let in unmeasured"
"""Last words of a reason if only a measurement allows the step; the log of a policy records the second case."""
NEW_WEIGHTS = (
    "New weights stay within a major line only if they were trained against the frozen auxiliary head of the "
    "version before, or were measured. "
)


def check_step(name: str, before: Version, target: Version, change: Difference) -> None:
    """Raise if a version number is too small a step for the changes since the version before.

    Raises:
        VersionTooSmall: It is; the message lists the reasons by level.
    """
    least = before.bumped(change.bump)
    if target >= least:
        return
    hint = (
        NEW_WEIGHTS
        if any(difference.location == ("payload", "tensors") for difference in change.changes)
        else ""
    )
    raise VersionTooSmall(
        f"{name}@{target} is too small a step from {before}: at least {least} is needed, because "
        f"{_reasons(before, target, change)}. "
        f"{hint}Publish without a version to get the least step, or ask for {least} or more.",
        subject=f"{name}@{target}",
    )


def why_understated(
    before: tuple[Version, Manifest], after: tuple[Version, Manifest], *, measured: bool = True
) -> str:
    """Return why a version number understates the change since the version below; empty if it does not.

    Args:
        before: Version below, and its manifest.
        after: Version to check, and its manifest.
        measured: Whether new weights may have been measured.
    """
    # any higher number is a PATCH at least
    sections = _checked(type(after[1]))
    if before[0] < after[0] and all(map(is_, sections(before[1]), sections(after[1]))):
        return ""
    change = diff(before[1], after[1], measured=measured, read_only=True)
    least = before[0].bumped(change.bump)
    if after[0] >= least:
        return ""
    return (
        f"the step from {before[0]} to {after[0]} is smaller than the change between them, which needs at least "
        f"{least}: {_reasons(before[0], after[0], change).replace(MEASURED, ', measured or not')}"
    )


def published_change(
    before: tuple[Version, Manifest], after: tuple[Version, Manifest], *, admitted: bool = False
) -> Difference:
    """Compare two versions of a name, with the steps that were required when the later one was published.

    Manifests do not record whether a new function was measured, but the version number shows it: if the number is large
    enough only with a measurement, the version was published as measured or admitted without one.

    Args:
        before: Earlier version, and its manifest.
        after: Later version, and its manifest.
        admitted: Whether the log of a policy records that the later version was admitted without a measurement.
    """
    change = diff(before[1], after[1])
    if after[0] <= before[0] or after[0] >= before[0].bumped(change.bump):
        return change
    measured = diff(before[1], after[1], measured=True)
    if after[0] < before[0].bumped(measured.bump):
        return change  # the number is too small in any case
    how = ADMITTED if admitted else PUBLISHED
    changes = [
        attrs.evolve(difference, reason=difference.reason.replace(MEASURED, how))
        for difference in measured.changes
    ]
    return Difference(tuple(changes))


def _reasons(before: Version, target: Version, change: Difference) -> str:
    listed = [
        f"({level}) {reason}"
        for level, reasons in change.by_level().items()
        for bump, reason in reasons
        if target < before.bumped(bump)
    ]
    more = f"; and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    return "; ".join(listed[:MAX_LISTED]) + more


@cache
def _checked(kind: type[Manifest]) -> attrgetter[tuple[Any, ...]]:
    """Return a getter of the sections of a manifest that checks read."""
    return attrgetter(*sorted(attrs.fields_dict(kind).keys() - UNREAD))
