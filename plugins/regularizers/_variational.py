"""Common parts of objectives of variational autoencoders: task, recorded layers, reconstruction and divergence."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch.nn.functional as F
from torch import Tensor

from compatkit import SetUp, Step, Task, hookimpl
from compatkit.errors import UsageError

LATENT, SAMPLE, LAST = "latent", "sample", "decoder"
"""Layers of ``vae_conv`` and ``vae_dense``: mean and log-variance, the drawn variables, logits of pixels."""
IDENTITY = {"mean": 0.0, "std": 1.0}
"""Normalization that leaves pixels from 0 to 1, as the Bernoulli likelihood takes them."""


def bernoulli(logits: Tensor, images: Tensor) -> Tensor:
    """Return the cross-entropy of pixels, summed over pixels and channels, mean over images; in nats.

    Args:
        logits: ``(batch, channels, height, width)``.
        images: Images of the same shape, from 0 to 1.

    Returns:
        Scalar; the entropy of gray pixels is part of it, so that it does not reach 0 for them.
    """
    return F.binary_cross_entropy_with_logits(logits, images, reduction="sum") / len(images)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return KL(N(mean, exp(log_variance)) || N(0, 1)) of every variable, ``(batch, variables)``, in nats."""
    return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1)


@attrs.frozen(eq=False)
class Passed:
    """Outputs of a VAE for a batch, in float32 or wider.

    Attributes:
        mean: ``(batch, variables)``; so are ``log_variance`` and ``drawn``.
        reconstruction: See ``bernoulli``.
    """

    mean: Tensor
    log_variance: Tensor
    drawn: Tensor
    reconstruction: Tensor

    @property
    def divergence(self) -> Tensor:
        """Sum over variables, mean over images."""
        return divergence(self.mean, self.log_variance).sum(1).mean()


class VariationalObjective:
    """Trains networks with layers ``latent``, ``sample`` and ``decoder`` as variational autoencoders."""

    @hookimpl
    def compatkit_task(self, task: Task, seed: int) -> Task:
        """Return the task without a class layer, with pixels from 0 to 1.

        Raises:
            UsageError: It is cut elsewhere than behind the decoder, has another objective already, has a normalization,
                or starts from components.
        """
        subject = f"Task {task.name!r} is trained as a variational autoencoder"
        if task.cut != LAST:
            raise UsageError(
                f"{subject}, which trains all of a network such as vae_conv; its cut is {task.cut!r}. Set "
                f"split={LAST!r}.",
                subject=task.name,
            )
        if task.normalize is not None or task.extractor is not None:
            raise UsageError(
                f"{subject}, by one objective, from pixels from 0 to 1 and a network of its own. Leave out "
                "normalize=, extractor= and all objectives but one; weights= starts it from another network.",
                subject=task.name,
            )
        return attrs.evolve(task, own_head=False, normalize=IDENTITY)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Record the latent layers of all tasks."""
        for state in setup.tasks.values():
            setup.record_layers(state, [LATENT, SAMPLE])

    def passed(self, step: Step) -> Passed:
        """Return the moments, the drawn variables and the reconstruction of a step."""
        (latent,), (sample,) = step.layers[LATENT], step.layers[SAMPLE]
        mean, log_variance = latent.output.float().chunk(2, dim=1)
        loss = bernoulli(step.features.float(), step.batch.images.float())
        return Passed(mean, log_variance, sample.output.float(), loss)


def learning(**losses: Tensor) -> Mapping[str, Tensor]:
    """Return the losses that have a gradient: where the encoder is frozen, the divergence is a constant."""
    return {name: loss for name, loss in losses.items() if loss.requires_grad}
