"""The statistical level of a check: are the features what the head was trained on, channel by channel?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from compatkit.contracts.contract import Contract, FeatureStatistics
from compatkit.contracts.verdict import Codes, Finding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
