"""Rules of a check other than wiring and classes: images, training, statistics and measurements.

Each rule compares a level of two contracts and returns findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from compatkit.contracts.contract import Anchor, Data, FeatureStatistics, Port, Protocol
from compatkit.contracts.labels import Labels, class_list, shared_classes
from compatkit.contracts.report import EQUAL_SHAPES, Finding, Promise, Report
from compatkit.errors import DataError

if TYPE_CHECKING:
    from compatkit.contracts.channels import Blobs, ChannelStatistics
    from compatkit.contracts.evidence import Cell
    from compatkit.contracts.grades import Grade
    from compatkit.contracts.manifest import Manifest

RELEASED = "released"
"""Task name of an anchor for a released target head rather than an auxiliary head."""
COMPARED_FIELDS = ("size", "channels", "mean", "std")
"""Compared fields of ``Data``."""
FAR_MEAN = 0.5
"""Limit for the distance of feature means, in standard deviations of the head's training features."""
FAR_SCALE = 2.0
"""Limit for the ratio of feature standard deviations."""
MIN_STD_SHARE = 0.01
"""Minimal standard deviation of a channel as a share of its port's, so that dead channels do not count as far."""
REMEDY = (
    "re-estimate the statistics (bn_policy), or bridge the parts with an adapter fitted on unlabeled images"
)
BOTH = "head and extractor"


def image_findings(extractor: Data, head: Data) -> list[Finding]:
    """Compare the extractor's images with the head's training images.

    Args:
        extractor: Preprocessing of the extractor's images.
        head: Preprocessing of the images that the head was trained on.
    """
    values = [(name, getattr(head, name), getattr(extractor, name)) for name in COMPARED_FIELDS]
    differences = [
        (f"{name} {_value_text(required)}", f"{name} {_value_text(provided)}")
        for name, required, provided in values
        if required != provided
    ]
    if not differences:
        return []
    expected, actual = ("; ".join(texts) for texts in zip(*differences, strict=True))
    subject = "images that the head was trained on, images of the extractor"
    remedy = "none needed: the extractor's own preprocessing is used"
    return [Finding("input-differs", "data", "informs", expected, actual, subject, remedy)]


def protocol_of(head: Manifest) -> Protocol:
    """Return the protocol of a head, with the head itself added as an anchor of extractors trained against it."""
    protocol = head.contract.protocol
    if head.kind != "head":
        return protocol
    own = Anchor("auxiliary_head", head.payload.tensors, RELEASED, head.contract.data.labels)
    return Protocol(protocol.norm, (*protocol.anchors, own))


def training_findings(extractor: Protocol, head: Protocol) -> list[Finding]:
    """Return findings on batch normalization, and on every shared anchor.

    Args:
        extractor: Protocol of the extractor.
        head: Protocol of the head; see ``protocol_of``.
    """
    findings = []
    if sides := [name for name, part in (("extractor", extractor), ("head", head)) if part.norm == "batch"]:
        finding = Finding(
            "normalization-needed",
            "protocol",
            "informs",
            "statistics of the images that the pair runs on",
            "statistics of the images that each part was trained on",
            f"batch normalization in the {' and the '.join(sides)}",
            "bn_policy batch (batches of the extractor's images), or reestimate (unlabeled images of the "
            "extractor's own data)",
        )
        findings.append(finding)
    anchors = {(anchor.kind, anchor.digest): anchor for anchor in extractor.anchors}
    for anchor in head.anchors:
        if (shared := anchors.get((anchor.kind, anchor.digest))) is not None:
            findings.append(_shared_anchor(shared, anchor))
    return findings


