"""Beta-VAE: reconstruction plus beta times the divergence from the prior; with beta = 1 the evidence lower bound.

Papers: Kingma and Welling (2014), "Auto-Encoding Variational Bayes"; Higgins et al. (2017), "beta-VAE: Learning Basic
    Visual Concepts with a Constrained Variational Framework".
Equations: -log p(x | z) + beta KL(q(z | x) || N(0, 1)), summed over pixels and variables, mean over images.
Cost: none beside the network.
Limits: only for networks with latent layers whose outputs are logits of pixels from 0 to 1. A large ``beta`` lets
    latent variables collapse; ``posterior_collapse`` counts them.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from torch import Tensor

from compatkit import Step, autocast, effect, hookimpl
from compatkit.foundation.limits import Number
from compatkit.hooks import Register

from ._variational import VariationalObjective, learning

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``beta_vae``."""
    register("beta_vae", BetaVAE)


@attrs.define(eq=False)
class BetaVAE(VariationalObjective):
    """Trains tasks as variational autoencoders.

    Attributes:
        beta: Factor of the divergence.
    """

    beta: float = attrs.field(default=1.0, validator=Number(least=0))

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return reconstruction and weighted divergence."""
        seen = self.passed(step)
        return learning(reconstruction=seen.reconstruction, divergence=self.beta * seen.divergence)
