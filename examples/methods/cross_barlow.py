"""Cross-task Barlow twins: features of two extractors for the same images agree, and their channels are not redundant.

Paper: Zbontar, Jing, Misra, LeCun, Deny (2021), "Barlow Twins: Self-Supervised Learning via Redundancy Reduction",
    Eq. 1 and 2. There the twins are two views in one network; here they are one image in the networks of two tasks.
Equations: L = sum_i (1 - C_ii)^2 + offdiagonal sum_i sum_j!=i C_ij^2, with C the correlation over the batch between
    channel i of one extractor and channel j of the other; 1e-5 is added to variances, as in the authors' code. We
    correlate the means of features over positions, without the paper's projector, and take the mean over all pairs of
    tasks and over the batches of both.
Cost: each extractor on the batch of each task, forward and backward: for two tasks, two more steps of both networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import attrs
import torch
from torch import Tensor

from compatkit import JointStep, SetUp, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import Number
from compatkit.hooks import Register

compatkit_api = 1
EPS = 1e-5


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``cross_barlow``."""
    register("cross_barlow", CrossBarlow)


def over_positions(features: Tensor) -> Tensor:
    """Return the mean over positions of maps or tokens, ``(batch, channels)``."""
    if features.ndim == 2:
        return features
    return features.mean(1) if features.ndim == 3 else features.mean((2, 3))


def redundancy(left: Tensor, right: Tensor, offdiagonal: float) -> Tensor:
    """Return the loss of two matrices of features, ``(batch, channels)``."""
    scaled = [(each - each.mean(0)) / (each.var(0, correction=0) + EPS).sqrt() for each in (left, right)]
    squares = (scaled[0].T @ scaled[1] / len(left) - torch.eye(left.shape[1], device=left.device)).square()
    return offdiagonal * squares.sum() + (1 - offdiagonal) * squares.diagonal().sum()


@attrs.define(eq=False)
class CrossBarlow:
    """Ties the extractors of all tasks.

    Attributes:
        offdiagonal: Weight of the correlations between channels, .005 in the paper.
    """

    offdiagonal: float = attrs.field(default=0.005, validator=Number(least=0))

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Refuse tasks whose features do not pair up."""
        shapes = [state.feature_shape for state in setup.tasks.values()]
        widths = [over_positions(torch.empty(shape)).shape[1] for shape in shapes]
        if len(shapes) < 2 or len(set(widths)) > 1:
            raise UsageError(f"cross_barlow needs two tasks or more of one width; got widths {widths}.")

    @hookimpl
    def compatkit_joint_losses(self, joint: JointStep) -> Mapping[str, Tensor]:
        """Return the mean loss of all pairs on all batches."""
        losses: list[Tensor] = []
        for source, step in joint.steps.items():
            images = step.batch.images
            features = [joint.extract(task, images, source=source) for task in joint.steps]
            means = [over_positions(each) for each in features]
            losses += [redundancy(left, right, self.offdiagonal) for left, right in combinations(means, 2)]
        return {"loss": torch.stack(losses).mean()}
