"""Mean and standard deviation of every channel: as values, and as the blob that a manifest names.

The blob holds C means, then C standard deviations, little-endian float32: eight bytes a channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import FormatError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BYTES = 8
"""Of a channel."""


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


def channel_bytes(
    means: Sequence[float] | NDArray[np.float64], stds: Sequence[float] | NDArray[np.float64]
) -> bytes:
    """Return the blob of the means and standard deviations, one of each for every channel."""
    import numpy as np

    return np.concatenate([np.asarray(one, dtype="<f4") for one in (means, stds)]).tobytes()


def channel_statistics(data: bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the means and the standard deviations of a blob, float32 ``(C,)`` each.

    Raises:
        FormatError: Not eight bytes for at least one channel, values that are not finite, or a negative deviation.
    """
    import numpy as np

    if not data or len(data) % BYTES:
        raise FormatError(
            f"Channel statistics: expected {BYTES} bytes for each of at least one channel, got {len(data)} bytes."
        )
    means, stds = np.frombuffer(data, dtype="<f4").astype(np.float32).reshape(2, -1)
    if not np.isfinite(means).all() or not np.isfinite(stds).all() or (stds < 0).any():
        raise FormatError(
            "Channel statistics: expected finite means and deviations from 0; the blob holds other values."
        )
    return means, stds
