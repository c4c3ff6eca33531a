"""Mean and standard deviation over seeds, for sweeps and studies."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

import attrs


@attrs.frozen
class Spread:
    """Mean and sample standard deviation of some values.

    Attributes:
        mean: Mean.
        deviation: Sample standard deviation; None for a single value.
        count: Number of values.
    """

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of ``values``, or None if there are none."""
        if not values:
            return None
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    def text(self, digits: int) -> str:
        """Return mean and deviation: ``0.880 ± 0.012``.

        Args:
            digits: Number of decimal places.
        """
        mean = f"{self.mean:.{digits}f}"
        return mean if self.deviation is None else f"{mean} ± {self.deviation:.{digits}f}"

    def __str__(self) -> str:
        return self.text(3 if abs(self.mean) < 10 else 1)
