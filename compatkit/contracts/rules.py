"""The rules of a check beside wiring and classes: images, training, statistics, and what was measured.

A rule compares what it depends on of an extractor with the same of a head, and returns hits: code and severity at
once, the texts when they are asked for. So one rule serves a pair and all pairs.
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
"""What a target head is called that new parts were trained against, in the place of an auxiliary head's task."""
IMAGES = ("size", "channels", "mean", "std")
"""What is compared of the images of two components."""
FAR_MEAN = 0.5
"""Feature means further apart than this many standard deviations of the head's training features are far."""
FAR_SCALE = 2.0
"""Feature standard deviations that differ by more than this factor are far."""
QUIET = 0.01
"""A channel's standard deviation counts as at least this share of its port's, so that dead channels are not far."""
REMEDY = "reestimate the statistics (normalisation), or bridge the parts with an adapter fitted on unlabelled images"

Texts = tuple[str, str, str, str]
"""Of a finding: expected, came, whose, remedy."""


class Hit(NamedTuple):
    """What a rule found.

    Attributes:
        texts: Returns the texts of the finding from both sides and ``values``.
        values: What else they say.
    """

    code: str
    severity: Severity
    level: Level
    texts: Callable[..., Texts]
    values: tuple[Any, ...] = ()

    def finding(self, given: Any, asked: Any) -> Finding:
        """Return it in full; the rule found it between these two."""
        return Finding(self.code, self.level, self.severity, *self.texts(given, asked, *self.values))


Hits = Sequence[Hit]


def images_of(data: Data) -> tuple[Any, ...]:
    """Return all that the rule of images depends on of one component."""
    return data.size, data.channels, data.mean, data.std


def images(given: tuple[Any, ...], trained: tuple[Any, ...]) -> Hits:
    """Compare the extractor's images with those that the head was trained on; both from ``images_of``."""
    return () if given == trained else _OTHER_IMAGES


def _images(given: tuple[Any, ...], trained: tuple[Any, ...]) -> Texts:
    pairs = list(zip(IMAGES, given, trained, strict=True))
    return (
        "; ".join(f"{name} {_value(theirs)}" for name, mine, theirs in pairs if mine != theirs),
        "; ".join(f"{name} {_value(mine)}" for name, mine, theirs in pairs if mine != theirs),
        "images that the head was trained on, images of the extractor",
        "none needed: the extractor's own preprocessing is used",
    )


_OTHER_IMAGES: Hits = (Hit("input-differs", "informs", "data", _images),)


@attrs.frozen
class Trained:
    """All that a promise depends on of one component.

    Attributes:
        batch: Whether it holds batch normalisation.
        names: Kind and digest of what it was trained against, in order.
        known: The same.
        anchors: The same in full.
    """

    batch: bool
    names: tuple[tuple[str, str], ...]
    known: frozenset[tuple[str, str]] = attrs.field(eq=False)
    anchors: tuple[Anchor, ...] = attrs.field(eq=False)


def trained(protocol: Protocol) -> Trained:
    """Return all that a promise depends on of one component."""
    names = tuple([(one.kind, one.digest) for one in protocol.anchors])
    return Trained(protocol.normalisation == "batch", names, frozenset(names), protocol.anchors)


def protocol_of(head: Manifest) -> Protocol:
    """Return how a head was trained, the head itself among what a partner may have been trained against."""
    known = head.contract.protocol
    if head.kind != "head":
        return known
    own = Anchor("auxiliary_head", head.payload.tensors, RELEASED, head.contract.data.labels)
    return Protocol(known.normalisation, (*known.anchors, own))


def training(left: Trained, right: Trained) -> Hits:
    """Say whether batch normalisation needs statistics, and name every anchor that both were trained against."""
    found = _NORMALISED if left.batch or right.batch else ()
    if left.known.isdisjoint(right.known):
        return found
    both = zip(right.names, right.anchors, strict=True)
    return *found, *(_shared(one) for name, one in both if name in left.known)


