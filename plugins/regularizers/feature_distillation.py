"""Feature distillation: new features are pulled towards those of a released extractor on the same images.

Paper: Romero, Ballas, Kahou, Chassang, Gatta, Bengio (2015), "FitNets: Hints for Thin Deep Nets", Eq. 3, without a
    regressor, as both features have one shape, and a mean in place of half the sum.
Equations: the mean over images, channels and positions of (f_new(x) - f_old(x))^2.
Cost: an extractor's forward pass a step; memory of one more batch of features.
Limits: both extractors must give features of one shape; it has no regressor. It holds the new features where the old
    ones were, so a better extractor cannot move far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import torch.nn.functional as F
from torch import Tensor

from compatkit import SetUp, Step, autocast, effect, hookimpl
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``feature_distillation``."""
    register("feature_distillation", FeatureDistillation)


@attrs.define(eq=False)
class FeatureDistillation:
    """Compares features with those of a released extractor, which gets images normalized as its contract states."""

    _old: dict[str, Callable[[Tensor], Tensor]] = attrs.field(factory=dict, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Take the released extractor.

        Raises:
            UsageError: There is none, or it takes other images or gives features of another shape than a task's.
        """
        self._old = {name: setup.released_extractor(state) for name, state in setup.tasks.items()}

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the mean square of the difference."""
        targets = self._old[step.task.name](step.batch.images)
        return {"loss": F.mse_loss(step.features.float(), targets.float())}
