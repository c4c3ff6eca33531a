"""Adversarial training: a discriminator learns to tell a network's images from the task's, the network to pass.

Papers: Goodfellow et al. (2014), "Generative Adversarial Nets" (the non-saturating loss); Xie et al. (2018), "tempoGAN"
    (conditional discriminator, loss in its feature space), as used in "Reviving Autoencoder Pretraining", C.2.
Equations: with images x, generated g and logits D: the discriminator's loss is the mean of softplus(-D(x)) +
    softplus(D(g)); the network's is the mean of softplus(-D(g)), plus ``features`` times the mean over layers of the
    mean square of D_l(x) - D_l(g). With ``condition=4``, D sees x and g each beside the 4x4 average of x, enlarged.
Steps: both take a step at the same time, each against the other as it was before; the network's loss does not move the
    discriminator, and the other way round. ``adversarial_in_turns`` alternates.
Cost: three passes of the discriminator over the batch, and their gradients.
Limits: tried on images up to 64 pixels a side. A discriminator may win at once: ``noise`` holds it back, and a smaller
    weight gives it less say beside other losses. Both sides move from one batch, which the paper does not do:
    ``adversarial_in_turns`` follows it. Photographs were not tried.
"""

from __future__ import annotations

from compatkit import hookimpl
from compatkit.hooks import Register

from ._adversarial import Adversarial

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``adversarial``."""
    register("adversarial", Adversarial)
