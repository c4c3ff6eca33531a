"""Mean and standard deviation per channel, as arrays and as the blob of a manifest.

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

BYTES_PER_CHANNEL = 8


def _float64(values: Any) -> NDArray[np.float64]:
    import numpy as np  # imported late: most checks do not need it

    return np.asarray(values, dtype=np.float64)


@attrs.frozen(eq=False)
class ChannelStatistics:
    """Mean and standard deviation of each channel of a feature port.

    Attributes:
        means: ``(C,)``, finite.
        stds: ``(C,)``, finite, non-negative.
    """

    means: NDArray[np.float64] = attrs.field(converter=_float64)
    stds: NDArray[np.float64] = attrs.field(converter=_float64)


Blobs = Mapping[str, ChannelStatistics]
"""Channel statistics by blob digest; missing blobs are ignored."""


def channel_bytes(
    means: Sequence[float] | NDArray[np.float64], stds: Sequence[float] | NDArray[np.float64]
) -> bytes:
    """Return the blob for means and standard deviations.

    Args:
        means: Mean of each channel, ``(C,)``.
        stds: Standard deviation of each channel, ``(C,)``.
    """
    import numpy as np

    return np.concatenate([np.asarray(values, dtype="<f4") for values in (means, stds)]).tobytes()


def channel_statistics(data: bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Read means and standard deviations from a blob.

    Args:
        data: Content of the blob.

    Returns:
        Means and standard deviations, float32 ``(C,)`` each.

    Raises:
        FormatError: The size is not a positive multiple of 8 bytes, a value is not finite, or a deviation is negative.
    """
    import numpy as np

    if not data or len(data) % BYTES_PER_CHANNEL:
        raise FormatError(
            f"Channel statistics: expected {BYTES_PER_CHANNEL} bytes per channel, got {len(data)} bytes."
        )
    means, stds = np.frombuffer(data, dtype="<f4").astype(np.float32).reshape(2, -1)
    if not np.isfinite(means).all() or not np.isfinite(stds).all() or (stds < 0).any():
        raise FormatError("Channel statistics: expected finite means and finite, non-negative deviations.")
    return means, stds
