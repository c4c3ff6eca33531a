"""Focal loss: counts images less that the network already classifies well.

Paper: Lin, Goyal, Girshick, He, Dollar (2017), "Focal Loss for Dense Object Detection", Sec. 3.2.
Equations: FL(p_t) = (1 - p_t)^gamma * -log(p_t), Eq. 4, with p_t the probability of the true class; the factor has its
    gradient, as in the paper. We use a softmax where the paper has a sigmoid for each class, without alpha (Eq. 5).
    Under mixup and CutMix, which the paper does not have, p_t is the mean of the probabilities of the mixed classes by
    their shares; label smoothing changes the cross-entropy alone.
Cost: one softmax of the logits a step.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from compatkit import Step, effect, hookimpl
from compatkit.foundation.limits import Number
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``focal_loss``."""
    register("focal_loss", FocalLoss)


@attrs.define(eq=False)
class FocalLoss:
    """Multiplies the loss of each image by ``(1 - p_t)^gamma``.

    Attributes:
        gamma: Exponent; 0 is the cross-entropy, the paper's choice is 2.
    """

    gamma: float = attrs.field(default=2.0, validator=Number(least=0))

    @hookimpl
    @effect("pure")
    def compatkit_sample_losses(self, step: Step, losses: Tensor) -> Tensor:
        """Return focal losses ``(batch,)``."""
        assert step.logits is not None
        chances = step.logits.softmax(1)
        if step.mixed_labels is None:
            true = chances.gather(1, step.batch.labels[:, None])[:, 0]
        else:
            true = (chances * step.mixed_labels).sum(1)
        # At p_t = 1, in floating point, the gradient of a power below 1 is infinite, and times a loss of 0 is NaN.
        rest = (1 - true).clamp(min=torch.finfo(true.dtype).tiny)
        return rest**self.gamma * losses
