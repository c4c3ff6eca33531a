"""Unit features: pulls the length of features towards 1, so that those of all parts have one magnitude.

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", App. C.1: "adding a loss to encourage these features to become unit length". It gives neither
    formula nor weight; both are our reading, as is whose length: ``over``.
Equations: the mean over images, and over positions with ``over="position"``, of (|f|_2 - 1)^2.
Cost: one square and one sum over the features a step.
Limits: it ties lengths, not directions, so it makes no parts fit alone. Neither formula nor weight is in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from compatkit import Step, effect, hookimpl
from compatkit.foundation.limits import OneOf
from compatkit.hooks import Register

compatkit_api = 1
OVER = ("position", "image")


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``unit_features``."""
    register("unit_features", UnitFeatures)


def length_excess(features: Tensor, over: str = "position") -> Tensor:
    """Return the mean of ``(|f|_2 - 1)^2``; a vector of zeros counts 1 and gives no gradient.

    Args:
        features: Maps ``(batch, channels, height, width)``, tokens ``(batch, length, channels)`` or vectors
            ``(batch, channels)``. Nothing tells maps with channels last from others; they need ``over="image"``.
        over: ``"position"``: f is the vector of channels at each position; ``"image"``: all features of an image.

    Returns:
        Scalar, at least in float32.
    """
    values = features if features.dtype == torch.float64 else features.float()
    if over == "image":
        values = values.flatten(1)
    axis = 1 if values.ndim == 4 else -1
    return (torch.linalg.vector_norm(values, dim=axis) - 1).square().mean()


@attrs.define(eq=False)
class UnitFeatures:
    """Pulls features to unit length; there is no shared head, so it alone makes no promise of compatibility.

    Attributes:
        over: Vectors of unit length: the channels at each ``"position"``, or all features of an ``"image"``.
    """

    over: str = attrs.field(default="position", validator=OneOf(OVER))

    @hookimpl
    @effect("pure")
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the loss of this task's features."""
        return {"length": length_excess(step.features, self.over)}