def _batch(left: Trained, right: Trained) -> Texts:
    sides = [name for name, one in (("extractor", left), ("head", right)) if one.batch]
    return (
        "statistics of the images that the pair runs on",
        "statistics of the images that each part was trained on",
        f"batch normalisation in the {' and the '.join(sides)}",
        "normalisation batch (batches of the extractor's images), or reestimate (unlabelled images of the "
        "extractor's own data)",
    )


_NORMALISED: Hits = (Hit("normalisation-needed", "informs", "protocol", _batch),)

CONSTANT: tuple[Hits, ...] = ((), _OTHER_IMAGES, _NORMALISED)
"""What rules find of most pairs, each one object."""


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
    """Say how many common classes stand at one row of two class layers that started equal; nothing of others."""
    try:
        pairs = shared_classes(left, right)
    except DataError:  # classes of one name: `check(data=...)` tells
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
    """Return that a head was cut or trained with an extractor.

    Args:
        extractor: Digest of the manifest that the head names, which names its weights and its cut: other weights, or
            another cut, are another digest.
        exact: Whether it is this very extractor, and not another release that computes the same.
    """
    return Hit("one-network", "promises", "protocol", _own, (extractor, exact))


def _own(_left: object, _right: object, extractor: str, exact: bool) -> Texts:
    expected = f"the extractor that the head was cut or trained with ({_short(extractor)})"
    came = "this extractor" if exact else "another release of it, which computes the same"
    return expected, came, "head and extractor", ""


def promise_of(codes: Sequence[str]) -> Promise:
    """Return the best that hits of training with such codes promise."""
    if "one-network" in codes:
        return "one-network"
    if "head-shared" in codes:
        return "shared-head"
    return "shared-init" if "initial-weights-shared" in codes else "none"


class Features(NamedTuple):
    """All that the rule of statistics depends on of one feature port.

    Attributes:
        mean: Over all images, channels and positions.
        std: Over the same.
        channels: Of every channel, where they were read.
        port: Name, where a head has several.
    """

    mean: float
    std: float
    channels: ChannelFigures | None
    port: str | None


def features_of(
    features: Sequence[FeatureStatistics] | None, blobs: Blobs, inputs: Sequence[Port] | None = None
) -> tuple[Features, ...]:
    """Return all that the rule of statistics depends on of one component, in the order of its feature ports.

    Args:
        features: As its contract states them.
        blobs: Statistics of the channels, as far as they were read.
        inputs: Of a head; None for an extractor.
    """
    stated = features or ()
    names = (
        [None] * len(stated) if inputs is None else [one.name if len(inputs) > 1 else None for one in inputs]
    )
    return tuple(
        [
            Features(one.mean, one.std, blobs.get(one.per_channel["blob"]) if one.per_channel else None, name)
            for one, name in zip(stated, names, strict=False)
        ]
    )


def statistics(left: Sequence[Features], right: Sequence[Features]) -> Hits:
    """Return which features are far from those that the head was trained on.

    Where both sides have statistics of the same number of channels, these are compared, else the port as a whole.

    Args:
        left: Of the extractor.
        right: Of the head.
    """
    found: Hits = ()
    for given, trained in zip(left, right, strict=False):
        mean, std, mine, _ = given
        wanted, scale, theirs, port = trained
        if mine is not None and theirs is not None and len(mine.means) == len(theirs.means):
            quiet = QUIET * scale
            far = _far_channels(mine, theirs, quiet)
            if far.any():
                values = mine, theirs, quiet, far, port
                found = (*found, Hit("statistics-far", "warns", "statistical", _worst, values))
        # Written without a division, so that features of scale 0 are far from all others and not from each other.
        elif abs(mean - wanted) > FAR_MEAN * scale or std > FAR_SCALE * scale or scale > FAR_SCALE * std:
            found = (*found, Hit("statistics-far", "warns", "statistical", _whole, (given, trained)))
    return found


