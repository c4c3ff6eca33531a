"""Rules of a check other than wiring and classes: images, training, statistics and measurements.

A rule compares what the contracts of an extractor and of a head say, and returns findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from compatkit.contracts.channels import Blobs, ChannelFigures
from compatkit.contracts.contract import Anchor, Data, FeatureStatistics, Port, Protocol
from compatkit.contracts.evidence import Cell, Grade
from compatkit.contracts.labels import Labels, names, shared_classes
from compatkit.contracts.report import EQUAL_SHAPES, Finding, Promise, Report
from compatkit.errors import DataError

if TYPE_CHECKING:
    from compatkit.contracts.manifest import Manifest

RELEASED = "released"
"""Task name of an anchor that is a released target head rather than an auxiliary head."""
IMAGES = ("size", "channels", "mean", "std")
"""Fields of the images that are compared."""
FAR_MEAN = 0.5
"""Limit for the distance of feature means, in standard deviations of the head's training features."""
FAR_SCALE = 2.0
"""Limit for the ratio of feature standard deviations."""
QUIET = 0.01
"""Floor for a channel's standard deviation as a share of its port's, so that dead channels do not count as far."""
REMEDY = (
    "re-estimate the statistics (bn_policy), or bridge the parts with an adapter fitted on unlabeled images"
)
BOTH = "head and extractor"


def images(extractor: Data, head: Data) -> list[Finding]:
    """Compare the extractor's images with the head's training images.

    Args:
        extractor: Preprocessing of the extractor's images.
        head: Preprocessing of the images that the head was trained on.
    """
    pairs = [(name, getattr(head, name), getattr(extractor, name)) for name in IMAGES]
    other = [
        (f"{name} {_value(theirs)}", f"{name} {_value(mine)}")
        for name, theirs, mine in pairs
        if theirs != mine
    ]
    if not other:
        return []
    expected, actual = ("; ".join(texts) for texts in zip(*other, strict=True))
    subject = "images that the head was trained on, images of the extractor"
    remedy = "none needed: the extractor's own preprocessing is used"
    return [Finding("input-differs", "data", "informs", expected, actual, subject, remedy)]


def protocol_of(head: Manifest) -> Protocol:
    """Return the protocol of a head, with the head itself added as an anchor for partners trained against it."""
    known = head.contract.protocol
    if head.kind != "head":
        return known
    own = Anchor("auxiliary_head", head.payload.tensors, RELEASED, head.contract.data.labels)
    return Protocol(known.norm, (*known.anchors, own))


def training(extractor: Protocol, head: Protocol) -> list[Finding]:
    """Report whether batch normalization needs other statistics, and every shared anchor.

    Args:
        extractor: What the extractor was trained against.
        head: What the head was trained against; see ``protocol_of``.
    """
    findings = []
    if sides := [name for name, part in (("extractor", extractor), ("head", head)) if part.norm == "batch"]:
        normalized = Finding(
            "normalization-needed",
            "protocol",
            "informs",
            "statistics of the images that the pair runs on",
            "statistics of the images that each part was trained on",
            f"batch normalization in the {' and the '.join(sides)}",
            "bn_policy batch (batches of the extractor's images), or reestimate (unlabeled images of the "
            "extractor's own data)",
        )
        findings.append(normalized)
    own = {(anchor.kind, anchor.digest): anchor for anchor in extractor.anchors}
    for anchor in head.anchors:
        if (mine := own.get((anchor.kind, anchor.digest))) is not None:
            findings.append(_shared(mine, anchor))
    return findings


def _shared(mine: Anchor, theirs: Anchor) -> Finding:
    digest = _short(theirs.digest)
    if theirs.kind == "initial_weights":
        return Finding(
            "initial-weights-shared",
            "protocol",
            "informs",
            f"initial weights {digest}",
            f"the same{_rows(mine.classes or (), theirs.classes or ())}",
            BOTH,
            "alone never a promise: training moves the networks apart again; class layers that started equal help "
            "where the same class stands at the same row; measure the pair",
        )
    classes = f" ({names(theirs.classes)})" if theirs.classes else ""
    expected = f"trained against the auxiliary head {theirs.task or 'without a name'} {digest}"
    return Finding("head-shared", "protocol", "promises", expected, f"the same{classes}", BOTH)


