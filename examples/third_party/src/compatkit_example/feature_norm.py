"""Feature norm: pulls the mean square of the features towards a target, so that scales of tasks agree.

Equations: (mean over batch and channels of f(x)^2 - target)^2.
Cost: one reduction of the features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from compatkit import effect, hookimpl
from compatkit.foundation.limits import Number

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit import Step
    from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``feature_norm``."""
    register("feature_norm", FeatureNorm)


def squared_deviation(features: Tensor, target: float) -> Tensor:
    """Return the squared distance of the features' mean square from ``target``, shape ``()``."""
    return (features.float().square().mean() - target).square()


@attrs.define(eq=False)
class FeatureNorm:
    """Adds the squared deviation of the features' mean square.

    Attributes:
        target: Mean square to reach.
    """

    target: float = attrs.field(default=1.0, validator=Number(least=0))

    @hookimpl
    @effect("pure")
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the deviation of this step's features."""
        if step.features is None:
            return {}
        return {"deviation": squared_deviation(step.features, self.target)}
