"""Beta-TC-VAE: a further penalty on the total correlation of the latent variables, estimated from the batch.

Paper: Chen, Li, Grosse, Duvenaud (2018), "Isolating Sources of Disentanglement in Variational Autoencoders", Eq. 4,
    App. C.1 (minibatch-weighted) and C.2 (minibatch-stratified); Bonheme and Grzes (2023), Eq. 11 and 12.
Equations: -log p(x | z) + KL + (beta - 1) TC, TC = mean_j [log q(z_j) - sum_l log q(z_jl)], where for M images of N
    log q(z_j) = log sum_i w_ji prod_l N(z_jl; mean_il, variance_il).
    Weighted: w_ji = 1 / (N M). Stratified: w_jj = 1 / N, 1 / (M - 1) for the others but one, and
    (N - M + 1) / (N (M - 1)) for that, the next image of the batch here; the sum of a row is 1.
Cost: M^2 times the variables, a step.
Limits: the estimate of the total correlation depends on the batch: it is biased for small ones. ``beta`` below 1 is
    refused. Figures of the paper's data sets were not reproduced.
The code of Locatello et al. drops the factor 1 / (N M), which moves the value by (variables - 1) log(N M) and no
gradient. The code of Chen et al. puts the weights of the strata into the first two columns in place of the diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from compatkit import SetUp, Step, autocast, effect, hookimpl
from compatkit.foundation.limits import Number, OneOf
from compatkit.hooks import Register

from ._variational import VariationalObjective, learning

compatkit_api = 1
ESTIMATORS = ("weighted", "stratified")


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``beta_tc_vae``."""
    register("beta_tc_vae", BetaTCVAE)


def log_weights(batch: int, images: int, estimator: str) -> Tensor:
    """Return log w_ji, ``(batch, batch)`` float64.

    Args:
        batch: M, at least 2.
        images: N, at least M.
        estimator: ``"weighted"`` or ``"stratified"``.
    """
    if estimator == "weighted":
        return torch.full((batch, batch), -math.log(images * batch), dtype=torch.float64)
    others = batch - 1
    weights = torch.full((batch, batch), 1 / others, dtype=torch.float64)
    rows = torch.arange(batch)
    weights[rows, (rows + 1) % batch] = (images - others) / (images * others)
    weights[rows, rows] = 1 / images
    return weights.log()


def total_correlation(mean: Tensor, log_variance: Tensor, drawn: Tensor, weights: Tensor) -> Tensor:
    """Return the estimate of KL(q(z) || prod_l q(z_l)), in nats; it may be below 0.

    Args:
        mean: Mean of q(z | x_i), ``(batch, variables)``; so is ``log_variance``.
        log_variance: The same.
        drawn: z_j, of the same shape.
        weights: Result of ``log_weights``.

    Returns:
        Scalar.
    """
    gap = drawn[:, None] - mean[None]
    density = -0.5 * (gap.square() * (-log_variance[None]).exp() + log_variance[None] + math.log(2 * math.pi))
    joint = (density.sum(2) + weights).logsumexp(1)
    alone = (density + weights[:, :, None]).logsumexp(1)
    return (joint - alone.sum(1)).mean()


@attrs.define(eq=False)
class BetaTCVAE(VariationalObjective):
    """Trains tasks as variational autoencoders with independent latent variables.

    Attributes:
        beta: Factor of the total correlation, that of the divergence included; the lambda of Bonheme and Grzes is
            beta - 1.
        estimator: ``"weighted"`` or ``"stratified"``.
    """

    beta: float = attrs.field(default=4.0, validator=Number(least=1))
    estimator: str = attrs.field(default="weighted", validator=OneOf(ESTIMATORS))
    _images: dict[str, int] = attrs.field(factory=dict, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Record the latent layers of all tasks, and note how many images each has."""
        for state in setup.tasks.values():
            self._images[state.name] = len(state.examples)
        VariationalObjective.compatkit_set_up(self, setup)

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return reconstruction, divergence and weighted total correlation."""
        seen = self.passed(step)
        weights = log_weights(len(seen.mean), self._images[step.task.name], self.estimator)
        correlation = total_correlation(seen.mean, seen.log_variance, seen.drawn, weights.to(seen.mean))
        return learning(
            reconstruction=seen.reconstruction,
            divergence=seen.divergence,
            total_correlation=(self.beta - 1) * correlation,
        )