def _far_channels(given: ChannelFigures, trained: ChannelFigures, quiet: float) -> NDArray[np.bool_]:
    """Return for each channel what ``statistics`` says of a whole port; scales below ``quiet`` count as that."""
    import numpy as np

    scale, wanted = np.maximum(given.stds, quiet), np.maximum(trained.stds, quiet)
    far = abs(given.means - trained.means) > FAR_MEAN * wanted
    far |= scale > FAR_SCALE * wanted
    far |= wanted > FAR_SCALE * scale
    return far


def _whole(_left: object, _right: object, given: Features, trained: Features) -> Texts:
    expected, came = (
        f"mean {one.mean:.4g} and standard deviation {one.std:.4g} over all channels"
        for one in (trained, given)
    )
    return expected, came, _whose(trained.port), REMEDY


def _worst(
    _left: object,
    _right: object,
    given: ChannelFigures,
    trained: ChannelFigures,
    quiet: float,
    far: NDArray[np.bool_],
    port: str | None,
) -> Texts:
    places = far.nonzero()[0].tolist()

    def distance(place: int) -> float:
        """In units of what is just not far."""
        tiny = 1e-300  # no division by 0: scales of 0 are as far as can be
        scale, wanted = (max(float(one.stds[place]), quiet, tiny) for one in (given, trained))
        shift = abs(float(given.means[place] - trained.means[place]))
        return max(shift / (FAR_MEAN * wanted), scale / wanted / FAR_SCALE, wanted / scale / FAR_SCALE)

    worst = max(places, key=distance)
    expected, came = (
        f"mean {side.means[worst]:.4g} and standard deviation {side.stds[worst]:.4g}"
        for side in (trained, given)
    )
    return (
        f"{expected} in channel {worst}",
        f"{came}: the worst of {len(places)} channels that are far, of {len(given.means)}",
        _whose(port),
        REMEDY,
    )


def _whose(port: str | None) -> str:
    said = "training features of the head, features of the extractor on its own images"
    return said if port is None else f"{said}, port {port!r}"


def newest(cells: Sequence[Cell]) -> Grade:
    """Return the grade of the newest measurement that is not stale; of the newest, if all are."""
    grades: list[Grade] = [cell.grade for cell in cells if cell.restricted is not None]
    fresh: list[Grade] = [grade for grade in grades if grade != "stale"]
    found = fresh or grades
    return found[-1] if found else "none"


def empirical_findings(answers: Report, cells: Sequence[Cell]) -> Iterator[Finding]:
    """Yield the figures of a pair, and that it is unproven where only its shapes speak for it.

    Args:
        answers: Wiring, promise and evidence; its findings are not looked at.
        cells: Measured cells of this pair, oldest first.
    """
    for cell in cells:
        if cell.restricted is not None:
            yield _measured(cell)
    if answers.unproven:
        came = "only shared initial weights" if answers.promise == "shared-init" else "neither"
        if answers.evidence == "stale":
            came = "only figures from before the metric changed"
        yield Finding(
            "unproven",
            "empirical",
            "warns",
            "a measured accuracy, a shared auxiliary head, or the two parts of one network",
            f"{came}; {EQUAL_SHAPES.rstrip('.').lower()}",
            "this extractor with this head",
            "compatkit matrix EXTRACTOR HEAD",
        )


def _measured(cell: Cell) -> Finding:
    came = "no figure"
    if (figure := cell.restricted) is not None:
        came = f"{figure.accuracy:.3f} [{figure.low:.3f}, {figure.high:.3f}] on {figure.count} images"
    if cell.recovered is not None:
        came += f", recovered {cell.recovered:.3f}"
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


def _short(digest: str) -> str:
    return digest[: digest.rfind(":") + 13]


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{one:.4g}" if isinstance(one, float) else str(one) for one in value)
    return str(value)
