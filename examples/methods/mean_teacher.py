"""Mean teacher: a network agrees with the moving average of its own weights under other noise.

Paper: Tarvainen and Valpola (2017), "Mean Teachers Are Better Role Models", Sec. 2 and App. B.
Equations: J(theta) = E ||f(x, theta', eta') - f(x, theta, eta)||^2 over softmax outputs, Sec. 2, with
    theta'_t = alpha theta'_(t-1) + (1 - alpha) theta_t, Eq. 1: the trainer's averages, Trainer(ema=alpha). The weight
    rises as exp(-5 (1 - t / T)^2) over the first T steps (App. B). The noise eta is Gaussian, on normalized images;
    the teacher normalizes by the statistics of its own batch. All images have labels here.
Cost: one forward pass of the network more, without gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from compatkit import AveragedNetwork, Batch, SetUp, Step, hookimpl
from compatkit.foundation.limits import Number
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``mean_teacher``."""
    register("mean_teacher", MeanTeacher)


def consistency(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared distance of softmax outputs ``()``, for logits ``(batch, classes)``."""
    return (student.softmax(1) - teacher.softmax(1)).square().sum(1).mean()


def ramp_up(step: int, steps: float) -> float:
    """Return the factor of the weight in a step, from 0: it rises to 1 over ``steps`` steps."""
    return math.exp(-5 * (1 - min(1.0, step / steps)) ** 2) if steps else 1.0


@attrs.define(eq=False)
class MeanTeacher:
    """Pulls the predictions of each task's network towards those of its averaged weights.

    Attributes:
        noise: Standard deviation of the noise on normalized images.
        ramp: Share of the run in which the weight rises.
    """

    noise: float = attrs.field(default=0.15, validator=Number(least=0))
    ramp: float = attrs.field(default=0.25, validator=Number(least=0, most=1))
    _teachers: dict[str, AveragedNetwork] = attrs.field(factory=dict, init=False)
    _clean: dict[int, Tensor] = attrs.field(factory=dict, init=False)
    _steps: float = attrs.field(default=0.0, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Get the teachers."""
        self._teachers = {name: setup.averaged(task) for name, task in setup.tasks.items()}
        self._steps = self.ramp * setup.run.steps

    @hookimpl
    def compatkit_views(self, step: Step, batch: Batch) -> Batch:
        """Return the student's view."""
        self._clean[step.piece] = batch.images
        return attrs.evolve(batch, images=self._noisy(batch.images, step, "student"), stacked=None)

    @hookimpl
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the distance of both predictions ``()``."""
        teacher = self._teachers[step.task.name](self._noisy(self._clean.pop(step.piece), step, "teacher"))
        assert step.logits is not None
        return {"consistency": ramp_up(step.number, self._steps) * consistency(step.logits, teacher)}

    def _noisy(self, images: Tensor, step: Step, who: str) -> Tensor:
        noise = torch.randn(images.shape, generator=step.rng("mean_teacher", who))
        return images + self.noise * noise.to(images.device, images.dtype)
