"""An affine map between feature spaces, and how much of the target it explains."""

from __future__ import annotations

import attrs
from torch import Tensor

from compatkit.adapters.alignment.moments import PairedMoments


@attrs.frozen(eq=False)
class Affine:
    """A fitted map ``y = x weight + bias``.

    Attributes:
        weight: float64 ``(c, d)``.
        bias: float64 ``(d,)``.
        residual: Share of the variance of y that is left, 0 where all is explained, on the samples of the fit; above 1
            for maps that are further off than the mean.
        samples: How many there were.
    """

    weight: Tensor
    bias: Tensor
    residual: float
    samples: int

    @classmethod
    def of(cls, moments: PairedMoments, weight: Tensor, bias: Tensor) -> Affine:
        """Return a map with what it leaves of the samples that the moments are of."""
        spread = float(moments.yy.sum())
        off = moments.mean_y - moments.mean_x @ weight - bias
        left = spread - 2 * float((weight * moments.xy).sum())
        left += float(((moments.xx @ weight) * weight).sum()) + moments.samples * float(off @ off)
        return cls(weight, bias, max(0.0, left / spread) if spread > 0 else 0.0, moments.samples)
