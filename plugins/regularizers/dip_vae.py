"""DIP-VAE: the covariance of the latent variables over images is pulled to the identity.

Paper: Kumar, Sattigeri, Balakrishnan (2018), "Variational Inference of Disentangled Latent Concepts from Unlabeled
    Observations", Eq. 6 and 7; Bonheme and Grzes (2023), Eq. 13.
Equations: -log p(x | z) + KL + off_diagonal sum_{i != j} C_ij^2 + diagonal sum_i (C_ii - 1)^2. Type I: C is the
    covariance of the means over the batch, with 1 / M; type II: that plus the mean of the variances on its diagonal.
Cost: one product of the means a step.
Limits: the covariance of a batch is a poor estimate with many latent variables and few images. Figures of the paper's
    data sets were not reproduced.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from compatkit import Step, autocast, effect, hookimpl
from compatkit.foundation.limits import Number, OneOf
from compatkit.hooks import Register

from ._variational import VariationalObjective, learning

compatkit_api = 1
TYPES = {"i": 10.0, "ii": 1.0}
"""Factor of the default of ``diagonal`` over ``off_diagonal``, as in Locatello et al. (2019)."""


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``dip_vae``."""
    register("dip_vae", DIPVAE)


def covariance(mean: Tensor, log_variance: Tensor, kind: str) -> Tensor:
    """Return C, ``(variables, variables)``.

    Args:
        mean: ``(batch, variables)``; so is ``log_variance``.
        log_variance: The same.
        kind: ``"i"`` or ``"ii"``.
    """
    centered = mean - mean.mean(0)
    of_means = centered.T @ centered / len(mean)
    return of_means if kind == "i" else of_means + torch.diag(log_variance.exp().mean(0))


def penalty(matrix: Tensor, off_diagonal: float, diagonal: float) -> Tensor:
    """Return the weighted distance of a covariance from the identity.

    Args:
        matrix: Symmetric, ``(variables, variables)``.
        off_diagonal: Factor of the squares beside the diagonal.
        diagonal: Factor of those on it.

    Returns:
        Scalar.
    """
    own = matrix.diagonal()
    return off_diagonal * (matrix.square().sum() - own.square().sum()) + diagonal * (own - 1).square().sum()


@attrs.define(eq=False)
class DIPVAE(VariationalObjective):
    """Trains tasks as variational autoencoders with uncorrelated latent variables.

    Attributes:
        kind: ``"i"`` or ``"ii"``.
        off_diagonal: Factor of the squares beside the diagonal.
        diagonal: Factor of those on it; None takes ``off_diagonal``, for type I ten times that.
    """

    kind: str = attrs.field(default="ii", validator=OneOf(TYPES))
    off_diagonal: float = attrs.field(default=1.0, validator=Number(least=0))
    diagonal: float | None = attrs.field(default=None, validator=Number(least=0, optional=True))

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return reconstruction, divergence and weighted distance of the covariance."""
        seen = self.passed(step)
        own = TYPES[self.kind] * self.off_diagonal if self.diagonal is None else self.diagonal
        matrix = covariance(seen.mean, seen.log_variance, self.kind)
        return learning(
            reconstruction=seen.reconstruction,
            divergence=seen.divergence,
            covariance=penalty(matrix, self.off_diagonal, own),
        )