def _rows(left: Labels, right: Labels) -> str:
    """Describe how many common classes have the same row in two class layers with equal start; empty without any."""
    try:
        pairs = shared_classes(left, right)
    except DataError:  # duplicate class names are reported by `check(data=...)`
        return ""
    same = sum(mine == theirs for mine, theirs in pairs)
    return f"; class layers too: {same} of {len(pairs)} common classes stand at one row" if pairs else ""


def own(extractor: str, *, exact: bool) -> Finding:
    """Return the finding that a head was cut from or trained with an extractor.

    Args:
        extractor: Manifest digest that the head names; it covers weights and cut.
        exact: Whether it is exactly this extractor, or another release that computes the same function.
    """
    expected = f"the extractor that the head was cut or trained with ({_short(extractor)})"
    actual = "this extractor" if exact else "another release of it, which computes the same"
    return Finding("one-network", "protocol", "promises", expected, actual, BOTH)


def promise_of(codes: Sequence[str]) -> Promise:
    """Return the strongest promise among the codes of training hits."""
    if "one-network" in codes:
        return "one-network"
    if "head-shared" in codes:
        return "shared-head"
    return "shared-init" if "initial-weights-shared" in codes else "none"


class Features(NamedTuple):
    """Inputs of the rule ``statistics`` for one feature port.

    Attributes:
        mean: Over all images, channels and positions.
        std: Over the same.
        channels: Per-channel statistics, if they were read.
        port: Name of the port, if a head has several.
    """

    mean: float
    std: float
    channels: ChannelFigures | None
    port: str | None


def features_of(
    features: Sequence[FeatureStatistics] | None, blobs: Blobs, inputs: Sequence[Port] | None = None
) -> tuple[Features, ...]:
    """Return the inputs of the rule ``statistics``, in the order of the feature ports.

    Args:
        features: Feature statistics of the contract.
        blobs: Channel statistics by blob digest, as far as they were read.
        inputs: Input ports of a head; None for an extractor.
    """
    stated = features or ()
    names = [port.name for port in inputs] if inputs and len(inputs) > 1 else [None] * len(stated)
    rows = []
    for known, name in zip(stated, names, strict=False):
        channels = blobs.get(known.per_channel["blob"]) if known.per_channel else None
        rows.append(Features(known.mean, known.std, channels, name))
    return tuple(rows)


def statistics(left: Sequence[Features], right: Sequence[Features]) -> list[Finding]:
    """Return findings for features that are far from the head's training features.

    Per-channel statistics are compared if both sides have them for the same number of channels, else those of the port.

    Args:
        left: Features of the extractor.
        right: Training features of the head.
    """
    findings = []
    for provided, trained in zip(left, right, strict=False):
        mean, std, mine, _ = provided
        wanted, scale, theirs, port = trained
        if mine is not None and theirs is not None and len(mine.means) == len(theirs.means):
            texts = _worst(mine, theirs, QUIET * scale)
        # Without a division, so that features of scale 0 are far from all others but not from each other.
        elif abs(mean - wanted) > FAR_MEAN * scale or std > FAR_SCALE * scale or scale > FAR_SCALE * std:
            texts = (
                f"{_figures(wanted, scale)} over all channels",
                f"{_figures(mean, std)} over all channels",
            )
        else:
            continue
        if texts is not None:
            subject = "training features of the head, features of the extractor on its own images"
            subject += f", port {port!r}" if port is not None else ""
            findings.append(Finding("statistics-far", "statistical", "warns", *texts, subject, REMEDY))
    return findings


