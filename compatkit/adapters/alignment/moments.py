"""Second moments of paired samples in float64, accumulated block by block, for fits in closed form.

They take memory for ``(c + d) c`` numbers and one block of samples, whatever the number of images.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from compatkit.errors import DataError

BLOCK = 2**23
"""Values of x that are converted to float64 at a time (64 MB)."""
ROUNDING = 1e-24
"""A variance below this share of the squared mean is a rounding error."""
DEAD = 1e-4
"""A channel whose standard deviation is below this share of the largest one is dead."""


@attrs.define(eq=False)
class PairedMoments:
    """Means and centered second moments of samples x with samples y, all float64.

    Attributes:
        samples: m, number of pairs.
        mean_x: ``(c,)``.
        mean_y: ``(d,)``.
        xx: ``(c, c)``, Xc'Xc.
        xy: ``(c, d)``, Xc'Yc.
        yy: ``(d,)``, the diagonal of Yc'Yc.
    """

    samples: int
    mean_x: Tensor
    mean_y: Tensor
    xx: Tensor
    xy: Tensor
    yy: Tensor

    @classmethod
    def empty(cls, width: int, target: int) -> PairedMoments:
        """Return the moments of zero samples, for c and d channels.

        Args:
            width: c, channels of x.
            target: d, channels of y.
        """

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64)

        return cls(0, zeros(width), zeros(target), zeros(width, width), zeros(width, target), zeros(target))

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add samples.

        Args:
            x: ``(m, c)``, any floating-point type.
            y: ``(m, d)``, target of each row of x.

        Raises:
            DataError: A value is not finite, or the rows do not pair up.
        """
        if len(x) != len(y):
            raise DataError(f"{len(x)} samples come with {len(y)} targets; each needs one.")
        rows = max(1, BLOCK // max(1, x.shape[1], y.shape[1]))
        for left, right in zip(x.split(rows), y.split(rows), strict=True):
            if len(left):
                self._add(left.double(), right.double())

    def dead(self) -> tuple[int, int]:
        """Return the number of nearly constant channels of x and of y."""
        counts = []
        for squares in (self.xx.diagonal(), self.yy):
            largest = float(squares.max())
            counts.append(int((squares <= DEAD**2 * largest).sum()))
        return counts[0], counts[1]

    def constant(self) -> tuple[bool, bool]:
        """Return whether x and y, respectively, are constant over all samples."""
        constants = []
        for squares, average in ((self.xx.diagonal(), self.mean_x), (self.yy, self.mean_y)):
            variance = float(squares.mean()) / max(1, self.samples)
            constants.append(variance <= ROUNDING * float(average.square().max()))
        return constants[0], constants[1]

    def check(self) -> None:
        """Check that a map can be fitted.

        Raises:
            DataError: There are fewer than two samples, or x is constant.
        """
        if self.samples < 2:
            raise DataError(f"A fit needs at least two samples, got {self.samples}.")
        if self.constant()[0]:
            raise DataError("The features do not change from image to image; there is nothing to fit on.")

    def _add(self, x: Tensor, y: Tensor) -> None:
        """Add one block (Chan, Golub and LeVeque 1979)."""
        mean_x, mean_y = x.mean(dim=0), y.mean(dim=0)
        if not (bool(torch.isfinite(x).all()) and bool(torch.isfinite(y).all())):
            raise DataError("Features to fit on are not finite; look at the weights of the extractors.")
        count, total = len(x), self.samples + len(x)
        x, y = x - mean_x, y - mean_y
        shift_x, shift_y = mean_x - self.mean_x, mean_y - self.mean_y
        weight = self.samples * count / total
        # in place: with thousands of channels each of these sums takes as much memory as all else
        self.xx.addmm_(x.T, x).addr_(shift_x, shift_x, alpha=weight)
        self.xy.addmm_(x.T, y).addr_(shift_x, shift_y, alpha=weight)
        self.yy.add_(y.square().sum(dim=0)).addcmul_(shift_y, shift_y, value=weight)
        self.mean_x += shift_x * (count / total)
        self.mean_y += shift_y * (count / total)
        self.samples = total
