"""Decoder: one layer, shared by all tasks, reconstructs a small gray image from the features.

Equations: mean over batch and positions of (d(f(x)) - g(x))^2, g the gray image averaged to the size of the features.
Cost: a 1 x 1 convolution of the features, forward and backward.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit import SetUp, Step, effect, hookimpl
from compatkit.errors import UsageError
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``decoder``."""
    register("decoder", Decoder)


@attrs.define(eq=False)
class Decoder:
    """Regularizer with one trained layer on the features of all tasks."""

    layer: nn.Module | None = attrs.field(default=None, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Create the layer.

        Raises:
            UsageError: The features of the tasks are not maps of one width.
        """
        shapes = {state.name: state.feature_shape for state in setup.tasks.values()}
        widths = {shape[1] for shape in shapes.values()}
        if len(widths) > 1 or any(len(shape) != 4 for shape in shapes.values()):
            raise UsageError(
                f"decoder needs feature maps of one width; the tasks give {shapes}. Choose other split points, or set "
                "Task.width."
            )
        self.layer = setup.own("layer", nn.Conv2d(widths.pop(), 1, kernel_size=1))

    @hookimpl
    @effect("pure")
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the mean squared error of the reconstruction."""
        if self.layer is None or step.features is None:
            raise UsageError("decoder: the run was not set up before its losses were computed.")
        gray = step.batch.images.mean(1, keepdim=True)
        small = F.adaptive_avg_pool2d(gray, step.features.shape[2:])
        return {"error": F.mse_loss(self.layer(step.features).float(), small.float())}