def _shared_anchor(extractor: Anchor, head: Anchor) -> Finding:
    digest = _short(head.digest)
    if head.kind == "initial_weights":
        return Finding(
            "initial-weights-shared",
            "protocol",
            "informs",
            f"initial weights {digest}",
            f"the same{_shared_rows(extractor.classes or (), head.classes or ())}",
            BOTH,
            "no promise by itself: training moves the networks apart again; equal initial class layers help if the "
            "same class has the same row; measure the pair",
        )
    classes = f" ({class_list(head.classes)})" if head.classes else ""
    expected = f"trained against the auxiliary head {head.task or 'without a name'} {digest}"
    return Finding("head-shared", "protocol", "promises", expected, f"the same{classes}", BOTH)


def _shared_rows(left: Labels, right: Labels) -> str:
    """Return the number of common classes with the same row in two class layers, as text; empty without any."""
    try:
        pairs = shared_classes(left, right)
    except DataError:  # duplicate class names are reported by `check(data=...)`
        return ""
    same = sum(row == head_row for row, head_row in pairs)
    return f"; class layers too: {same} of {len(pairs)} common classes have the same row" if pairs else ""


def own_extractor_finding(extractor: str, *, exact: bool) -> Finding:
    """Return the finding that a head was cut from or trained with an extractor.

    Args:
        extractor: Manifest digest of the head's own extractor; it covers weights and cut.
        exact: Whether the extractor has this digest; if False, it computes the same function.
    """
    expected = f"the extractor that the head was cut or trained with ({_short(extractor)})"
    actual = "this extractor" if exact else "another release of it, which computes the same"
    return Finding("one-network", "protocol", "promises", expected, actual, BOTH)


def promise_of(codes: Sequence[str]) -> Promise:
    """Return the strongest promise among the codes of training findings."""
    if "one-network" in codes:
        return "one-network"
    if "head-shared" in codes:
        return "shared-head"
    return "shared-init" if "initial-weights-shared" in codes else "none"


class Features(NamedTuple):
    """Feature statistics of one port, as compared by ``statistics_findings``.

    Attributes:
        mean: Mean over all images, channels and positions.
        std: Standard deviation over all images, channels and positions.
        channels: Per-channel statistics, if they were read.
        port: Name of the port, if a head has several.
    """

    mean: float
    std: float
    channels: ChannelStatistics | None
    port: str | None


def port_features(
    features: Sequence[FeatureStatistics] | None, blobs: Blobs, inputs: Sequence[Port] | None = None
) -> tuple[Features, ...]:
    """Return the statistics of each feature port, in order.

    Args:
        features: Feature statistics of the contract.
        blobs: Channel statistics by blob digest, as far as they were read.
        inputs: Input ports of a head; None for an extractor.
    """
    features = features or ()
    names = [port.name for port in inputs] if inputs and len(inputs) > 1 else [None] * len(features)
    rows = []
    for statistics, name in zip(features, names, strict=False):
        channels = blobs.get(statistics.per_channel["blob"]) if statistics.per_channel else None
        rows.append(Features(statistics.mean, statistics.std, channels, name))
    return tuple(rows)


def statistics_findings(left: Sequence[Features], right: Sequence[Features]) -> list[Finding]:
    """Return findings for features that are far from the head's training features.

    Per-channel statistics are compared if both sides have them for the same number of channels, else those of the port.

    Args:
        left: Features of the extractor.
        right: Training features of the head.
    """
    findings = []
    for provided, trained in zip(left, right, strict=False):
        mean, std, channels, _ = provided
        head_mean, head_std, head_channels, port = trained
        if (
            channels is not None
            and head_channels is not None
            and len(channels.means) == len(head_channels.means)
        ):
            texts = _worst_channel(channels, head_channels, MIN_STD_SHARE * head_std)
        # Without a division, so that constant features are far from all others but not from each other.
        elif (
            abs(mean - head_mean) > FAR_MEAN * head_std
            or std > FAR_SCALE * head_std
            or head_std > FAR_SCALE * std
        ):
            texts = (
                f"{_moments_text(head_mean, head_std)} over all channels",
                f"{_moments_text(mean, std)} over all channels",
            )
        else:
            continue
        if texts is not None:
            subject = "training features of the head, features of the extractor on its own images"
            subject += f", port {port!r}" if port is not None else ""
            findings.append(Finding("statistics-far", "statistical", "warns", *texts, subject, REMEDY))
    return findings


