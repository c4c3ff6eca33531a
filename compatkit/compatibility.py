"""Contract against contract: whether a head fits an extractor, from their manifests alone.

A pure function that reads no weights. It says whether the parts can be wired, what they were both trained
against, and what was measured; these are three answers, because equal shapes are not compatibility.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from compatkit.contract import Anchor, Contract, Data, Label, Protocol
from compatkit.data.classes import common
from compatkit.errors import UsageError
from compatkit.evaluation.cells import Cell, Grade
from compatkit.verdict import EQUAL_SHAPES, Finding, Promise, Report, Wiring
from compatkit.wiring import wiring_findings

if TYPE_CHECKING:
    from compatkit.registry.manifest import Manifest

__all__ = ["Finding", "Report", "check"]

EXTRACTORS = ("extractor", "encoder")
HEADS = ("head", "auxiliary_head")
FAR_MEAN = 0.5
"""Feature means further apart than this many standard deviations of the head's training features are far."""
FAR_SCALE = 2.0
"""Feature standard deviations that differ by more than this factor are far."""
SHOWN = 12

_common = lru_cache(maxsize=1024)(common)  # one matching for all pairs that have the same classes


def check(
    extractor: Manifest, head: Manifest, *, data: Data | None = None, evidence: Sequence[Cell] = ()
) -> Report:
    """Compare the contracts of an extractor and a head.

    Args:
        extractor: Manifest of the component that gives features.
        head: Manifest of the component that takes them.
        data: Images and classes that the pair is meant for; None leaves classes out of the check.
        evidence: Measured cells of this pair, oldest first; the newest that is not stale counts.

    Returns:
        The report: wiring, promise, evidence and the findings behind them.

    Raises:
        UsageError: The first is no extractor, or the second no head.
        DataError: A class of the data means the same as two of the head, or the other way round.
    """
    for manifest, kinds, place in ((extractor, EXTRACTORS, "first"), (head, HEADS, "second")):
        if manifest.kind not in kinds:
            raise UsageError(
                f"The {place} of the two components must be of kind {' or '.join(kinds)}, but is of kind "
                f"{manifest.kind}. Pass the extractor first, then the head.",
                subject=manifest,
            )
    left, right = extractor.contract, head.contract
    structural = tuple(
        wiring_findings(left.structural.outputs, right.structural.inputs, left.data, right.data)
    )
    severities = {one.severity for one in structural}
    wiring: Wiring = (
        "refused" if "refuses" in severities else "needs-adapter" if "adaptable" in severities else "direct"
    )
    shared, promise = _protocol(left.protocol, right.protocol)
    grade, measured = _evidence(evidence, promise)
    findings = (*structural, *_data(left, right, data), *shared, *_statistics(left, right), *measured)
    return Report(wiring, promise, grade, findings)


def _data(left: Contract, right: Contract, data: Data | None) -> Iterator[Finding]:
    given, trained = left.data, right.data
    differing = [
        name for name in ("size", "channels", "mean", "std") if getattr(given, name) != getattr(trained, name)
    ]
    if differing:
        yield Finding(
            "input-differs",
            "data",
            "informs",
            "; ".join(f"{name} {_value(getattr(trained, name))}" for name in differing),
            "; ".join(f"{name} {_value(getattr(given, name))}" for name in differing),
            "images that the head was trained on, images of the extractor",
            "none needed: the extractor's own preprocessing is used",
        )
    if data is not None and data.labels is not None:
        yield from _labels(right.data.labels or (), data.labels)


def _labels(outputs: Sequence[Label], asked: Sequence[Label]) -> Iterator[Finding]:
    pairs = _common(tuple(asked), tuple(outputs))
    if len(pairs) == len(asked) == len(outputs):
        return
    whose = "classes of the data asked for, classes of the head"
    if pairs:
        common = _names([asked[index] for index, _ in pairs])
        yield Finding(
            "labels-partial",
            "data",
            "informs",
            _names(asked),
            _names(outputs),
            whose,
            f"only the {len(pairs)} classes in common are counted: {common}",
        )
    else:
        yield Finding(
            "labels-disjoint",
            "data",
            "warns",
            _names(asked),
            _names(outputs) if outputs else "no named classes",
            whose,
            "accuracy is not defined; choose data with a class of the head, or rename equal classes",
        )


