"""Whether a version number agrees with what changed since the version before.

At publish everything that the change demands counts. Afterwards two manifests do not show whether new weights were
measured, so only what no measurement excuses counts: lost partners, labels, dropped heads, new weights as a PATCH. A
number that is too small even so is untrue: ``^1`` would select a version that does not fit.
"""

from __future__ import annotations

import attrs

from compatkit.contracts.manifest import Manifest
from compatkit.errors import VersionTooSmall
from compatkit.registry.names import Version
from compatkit.registry.versions.diff import Difference, diff
from compatkit.registry.versions.rules import MEASURED

SHOWN = 8
"""Reasons that a message lists; a head may lose thousands of labels at once."""
PUBLISHED, ADMITTED = ", published as measured", ", let in unmeasured"
"""Ends of reasons for a step that only a measurement makes small enough; the second is recorded by a policy's log."""
STAY = (
    "New weights stay within a major line only if they were trained against the frozen auxiliary head of the "
    "version before, or were measured. "
)


def check_step(name: str, before: Version, target: Version, change: Difference) -> None:
    """Refuse a number that is too small a step, before it is published.

    Args:
        name: Of the component.
        before: The version before.
        target: The new version.
        change: From one to the other, and the step that it demands.

    Raises:
        VersionTooSmall: Says why, level by level.
    """
    least = before.bumped(change.bump)
    if target >= least:
        return
    stay = STAY if any(difference.place == ("payload", "tensors") for difference in change.changes) else ""
    raise VersionTooSmall(
        f"{name}@{target} is too small a step from {before}: at least {least} is needed, because "
        f"{_reasons(before, target, change)}. "
        f"{stay}Publish without a version to get the least step, or ask for {least} or more.",
        subject=f"{name}@{target}",
    )


def untrue(
    before: tuple[Version, Manifest], after: tuple[Version, Manifest], *, measured: bool = True
) -> str:
    """Return why the number of a version understates the change since the one below it; empty if it does not.

    Args:
        before: The version below, with its manifest.
        after: The version, with its manifest.
        measured: Whether new weights may have been measured.
    """
    change = diff(before[1], after[1], measured=measured)
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
    """Compare two versions of one name, with the steps that were demanded when the later one was published.

    Two manifests do not show whether a new function was measured; the number does. Where only a measurement makes it
    large enough, it was published as measured, or let in without.

    Args:
        before: A version, with its manifest.
        after: Another version of that name, with its manifest.
        admitted: Whether the log of a policy says that the later one was let in unmeasured.
    """
    change = diff(before[1], after[1])
    if after[0] <= before[0] or after[0] >= before[0].bumped(change.bump):
        return change
    measured = diff(before[1], after[1], measured=True)
    if after[0] < before[0].bumped(measured.bump):
        return change  # an untrue number proves nothing
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
    more = f"; and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return "; ".join(listed[:SHOWN]) + more
