"""DANN: a classifier learns which task features come from, and the extractors learn that it cannot tell.

Paper: Ganin et al. (2016), "Domain-Adversarial Training of Neural Networks", Eq. 9 to 11, 17, Sec. 5.2.2 (lambda).
Equations: R(x) = x with dR/dx = -lambda; the loss is the cross-entropy of G_d(R(G_f(x))) against the domain;
    lambda = 2 / (1 + exp(-10 p)) - 1, p from 0 to 1 over the run. A domain is a task, with an extractor of its own.
Cost: two small layers on the mean of the features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit import SetUp, Step, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import COUNT, Number
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``dann``."""
    register("dann", DANN)


class Reversal(torch.autograd.Function):
    """Leaves values as they are, and multiplies gradients by ``-factor``."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, factor: float) -> Tensor:
        """Return the values."""
        ctx.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the reversed gradient."""
        return -ctx.factor * gradients[0], None


@attrs.define(eq=False, slots=False)
class DANN:
    """Aligns the features of all tasks.

    Attributes:
        gamma: Steepness of lambda's schedule; 0 trains the classifier alone.
        hidden, lr: Hidden units of the classifier; its initial rate, None for the trainer's.
    """

    gamma: float = attrs.field(default=10.0, validator=Number(least=0))
    hidden: int = attrs.field(default=64, validator=COUNT)
    lr: float | None = attrs.field(default=None, validator=Number(above=0, optional=True))

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Build the domain classifier."""
        self.domains, self.steps = [*setup.tasks], setup.run.steps
        widths = [one.feature_shape[-1 if len(one.feature_shape) == 3 else 1] for one in setup.tasks.values()]
        if len(widths) < 2 or len(set(widths)) > 1:
            raise UsageError(f"dann needs two tasks or more of one width; got widths {widths}.")
        layers = nn.Linear(widths[0], self.hidden), nn.ReLU(), nn.Linear(self.hidden, len(widths))
        self.classifier = setup.own("domain", nn.Sequential(*layers), lr=self.lr)

    @hookimpl
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the loss of the domain classifier on reversed features."""
        factor = 2 / (1 + math.exp(-self.gamma * step.number / max(1, self.steps - 1))) - 1
        maps = step.features.mT if step.features.ndim == 3 else step.features  # tokens have channels last
        means = maps.flatten(2).mean(2) if maps.ndim > 2 else maps
        labels = step.batch.labels.new_full((len(means),), self.domains.index(step.task.name))
        return {"domain": F.cross_entropy(self.classifier(Reversal.apply(means, factor)), labels)}