def _protocol(left: Protocol, right: Protocol) -> tuple[tuple[Finding, ...], Promise]:
    findings: list[Finding] = []
    sides = [name for name, one in (("extractor", left), ("head", right)) if one.normalisation == "batch"]
    if sides:
        findings.append(
            Finding(
                "normalisation-needed",
                "protocol",
                "informs",
                "statistics of the images that the pair runs on",
                "statistics of the images that each part was trained on",
                f"batch normalisation in the {' and the '.join(sides)}",
                "normalisation batch (batches of the extractor's images), or reestimate (unlabelled images "
                "of the extractor's own data)",
            )
        )
    known = {(one.kind, one.digest) for one in left.anchors}
    shared = [one for one in right.anchors if (one.kind, one.digest) in known]
    kinds = {one.kind for one in shared}
    promise: Promise = "shared-head" if "auxiliary_head" in kinds else "shared-init" if kinds else "none"
    return (*findings, *map(_anchor, shared)), promise


def _anchor(shared: Anchor) -> Finding:
    if shared.kind == "initial_weights":
        return Finding(
            "initial-weights-shared",
            "protocol",
            "informs",
            f"initial weights {_short(shared.digest)}",
            "the same",
            "head and extractor",
            "alone never a promise: training moves the networks apart again; measure the pair",
        )
    classes = f" ({_names(shared.classes)})" if shared.classes else ""
    return Finding(
        "head-shared",
        "protocol",
        "promises",
        f"trained against the auxiliary head {shared.task or 'without a name'} {_short(shared.digest)}",
        f"the same{classes}",
        "head and extractor",
    )


def _statistics(left: Contract, right: Contract) -> Iterator[Finding]:
    for given, trained in zip(
        left.statistical.features or (), right.statistical.features or (), strict=False
    ):
        shift = abs(given.mean - trained.mean)
        # Written without a division, so that features of scale 0 are far from all others and not from each other.
        scaled = given.std > FAR_SCALE * trained.std or trained.std > FAR_SCALE * given.std
        if shift > FAR_MEAN * trained.std or scaled:
            yield Finding(
                "statistics-far",
                "statistical",
                "warns",
                f"features of mean {trained.mean:.4g} and standard deviation {trained.std:.4g}",
                f"mean {given.mean:.4g} and standard deviation {given.std:.4g}",
                "training features of the head, training features of the extractor",
                "normalisation reestimate, or a bridge fitted on unlabelled images",
            )


def _evidence(cells: Sequence[Cell], promise: Promise) -> tuple[Grade, tuple[Finding, ...]]:
    counted = [cell for cell in cells if cell.restricted is not None]
    if not counted:
        if promise == "shared-head":
            return "none", ()
        return "none", (
            Finding(
                "evidence",
                "empirical",
                "warns",
                "a measured accuracy, or a shared auxiliary head",
                f"neither; {EQUAL_SHAPES.rstrip('.').lower()}",
                "this extractor with this head",
                "compatkit matrix EXTRACTOR HEAD",
            ),
        )
    fresh = [cell for cell in counted if cell.grade != "stale"]
    return (fresh[-1] if fresh else counted[-1]).grade, tuple(map(_measured, counted))


def _measured(cell: Cell) -> Finding:
    figure = cell.restricted
    came = "no figure"
    if figure is not None:
        came = f"{figure.accuracy:.3f} [{figure.low:.3f}, {figure.high:.3f}] on {figure.count} images"
    bound = f"bound {cell.bound.accuracy:.3f}" if cell.bound is not None else "no bound measured"
    chance = f"chance {cell.chance:.3f}" if cell.chance is not None else "chance not known"
    policy = cell.settings.get("policy", "unknown")
    return Finding(
        "evidence",
        "empirical",
        "warns" if cell.grade in ("chance", "stale") else "informs",
        f"{chance}, {bound}",
        f"{came}: {cell.grade}",
        f"this extractor with this head, normalisation {policy}, data {cell.settings.get('data', 'unknown')}",
        "measure again: the metric has changed since" if cell.grade == "stale" else "",
    )


def _names(labels: Sequence[Label]) -> str:
    shown = ", ".join(one.name for one in labels[:SHOWN])
    return shown + (f", ... ({len(labels)} classes)" if len(labels) > SHOWN else "")


def _short(digest: str) -> str:
    return digest[: digest.rfind(":") + 13]


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{one:.4g}" if isinstance(one, float) else str(one) for one in value)
    return str(value)