def _worst(provided: ChannelFigures, trained: ChannelFigures, quiet: float) -> tuple[str, str] | None:
    """Describe the channel that is farthest, expected and actual; None if none is far.

    Scales below ``quiet`` are raised to it.
    """
    import numpy as np

    scale, wanted = np.maximum(provided.stds, quiet), np.maximum(trained.stds, quiet)
    shift = abs(provided.means - trained.means)
    far = (shift > FAR_MEAN * wanted) | (scale > FAR_SCALE * wanted) | (wanted > FAR_SCALE * scale)
    if not far.any():
        return None
    tiny = 1e-300  # avoids division by 0; a scale of 0 is at maximal distance
    scale, wanted = np.maximum(scale, tiny), np.maximum(wanted, tiny)
    with np.errstate(over="ignore"):
        distance = np.maximum.reduce(
            [shift / (FAR_MEAN * wanted), scale / wanted / FAR_SCALE, wanted / scale / FAR_SCALE]
        )
    worst = int(np.where(far, distance, -1).argmax())
    expected, actual = (_figures(side.means[worst], side.stds[worst]) for side in (trained, provided))
    count = int(far.sum())
    return (
        f"{expected} in channel {worst}",
        f"{actual}: the worst of {count} channels that are far, of {len(far)}",
    )


def _figures(mean: float, std: float) -> str:
    return f"mean {mean:.4g} and standard deviation {std:.4g}"


def newest(cells: Sequence[Cell], bn_policy: str) -> Grade:
    """Return the grade of the newest measurement under a batch-norm policy: of those not stale, if there are any.

    Args:
        cells: Measurements of a pair, oldest first.
        bn_policy: Batch-norm policy that was asked about.
    """
    grades: list[Grade] = [
        cell.grade for cell in cells if cell.restricted is not None and cell.holds_under(bn_policy)
    ]
    fresh: list[Grade] = [grade for grade in grades if grade != "stale"]
    counted = fresh or grades
    return counted[-1] if counted else "none"


def empirical_findings(answers: Report, cells: Sequence[Cell], bn_policy: str) -> Iterator[Finding]:
    """Yield findings on the measurements of a pair, or that it is unproven if only its shapes fit.

    Args:
        answers: Wiring, promise and evidence; its findings are ignored.
        cells: Measured cells of this pair, oldest first.
        bn_policy: Batch-norm policy that was asked about; figures under another are told but do not count.
    """
    for cell in cells:
        if cell.restricted is not None:
            yield _measured(cell, bn_policy)
    if answers.unproven:
        actual = "only shared initial weights" if answers.promise == "shared-init" else "neither"
        others = {policy_of(cell) for cell in cells if not cell.holds_under(bn_policy)}
        if answers.evidence == "stale":
            actual = "only figures from before the metric changed"
        elif others:
            actual = f"only figures under bn_policy {', '.join(sorted(others))}, asked about {bn_policy}"
        yield Finding(
            "unproven",
            "empirical",
            "warns",
            "a measured accuracy, a shared auxiliary head, or the two parts of one network",
            f"{actual}; {EQUAL_SHAPES.rstrip('.').lower()}",
            "this extractor with this head",
            "compatkit matrix EXTRACTOR HEAD",
        )


def policy_of(cell: Cell) -> str:
    """Return the batch-norm policy that a cell was measured under."""
    return str(cell.settings.get("policy", "unknown"))


def _measured(cell: Cell, bn_policy: str) -> Finding:
    actual = "no figure"
    if (figure := cell.restricted) is not None:
        actual = f"{figure.accuracy:.3f} [{figure.low:.3f}, {figure.high:.3f}] on {figure.count} images"
    if cell.recovered is not None:
        actual += f", recovered {cell.recovered:.3f}"
    bound = f"bound {cell.bound.accuracy:.3f}" if cell.bound is not None else "no bound measured"
    chance = f"chance {cell.chance:.3f}" if cell.chance is not None else "chance not known"
    policy, counts, remedy = policy_of(cell), cell.holds_under(bn_policy), ""
    if not counts:
        remedy = f"does not count for bn_policy {bn_policy}; ask about {policy} (bn_policy=, --bn-policy)"
    elif cell.grade == "stale":
        remedy = "measure again: the metric has changed since"
    return Finding(
        "evidence",
        "empirical",
        "warns" if counts and cell.grade in ("chance", "stale") else "informs",
        f"{chance}, {bound}",
        f"{actual}: {cell.grade}",
        f"this extractor with this head, bn_policy {policy}, data {cell.settings.get('data', 'unknown')}",
        remedy,
    )


def _short(digest: str) -> str:
    return digest[: digest.rfind(":") + 13]


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{item:.4g}" if isinstance(item, float) else str(item) for item in value)
    return str(value)