def _worst_channel(
    provided: ChannelStatistics, trained: ChannelStatistics, min_std: float
) -> tuple[str, str] | None:
    """Return expected and actual statistics of the farthest channel as texts; None if no channel is far.

    Standard deviations below ``min_std`` are raised to it.
    """
    import numpy as np

    std, head_std = np.maximum(provided.stds, min_std), np.maximum(trained.stds, min_std)
    shift = abs(provided.means - trained.means)
    far = (shift > FAR_MEAN * head_std) | (std > FAR_SCALE * head_std) | (head_std > FAR_SCALE * std)
    if not far.any():
        return None
    tiny = 1e-300  # avoids division by 0; a standard deviation of 0 is at maximal distance
    std, head_std = np.maximum(std, tiny), np.maximum(head_std, tiny)
    with np.errstate(over="ignore"):
        distance = np.maximum.reduce(
            [shift / (FAR_MEAN * head_std), std / head_std / FAR_SCALE, head_std / std / FAR_SCALE]
        )
    worst = int(np.where(far, distance, -1).argmax())
    expected, actual = (_moments_text(side.means[worst], side.stds[worst]) for side in (trained, provided))
    count = int(far.sum())
    return (
        f"{expected} in channel {worst}",
        f"{actual}: the worst of {count} far channels, of {len(far)}",
    )


def _moments_text(mean: float, std: float) -> str:
    return f"mean {mean:.4g} and standard deviation {std:.4g}"


def newest_grade(cells: Sequence[Cell], bn_policy: str) -> Grade:
    """Return the grade of the newest measurement under a batch-norm policy; stale only if all are.

    Args:
        cells: Measured cells of a pair, oldest first.
        bn_policy: Batch-norm policy of the pair.
    """
    grades: list[Grade] = [
        cell.grade for cell in cells if cell.restricted is not None and cell.holds_under(bn_policy)
    ]
    fresh: list[Grade] = [grade for grade in grades if grade != "stale"]
    return (fresh or grades or ["none"])[-1]


def empirical_findings(answers: Report, cells: Sequence[Cell], bn_policy: str) -> Iterator[Finding]:
    """Yield a finding for each measurement of a pair, and one for a pair that is unproven.

    Args:
        answers: Report with wiring, promise and evidence; its findings are ignored.
        cells: Measured cells of this pair, oldest first.
        bn_policy: Batch-norm policy of the pair; measurements under another are listed but do not count.
    """
    for cell in cells:
        if cell.restricted is not None:
            yield _measured(cell, bn_policy)
    if answers.unproven:
        actual = "only shared initial weights" if answers.promise == "shared-init" else "neither"
        others = {policy_of(cell) for cell in cells if not cell.holds_under(bn_policy)}
        if answers.evidence == "stale":
            actual = "only measurements from before the metric changed"
        elif others:
            actual = f"only measurements under bn_policy {', '.join(sorted(others))}, not under {bn_policy}"
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
    actual = "not measured"
    if (figure := cell.restricted) is not None:
        actual = f"{figure.accuracy:.3f} [{figure.low:.3f}, {figure.high:.3f}] on {figure.count} images"
    if cell.recovered is not None:
        actual += f", recovered {cell.recovered:.3f}"
    bound = f"bound {cell.bound.accuracy:.3f}" if cell.bound is not None else "no bound measured"
    chance = f"chance {cell.chance:.3f}" if cell.chance is not None else "chance not known"
    policy, counts, remedy = policy_of(cell), cell.holds_under(bn_policy), ""
    if not counts:
        remedy = f"does not count for bn_policy {bn_policy}; check with bn_policy {policy} (bn_policy=, --bn-policy)"
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


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{item:.4g}" if isinstance(item, float) else str(item) for item in value)
    return str(value)
