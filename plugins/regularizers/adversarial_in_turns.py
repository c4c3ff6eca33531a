"""Adversarial training in turns: the discriminator moves in even steps, the network in odd ones.

Paper: Goodfellow et al. (2014), "Generative Adversarial Nets", Algorithm 1 with k = 1: a batch for each side.
Equations: those of ``adversarial``. In even steps the discriminator moves against the network as it is; in odd ones the
    network moves by all its losses, against the discriminator as it is then.
Cost: that of ``adversarial`` in a step, and twice the steps for as many updates of each side.
Limits: those of ``adversarial``. k = 1 only. It was not better than steps at once in the studies here.
"""

from __future__ import annotations

import attrs

from compatkit import Step, hookimpl
from compatkit.hooks import Register

from ._adversarial import Adversarial

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``adversarial_in_turns``."""
    register("adversarial_in_turns", InTurns)


@attrs.define(eq=False)
class InTurns(Adversarial):
    """``Adversarial`` with one side trained per step, the discriminator first; the settings are the same."""

    @hookimpl
    def compatkit_after_backward(self, step: Step) -> None:
        """Drop the gradients of the side whose turn it is not."""
        still = self._critics[step.task.name] if step.number % 2 else step.task.extractor
        for parameter in still.parameters():
            parameter.grad = None
