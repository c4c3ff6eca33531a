"""The rules of a check beside wiring and classes: images, training, statistics, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from compatkit.contracts.contract import Anchor, Contract, Data, FeatureStatistics, Protocol
from compatkit.contracts.evidence import Cell, Grade
from compatkit.contracts.labels import Labels, names, shared_classes
from compatkit.contracts.report import EQUAL_SHAPES, Codes, Finding, Promise, Report, Severity
from compatkit.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from compatkit.contracts.manifest import Manifest

RELEASED = "released"
"""What a target head is called that new parts were trained against, in the place of an auxiliary head's task."""
IMAGES = ("size", "channels", "mean", "std")
"""What is compared of the images of two components."""

images_of = attrgetter(*IMAGES)
"""Return these values of a ``Data``."""

_INPUT: Codes = (("input-differs", "informs"),)
_BATCH: Codes = (("normalisation-needed", "informs"),)
ONE_NETWORK: Codes = (("one-network", "promises"),)
"""Code and severity of what ``own_finding`` returns."""


class Anchored(NamedTuple):
    """All that a promise depends on of one component.

    Attributes:
        batch: Whether it holds batch normalisation.
        anchors: Kind and digest of what it was trained against, in order.
        known: The same.
    """

    batch: bool
    anchors: tuple[tuple[str, str], ...]
    known: frozenset[tuple[str, str]]


def anchored(protocol: Protocol) -> Anchored:
    """Return all that a promise depends on of one component."""
    anchors = tuple((one.kind, one.digest) for one in protocol.anchors)
    return Anchored(protocol.normalisation == "batch", anchors, frozenset(anchors))


def protocol_of(head: Manifest) -> Protocol:
    """Return how a head was trained, the head itself among what a partner may have been trained against."""
    known = head.contract.protocol
    if head.kind != "head":
        return known
    own = Anchor("auxiliary_head", head.payload.tensors, RELEASED, head.contract.data.labels)
    return Protocol(known.normalisation, (*known.anchors, own))


def input_findings(given: Data, trained: Data) -> Iterator[Finding]:
    """Yield how the extractor's images differ from those that the head was trained on."""
    differing = [name for name in IMAGES if getattr(given, name) != getattr(trained, name)]
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


def input_codes(given: object, trained: object) -> Codes:
    """Return code and severity of what ``input_findings`` yields, from ``images_of`` both sides."""
    return _INPUT if given != trained else ()


def protocol_findings(left: Protocol, right: Protocol) -> Iterator[Finding]:
    """Yield whose statistics batch normalisation needs, and every anchor that both were trained against."""
    sides = [name for name, one in (("extractor", left), ("head", right)) if one.normalisation == "batch"]
    if sides:
        yield Finding(
            "normalisation-needed",
            "protocol",
            "informs",
            "statistics of the images that the pair runs on",
            "statistics of the images that each part was trained on",
            f"batch normalisation in the {' and the '.join(sides)}",
            "normalisation batch (batches of the extractor's images), or reestimate (unlabelled images of the "
            "extractor's own data)",
        )
    known = {(one.kind, one.digest): one for one in left.anchors}
    for one in right.anchors:
        if (one.kind, one.digest) in known:
            yield _anchor(known[one.kind, one.digest], one)


def protocol_codes(left: Anchored, right: Anchored) -> Codes:
    """Return code and severity of what ``protocol_findings`` yields, each once."""
    codes = _BATCH if left.batch or right.batch else ()
    if left.known.isdisjoint(right.known):
        return codes
    shared = [_anchor_code(one) for one, digest in right.anchors if (one, digest) in left.known]
    return *codes, *dict.fromkeys(shared)


def _anchor_code(kind: str) -> tuple[str, Severity]:
    return ("initial-weights-shared", "informs") if kind == "initial_weights" else ("head-shared", "promises")


def promise_of(codes: Iterable[str]) -> Promise:
    """Return the best that protocol findings with such codes promise."""
    found = set(codes)
    if "one-network" in found:
        return "one-network"
    if "head-shared" in found:
        return "shared-head"
    return "shared-init" if "initial-weights-shared" in found else "none"


def own_finding(extractor: str) -> Finding:
    """Return that a head names this very extractor as the one that it was made with.

    The name is the digest of the extractor's manifest, which names its weights and its cut: other weights, or another
    cut, are another digest.

    Args:
        extractor: Manifest digest.
    """
    return Finding(
        "one-network",
        "protocol",
        "promises",
        f"the extractor {_short(extractor)} that the head was cut from one network with, or trained with",
        "the same",
        "head and extractor",
    )


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


def _rows(left: Labels, right: Labels) -> str:
    """Say how many common classes stand at one row of two class layers that started equal; nothing of others."""
    try:
        pairs = shared_classes(left, right)
    except DataError:  # classes of one name: `check(data=...)` tells
        return ""
    same = sum(mine == theirs for mine, theirs in pairs)
    return f"; class layers too: {same} of {len(pairs)} common classes stand at one row" if pairs else ""


