"""Check whether a pair of parts can be measured, and on which classes, without running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.batchnorm import DEFAULT
from compatkit.contracts.check import Report, pair_report
from compatkit.contracts.labels import Labels, first_names, label, shared_classes

if TYPE_CHECKING:
    from compatkit.contracts.contract import Label
    from compatkit.contracts.manifest import Manifest
    from compatkit.contracts.report import Promise
    from compatkit.evaluation.component import Component
    from compatkit.evaluation.conditions import ImageFacts

Anchors = frozenset[tuple[str, str]]
BROKEN = "not_finite"
"""Setting that counts images with non-finite outputs; absent if there were none."""
NORMALIZED = "batch"
"""Value in a contract's protocol for a part with batch normalization."""


@attrs.frozen(eq=False)
class Prospect:
    """Result of checking a pair before it runs.

    Attributes:
        report: Check of the two contracts with the classes of these images.
        classes: Common classes: (index in the split, output of the head).
        common: Their names in the images' data set.
        reason: Why the pair cannot be measured, or empty.
    """

    report: Report
    classes: list[tuple[int, int]]
    common: tuple[str, ...]
    reason: str


def prospect(extractor: Component, head: Component, images: ImageFacts, *, adapted: bool) -> Prospect:
    """Compare the contracts of two parts for the images that the extractor is measured on.

    Args:
        extractor: Extractor of the pair.
        head: Head of the pair.
        images: The images; without counts, classes are not compared.
        adapted: Whether adapters are inserted, so that needing them is no obstacle.

    Raises:
        UsageError: The first is not an extractor, or the second not a head.
        DataError: Two classes of the images, or of the head, have the same name.
    """
    known = images.counts
    labels = _labels(tuple(known)) if known is not None else None
    report = pair_report(
        extractor.manifest,
        head.manifest,
        data=labels,
        evidence=(),
        channels={},
        own=head.is_own(extractor),
        bn_policy=DEFAULT,
        digest=extractor.resolved.digest,
    )
    classes = list(shared_classes(labels, head.contract.data.labels or ())) if labels is not None else []
    names = tuple(list(known)[mine] for mine, _ in classes) if known is not None else ()
    return Prospect(report, classes, names, _reason(report, images, names, adapted))


def unknown_classes(own: Labels, common: Sequence[str]) -> tuple[str, ...]:
    """Return the common classes of a cell that the extractor's own head does not know, so that it gives no bound.

    Args:
        own: Classes of that head.
        common: Names of the common classes, as in the images' data set.
    """
    known = {mine for mine, _ in shared_classes(_labels(tuple(common)), own)}
    return tuple(name for position, name in enumerate(common) if position not in known)


def no_bound(head: str, unknown: Sequence[str]) -> str:
    """Return the note that a head gives no bound.

    Args:
        head: Its reference.
        unknown: Common classes that it does not know.
    """
    return f"No bound: {head}, the extractor's own head, does not know {first_names(unknown)} of the common classes."


def notes_of(known: Prospect, settings: Mapping[str, Any], *, figures: bool) -> tuple[str, ...]:
    """Return a cell's notes for display: findings of the check, and remarks on the settings.

    Args:
        known: Prospect of the pair.
        settings: Settings of the cell.
        figures: Whether the cell has figures that hold, so that it is not unproven.
    """
    notes = [str(finding) for finding in known.report.findings if not figures or finding.level != "empirical"]
    if not settings["normalised"]:
        policy = settings["policy"]
        notes.append(f"No batch normalization in either part: the policy {policy!r} changes nothing.")
    if BROKEN in settings:
        notes.append(f"{settings[BROKEN]} images gave outputs that are not finite; they count as wrong.")
    return tuple(notes)


def promise(extractor: Anchors, head: Anchors, *, own: bool) -> Promise:
    """Return the promise of two parts, as in a check's report.

    Args:
        extractor: Kind and digest of each anchor.
        head: The same.
        own: Whether the head names exactly this extractor as the one it was trained with.
    """
    if own:
        return "one-network"
    if extractor.isdisjoint(head):
        return "none"
    kinds = {kind for kind, _ in extractor & head}
    return "shared-head" if kinds != {"initial_weights"} else "shared-init"


def have_batch_norm(extractor: Manifest, head: Manifest) -> bool:
    """Return whether the batch-norm policy matters to either part, according to their contracts.

    Args:
        extractor: Its manifest.
        head: Its manifest.
    """
    return NORMALIZED in (extractor.contract.protocol.norm, head.contract.protocol.norm)


@lru_cache(maxsize=64)
def _labels(names: tuple[str, ...]) -> tuple[Label, ...]:
    """Return the classes of images, cached: comparisons are remembered by object identity."""
    return tuple(map(label, names))


def wiring_obstacle(report: Report, *, adapted: bool = False) -> str:
    """Return why two parts cannot be wired, with or without adapters; empty if they can.

    Args:
        report: Check of the two contracts.
        adapted: Whether adapters may be put between.
    """
    if report.wiring == "direct" or (report.wiring == "needs-adapter" and adapted):
        return ""
    codes = [finding.code for finding in report.findings if finding.severity in ("refuses", "adaptable")]
    return f"wiring {report.wiring}: {', '.join(codes)}"


def _reason(report: Report, images: ImageFacts, names: tuple[str, ...], adapted: bool) -> str:
    if why := wiring_obstacle(report, adapted=adapted):
        return why
    if images.counts is None:
        return ""
    if not names:
        return f"no class in common with {images.name}"
    if not any(images.counts[name] for name in names):
        return f"{images.name} holds no image of a common class"
    return ""
