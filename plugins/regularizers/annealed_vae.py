"""Annealed VAE: the divergence is held at a capacity that rises during training.

Paper: Burgess et al. (2018), "Understanding disentangling in beta-VAE", Eq. 8; Bonheme and Grzes (2023), Eq. 9, write
    the absolute value for each example, the code of both takes it of the batch's mean, as here.
Equations: -log p(x | z) + gamma |KL - C(t)|, C(t) = capacity * min(1, t / steps), t the step of the task, from 0.
Cost: none beside the network; steps are not compiled, as the capacity is a number of the host.
Limits: only for networks with latent layers. The paper's schedule is 100,000 of 300,000 steps; set ``steps`` to about
    a third of a run. Steps are not compiled.
The step is the trainer's own, which checkpoints hold: a run that resumes goes on with the capacity it had reached.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from torch import Tensor

from compatkit import Step, autocast, hookimpl
from compatkit.foundation.limits import COUNT, Number
from compatkit.hooks import Register

from ._variational import VariationalObjective, learning

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``annealed_vae``."""
    register("annealed_vae", AnnealedVAE)


@attrs.define(eq=False)
class AnnealedVAE(VariationalObjective):
    """Trains tasks as variational autoencoders with a rising capacity.

    Attributes:
        capacity: Largest capacity, in nats.
        gamma: Factor of the distance to it.
        steps: Steps of a task in which it rises from 0; the paper's 100,000 are for 300,000 steps.
    """

    capacity: float = attrs.field(default=25.0, validator=Number(least=0))
    gamma: float = attrs.field(default=1000.0, validator=Number(least=0))
    steps: int = attrs.field(default=100_000, validator=COUNT)

    def at(self, step: int) -> float:
        """Return the capacity at a step, from 0, in nats."""
        return self.capacity * min(1.0, step / self.steps)

    @hookimpl
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return reconstruction and weighted distance."""
        seen = self.passed(step)
        gap = (seen.divergence - self.at(step.number)).abs()
        return learning(reconstruction=seen.reconstruction, capacity=self.gamma * gap)
