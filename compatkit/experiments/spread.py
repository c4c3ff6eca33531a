"""Mean and standard deviation over seeds, as sweeps and studies print them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

import attrs


@attrs.frozen
class Spread:
    """Mean and sample standard deviation; None is the deviation of a single value."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of ``values``, or None if there are none."""
        if not values:
            return None
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    def __str__(self) -> str:
        digits = 3 if abs(self.mean) < 10 else 1
        text = f"{self.mean:.{digits}f}"
        return text if self.deviation is None else f"{text} ± {self.deviation:.{digits}f}"
