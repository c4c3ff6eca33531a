"""Image error: the mean square difference between the image that a network gives and the task's own image.

Paper: "Reviving Autoencoder Pretraining", C.2, the L2 loss of generators and autoencoders.
Equations: mean over batch, channels and pixels of (g(x) - x)^2, pixels from 0 to 1.
Cost: none beside the network.
Limits: it averages over what it does not know, so images become blurred. The network must give an image of the task's
    size.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch.nn.functional as F
from torch import Tensor

from compatkit import Step, effect, hookimpl
from compatkit.hooks import Register

from ._generated import ImageObjective

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``image_error``."""
    register("image_error", ImageError)


@attrs.define(eq=False)
class ImageError(ImageObjective):
    """Trains networks to give their own images: autoencoders, super-resolution."""

    @hookimpl
    @effect("pure")
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the mean square error."""
        return {"squares": F.mse_loss(step.features.float(), step.batch.images.float())}
