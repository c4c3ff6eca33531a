"""Mean and standard deviation per channel: as values, and as the blob that a manifest refers to.

The blob holds C means followed by C standard deviations, little-endian float32: 8 bytes per channel.
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
"""Bytes per channel in the blob."""


def _doubles(values: Any) -> NDArray[np.float64]:
    import numpy as np  # imported late: most checks do not need it

    return np.asarray(values, dtype=np.float64)


@attrs.frozen(eq=False)
class ChannelFigures:
    """Mean and standard deviation of each channel of one feature port.

    Attributes:
        means: ``(C,)``, finite.
        stds: ``(C,)``, finite, non-negative.
    """

    means: NDArray[np.float64] = attrs.field(converter=_doubles)
    stds: NDArray[np.float64] = attrs.field(converter=_doubles)


Blobs = Mapping[str, ChannelFigures]
"""Channel statistics by blob digest; missing blobs are ignored."""


def channel_bytes(
    means: Sequence[float] | NDArray[np.float64], stds: Sequence[float] | NDArray[np.float64]
) -> bytes:
    """Return the blob for means ``(C,)`` and standard deviations ``(C,)``.

    Args:
        means: Of each channel.
        stds: Of each channel, in the same order.
    """
    import numpy as np

    return np.concatenate([np.asarray(figures, dtype="<f4") for figures in (means, stds)]).tobytes()


def channel_statistics(data: bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return means and standard deviations from a blob, float32 ``(C,)`` each.

    Returns:
        Means and standard deviations.

    Raises:
        FormatError: The size is not a positive multiple of 8 bytes, a value is not finite, or a deviation is negative.
    """
    import numpy as np

    if not data or len(data) % BYTES:
        raise FormatError(
            f"Channel statistics: expected {BYTES} bytes for each of at least one channel, got {len(data)} bytes."
        )
    means, stds = np.frombuffer(data, dtype="<f4").astype(np.float32).reshape(2, -1)
    if not np.isfinite(means).all() or not np.isfinite(stds).all() or (stds < 0).any():
        raise FormatError(
            "Channel statistics: expected finite means and finite, non-negative deviations; the blob has others."
        )
    return means, stds
