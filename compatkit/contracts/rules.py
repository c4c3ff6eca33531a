"""Rules of a check other than wiring and classes: images, training, statistics and measurements.

A rule compares its inputs of an extractor with those of a head and returns hits. A hit has code and severity; its texts
are made on request, so the same rule serves one pair and a whole matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from compatkit.contracts.channels import Blobs, ChannelFigures
from compatkit.contracts.contract import Anchor, Data, FeatureStatistics, Port, Protocol
from compatkit.contracts.evidence import Cell, Grade
from compatkit.contracts.labels import Labels, names, shared_classes
from compatkit.contracts.report import EQUAL_SHAPES, Finding, Level, Promise, Report, Severity
from compatkit.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
REMEDY = "reestimate the statistics (normalization), or bridge the parts with an adapter fitted on unlabeled images"

Texts = tuple[str, str, str, str]
"""Texts of a finding: expected, came, whose, remedy."""


class Hit(NamedTuple):
    """Result of a rule.

    Attributes:
        texts: Makes the texts of the finding from both sides and ``values``.
        values: Further arguments of ``texts``.
    """

    code: str
    severity: Severity
    level: Level
    texts: Callable[..., Texts]
    values: tuple[Any, ...] = ()

    def finding(self, provided: Any, required: Any) -> Finding:
        """Return the finding for these two sides.

        Args:
            provided: The rule's values for the extractor.
            required: The rule's values for the head.
        """
        return Finding(self.code, self.level, self.severity, *self.texts(provided, required, *self.values))


Hits = Sequence[Hit]


def images_of(data: Data) -> tuple[Any, ...]:
    """Return the inputs of the rule ``images`` for one component."""
    return data.size, data.channels, data.mean, data.std


def images(seen: tuple[Any, ...], trained: tuple[Any, ...]) -> Hits:
    """Compare the extractor's images with the head's training images; both from ``images_of``.

    Args:
        seen: Preprocessing of the extractor's images.
        trained: Preprocessing of the images that the head was trained on.
    """
    return () if seen == trained else _OTHER_IMAGES


def _images(seen: tuple[Any, ...], trained: tuple[Any, ...]) -> Texts:
    pairs = list(zip(IMAGES, seen, trained, strict=True))
    return (
        "; ".join(f"{name} {_value(theirs)}" for name, mine, theirs in pairs if mine != theirs),
        "; ".join(f"{name} {_value(mine)}" for name, mine, theirs in pairs if mine != theirs),
        "images that the head was trained on, images of the extractor",
        "none needed: the extractor's own preprocessing is used",
    )


_OTHER_IMAGES: Hits = (Hit("input-differs", "informs", "data", _images),)


@attrs.frozen
class Trained:
    """Inputs of the rule ``training`` for one component.

    Attributes:
        batch: Whether it contains batch normalization.
        names: Kind and digest of its anchors, in order.
        known: The same as a set.
        anchors: The anchors themselves.
    """

    batch: bool
    names: tuple[tuple[str, str], ...]
    known: frozenset[tuple[str, str]] = attrs.field(eq=False)
    anchors: tuple[Anchor, ...] = attrs.field(eq=False)


def trained(protocol: Protocol) -> Trained:
    """Return the inputs of the rule ``training`` for one component."""
    names = tuple([(anchor.kind, anchor.digest) for anchor in protocol.anchors])
    return Trained(protocol.norm == "batch", names, frozenset(names), protocol.anchors)


def protocol_of(head: Manifest) -> Protocol:
    """Return the protocol of a head, with the head itself added as an anchor for partners trained against it."""
    known = head.contract.protocol
    if head.kind != "head":
        return known
    own = Anchor("auxiliary_head", head.payload.tensors, RELEASED, head.contract.data.labels)
    return Protocol(known.norm, (*known.anchors, own))


def training(left: Trained, right: Trained) -> Hits:
    """Report whether batch normalization needs other statistics, and every shared anchor.

    Args:
        left: What the extractor was trained against.
        right: What the head was trained against.
    """
    hits = _NORMALIZED if left.batch or right.batch else ()
    if left.known.isdisjoint(right.known):
        return hits
    both = zip(right.names, right.anchors, strict=True)
    return *hits, *(_shared(anchor) for name, anchor in both if name in left.known)


def _batch(left: Trained, right: Trained) -> Texts:
    sides = [name for name, part in (("extractor", left), ("head", right)) if part.batch]
    return (
        "statistics of the images that the pair runs on",
        "statistics of the images that each part was trained on",
        f"batch normalization in the {' and the '.join(sides)}",
        "normalization batch (batches of the extractor's images), or reestimate (unlabeled images of the "
        "extractor's own data)",
    )


_NORMALIZED: Hits = (Hit("normalization-needed", "informs", "protocol", _batch),)

CONSTANT: tuple[Hits, ...] = ((), _OTHER_IMAGES, _NORMALIZED)
"""Results of rules for most pairs; one object each."""


def _shared(anchor: Anchor) -> Hit:
    if anchor.kind == "initial_weights":
        return Hit("initial-weights-shared", "informs", "protocol", _initial, (anchor,))
    return Hit("head-shared", "promises", "protocol", _head, (anchor,))


def _initial(left: Trained, _right: Trained, shared: Anchor) -> Texts:
    own = dict(zip(left.names, left.anchors, strict=True))[shared.kind, shared.digest]
    return (
        f"initial weights {_short(shared.digest)}",
        f"the same{_rows(own.classes or (), shared.classes or ())}",
        "head and extractor",
        "alone never a promise: training moves the networks apart again; class layers that started equal help "
        "where the same class stands at the same row; measure the pair",
    )


def _rows(left: Labels, right: Labels) -> str:
    """Describe how many common classes have the same row in two class layers with equal start; empty without any."""
    try:
        pairs = shared_classes(left, right)
    except DataError:  # duplicate class names are reported by `check(data=...)`
        return ""
    same = sum(mine == theirs for mine, theirs in pairs)
    return f"; class layers too: {same} of {len(pairs)} common classes stand at one row" if pairs else ""


def _head(_left: object, _right: object, shared: Anchor) -> Texts:
    classes = f" ({names(shared.classes)})" if shared.classes else ""
    return (
        f"trained against the auxiliary head {shared.task or 'without a name'} {_short(shared.digest)}",
        f"the same{classes}",
        "head and extractor",
        "",
    )


def own(extractor: str, *, exact: bool) -> Hit:
    """Return the hit that a head was cut from or trained with an extractor.

    Args:
        extractor: Manifest digest that the head names; it covers weights and cut.
        exact: Whether it is exactly this extractor, or another release that computes the same function.
    """
    return Hit("one-network", "promises", "protocol", _own, (extractor, exact))


def _own(_left: object, _right: object, extractor: str, exact: bool) -> Texts:
    expected = f"the extractor that the head was cut or trained with ({_short(extractor)})"
    actual = "this extractor" if exact else "another release of it, which computes the same"
    return expected, actual, "head and extractor", ""


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
    names = (
        [None] * len(stated)
        if inputs is None
        else [port.name if len(inputs) > 1 else None for port in inputs]
    )
    return tuple(
        [
            Features(
                statistics.mean,
                statistics.std,
                blobs.get(statistics.per_channel["blob"]) if statistics.per_channel else None,
                name,
            )
            for statistics, name in zip(stated, names, strict=False)
        ]
    )


def statistics(left: Sequence[Features], right: Sequence[Features]) -> Hits:
    """Return hits for features that are far from the head's training features.

    Per-channel statistics are compared if both sides have them for the same number of channels, else those of the port.

    Args:
        left: Features of the extractor.
        right: Training features of the head.
    """
    hits: Hits = ()
    for provided, trained in zip(left, right, strict=False):
        mean, std, mine, _ = provided
        wanted, scale, theirs, port = trained
        if mine is not None and theirs is not None and len(mine.means) == len(theirs.means):
            quiet = QUIET * scale
            far = _far_channels(mine, theirs, quiet)
            if far.any():
                values = mine, theirs, quiet, far, port
                hits = (*hits, Hit("statistics-far", "warns", "statistical", _worst, values))
        # Without a division, so that features of scale 0 are far from all others but not from each other.
        elif abs(mean - wanted) > FAR_MEAN * scale or std > FAR_SCALE * scale or scale > FAR_SCALE * std:
            hits = (*hits, Hit("statistics-far", "warns", "statistical", _whole, (provided, trained)))
    return hits


def _far_channels(provided: ChannelFigures, trained: ChannelFigures, quiet: float) -> NDArray[np.bool_]:
    """Return for each channel whether it is far, ``(C,)``; scales below ``quiet`` are raised to it."""
    import numpy as np

    scale, wanted = np.maximum(provided.stds, quiet), np.maximum(trained.stds, quiet)
    far = abs(provided.means - trained.means) > FAR_MEAN * wanted
    far |= scale > FAR_SCALE * wanted
    far |= wanted > FAR_SCALE * scale
    return far


def _whole(_left: object, _right: object, provided: Features, trained: Features) -> Texts:
    expected, actual = (
        f"mean {features.mean:.4g} and standard deviation {features.std:.4g} over all channels"
        for features in (trained, provided)
    )
    return expected, actual, _whose(trained.port), REMEDY


def _worst(
    _left: object,
    _right: object,
    provided: ChannelFigures,
    trained: ChannelFigures,
    quiet: float,
    far: NDArray[np.bool_],
    port: str | None,
) -> Texts:
    places = far.nonzero()[0].tolist()

    def distance(place: int) -> float:
        """Distance in units of the limits."""
        tiny = 1e-300  # avoids division by 0; a scale of 0 is at maximal distance
        scale, wanted = (max(float(figures.stds[place]), quiet, tiny) for figures in (provided, trained))
        shift = abs(float(provided.means[place] - trained.means[place]))
        return max(shift / (FAR_MEAN * wanted), scale / wanted / FAR_SCALE, wanted / scale / FAR_SCALE)

    worst = max(places, key=distance)
    expected, actual = (
        f"mean {side.means[worst]:.4g} and standard deviation {side.stds[worst]:.4g}"
        for side in (trained, provided)
    )
    return (
        f"{expected} in channel {worst}",
        f"{actual}: the worst of {len(places)} channels that are far, of {len(provided.means)}",
        _whose(port),
        REMEDY,
    )


def _whose(port: str | None) -> str:
    subject = "training features of the head, features of the extractor on its own images"
    return subject if port is None else f"{subject}, port {port!r}"


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
            actual = f"only figures under normalization {', '.join(sorted(others))}, asked about {bn_policy}"
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
        remedy = f"does not count for normalization {bn_policy}; ask about {policy} (bn_policy, --bn-policy)"
    elif cell.grade == "stale":
        remedy = "measure again: the metric has changed since"
    return Finding(
        "evidence",
        "empirical",
        "warns" if counts and cell.grade in ("chance", "stale") else "informs",
        f"{chance}, {bound}",
        f"{actual}: {cell.grade}",
        f"this extractor with this head, normalization {policy}, data {cell.settings.get('data', 'unknown')}",
        remedy,
    )


def _short(digest: str) -> str:
    return digest[: digest.rfind(":") + 13]


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{item:.4g}" if isinstance(item, float) else str(item) for item in value)
    return str(value)
