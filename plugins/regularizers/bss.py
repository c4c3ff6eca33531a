"""BSS: batch spectral shrinkage, which suppresses the features that a batch hardly uses.

Paper: Chen, Wang, Fu, Long, Wang (2019), "Catastrophic Forgetting Meets Negative Transfer: Batch Spectral Shrinkage for
    Safe Transfer Learning", Sec. 4, Eq. 5; the authors' weight is .001.
Equation: the sum of the squares of the ``count`` smallest singular values of the batch's features, ``(batch, width)``.
Features: those at the cut; maps are averaged over their positions, so cut behind the last stage for the paper's.
Computed from the eigenvalues of the smaller Gram matrix in float64: their gradient, unlike that of singular vectors,
    has no differences of eigenvalues in a denominator.
Cost: eigenvalues of b x b or w x w numbers a step, on the device.
Limits: it helps only where features are too many for the data. What is smallest depends on the batch, so small
    batches shrink other features in every step. It brought nothing on 100 images of USPS.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from compatkit import Step, effect, hookimpl
from compatkit.foundation.limits import COUNT
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``bss``."""
    register("bss", BSS)


def smallest_squares(features: Tensor, count: int) -> Tensor:
    """Return the sum of the squares of the smallest singular values, a float64 scalar.

    Args:
        features: ``(batch, width)``, maps ``(batch, width, height, width)`` or tokens ``(batch, tokens, width)``.
        count: How many; all if there are fewer.
    """
    rows = features.double()
    if rows.ndim > 2:
        rows = rows.mean(1) if rows.ndim == 3 else rows.flatten(2).mean(2)
    gram = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
    # Of features that diverge there are no eigenvalues; their own loss says so.
    return torch.linalg.eigvalsh(gram.nan_to_num(0, 0, 0))[:count].clamp(min=0).sum()


@attrs.define(eq=False)
class BSS:
    """Shrinks the smallest singular values of features; use it with ``weight=.001``.

    Attributes:
        count: Singular values.
    """

    count: int = attrs.field(default=1, validator=COUNT)

    @hookimpl
    @effect("device")
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the loss of this task's features."""
        return {"spectrum": smallest_squares(step.features, self.count).float()}