def _anchor(left: Anchor, shared: Anchor) -> Finding:
    if shared.kind == "initial_weights":
        return Finding(
            "initial-weights-shared",
            "protocol",
            "informs",
            f"initial weights {_short(shared.digest)}",
            f"the same{_rows(left.classes or (), shared.classes or ())}",
            "head and extractor",
            "alone never a promise: training moves the networks apart again; class layers that started equal help "
            "where the same class stands at the same row; measure the pair",
        )
    classes = f" ({names(shared.classes)})" if shared.classes else ""
    return Finding(
        "head-shared",
        "protocol",
        "promises",
        f"trained against the auxiliary head {shared.task or 'without a name'} {_short(shared.digest)}",
        f"the same{classes}",
        "head and extractor",
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


FAR_MEAN = 0.5
"""Feature means further apart than this many standard deviations of the head's training features are far."""
FAR_SCALE = 2.0
"""Feature standard deviations that differ by more than this factor are far."""
QUIET = 0.01
"""A channel's standard deviation counts as at least this share of its port's, so that dead channels are not far."""
_FAR: Codes = (("statistics-far", "warns"),)
REMEDY = "reestimate the statistics (normalisation), or bridge the parts with an adapter fitted on unlabelled images"


def _doubles(values: Any) -> NDArray[np.float64]:
    import numpy as np  # only where a contract has such statistics, so that a check stays light

    return np.asarray(values, dtype=np.float64)


@attrs.frozen(eq=False)
class ChannelFigures:
    """Mean and standard deviation of every channel of one feature port, in the order of the channels.

    Attributes:
        means: ``(C,)``, finite.
        stds: ``(C,)``, finite, from 0.
    """

    means: NDArray[np.float64] = attrs.field(converter=_doubles)
    stds: NDArray[np.float64] = attrs.field(converter=_doubles)


Blobs = Mapping[str, ChannelFigures]
"""Statistics of the channels by the digest of the blob that a manifest names; those that are not there are not used."""


def statistics_findings(left: Contract, right: Contract, blobs: Blobs) -> Iterator[Finding]:
    """Yield which features are far from those that the head was trained on.

    Where both sides have statistics of the same number of channels, these are compared, else the port as a whole.

    Args:
        left: Of the extractor.
        right: Of the head.
        blobs: Statistics of the channels, as far as they were read.
    """
    inputs = right.structural.inputs
    sides = left.statistical.features or (), right.statistical.features or ()
    for port, given, trained in zip(inputs, *sides, strict=False):
        whose = "training features of the head, features of the extractor on its own images"
        whose += f", port {port.name!r}" if len(inputs) > 1 else ""
        both = _both(_channels(given, blobs), _channels(trained, blobs))
        if both is not None:
            yield from _by_channel(*both, QUIET * trained.std, whose)
        elif _far(given, trained):
            expected, came = (
                f"mean {one.mean:.4g} and standard deviation {one.std:.4g} over all channels"
                for one in (trained, given)
            )
            yield Finding("statistics-far", "statistical", "warns", expected, came, whose, REMEDY)


class PortFigures(NamedTuple):
    """All that this level depends on of one feature port: the channels as far as they were read."""

    mean: float
    std: float
    channels: ChannelFigures | None


def figures_of(features: Sequence[FeatureStatistics] | None, blobs: Blobs) -> tuple[PortFigures, ...]:
    """Return all that this level depends on of one component, in the order of its feature ports."""
    return tuple([PortFigures(one.mean, one.std, _channels(one, blobs)) for one in features or ()])


def statistics_codes(left: Sequence[PortFigures], right: Sequence[PortFigures]) -> Codes:
    """Return code and severity of what ``statistics_findings`` yields, in less time.

    Args:
        left: Of the extractor.
        right: Of the head, no more than it has inputs.
    """
    for given, trained in zip(left, right, strict=False):
        both = _both(given.channels, trained.channels)
        if _far(given, trained) if both is None else _far_channels(*both, QUIET * trained.std).any():
            return _FAR
    return ()


def _channels(one: FeatureStatistics, blobs: Blobs) -> ChannelFigures | None:
    return blobs.get(one.per_channel["blob"]) if blobs and one.per_channel is not None else None


def _both(
    given: ChannelFigures | None, trained: ChannelFigures | None
) -> tuple[ChannelFigures, ChannelFigures] | None:
    if given is None or trained is None or len(given.means) != len(trained.means):
        return None
    return given, trained


def _far(given: FeatureStatistics | PortFigures, trained: FeatureStatistics | PortFigures) -> bool:
    # Written without a division, so that features of scale 0 are far from all others and not from each other.
    return (
        abs(given.mean - trained.mean) > FAR_MEAN * trained.std
        or given.std > FAR_SCALE * trained.std
        or trained.std > FAR_SCALE * given.std
    )


def _far_channels(given: ChannelFigures, trained: ChannelFigures, quiet: float) -> NDArray[np.bool_]:
    """Return for each channel what ``_far`` says of a port; scales below ``quiet`` count as that."""
    import numpy as np

    scale, wanted = np.maximum(given.stds, quiet), np.maximum(trained.stds, quiet)
    far = abs(given.means - trained.means) > FAR_MEAN * wanted
    far |= scale > FAR_SCALE * wanted
    far |= wanted > FAR_SCALE * scale
    return far


def _by_channel(
    given: ChannelFigures, trained: ChannelFigures, quiet: float, whose: str
) -> Iterator[Finding]:
    far = _far_channels(given, trained, quiet).nonzero()[0].tolist()
    if not far:
        return

    def distance(place: int) -> float:
        """In units of what is just not far."""
        tiny = 1e-300  # no division by 0: scales of 0 are as far as can be
        scale, wanted = (max(float(one.stds[place]), quiet, tiny) for one in (given, trained))
        shift = abs(float(given.means[place] - trained.means[place]))
        return max(shift / (FAR_MEAN * wanted), scale / wanted / FAR_SCALE, wanted / scale / FAR_SCALE)

    worst = max(far, key=distance)
    expected, came = (
        f"mean {side.means[worst]:.4g} and standard deviation {side.stds[worst]:.4g}"
        for side in (trained, given)
    )
    yield Finding(
        "statistics-far",
        "statistical",
        "warns",
        f"{expected} in channel {worst}",
        f"{came}: the worst of {len(far)} channels that are far, of {len(given.means)}",
        whose,
        REMEDY,
    )
