"""H-score: how much of the variance of features lies between classes, with a covariance that can be inverted.

Paper: Bao et al. (2019), "An Information-Theoretic Approach to Transferability in Task Transfer Learning", Def. 2;
    Ibrahim, Ponomareva, Mazumder (2022), "Newer is not always better: Rethinking transferability metrics, their
    peculiarities, stability and performance", Sec. 4: with shrinkage.
Equations: H_a = (1 - a) tr(C_a^-1 B), with C the covariance of the features, B that of their class means, each example
    standing for its class's, and C_a = (1 - a) C + a tr(C) / d I, a by Ledoit and Wolf (2004). The plain score has
    a = 0 and the pseudo-inverse; once features outnumber examples it is the number of classes less one for any labels.
    With the centered features U S V' and the eigenvalues l_j = s_j^2 / n of C, H_a is
    (1 - a) sum_j w_j sum_c (sum over i in c of u_ij)^2 / n_c, w_j = l_j / ((1 - a) l_j + a tr(C) / d).
Reading: where a is above ``MOST``, 1 - a says more than the features do; at 1, nothing is left of them. Features of
    nearly equal variance in all directions come to that whatever they know. Such scores are degenerate.
Cost: a thin SVD.
Limits: it is degenerate where shrinkage is above .5, and counts the architecture: random filters have most of it. It
    ranks extractors, and is no accuracy.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.foundation.limits import OneOf
from compatkit.hooks import Register

from ._scores import FeatureScore, Floats, Labels

compatkit_api = 1
SHRINKAGES = ("ledoit-wolf", "none")
MOST = 0.5
"""Shrinkage above which a score is degenerate."""
EPSILON = 1e-12
"""Least deviation of features from their mean, relative to their size; less is rounding."""


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``h_score``."""
    register("h_score", HScore)


@attrs.define(eq=False, kw_only=True)
class HScore(FeatureScore):
    """The table ``h_score``: 0 and more, at most the number of classes less one.

    Attributes:
        shrinkage: ``"ledoit-wolf"``, or ``"none"``: the plain score, with the covariance as it is.
    """

    name = "h_score"
    unit = "1"
    estimator = "tr(C^-1 B)"
    paper = "Ibrahim et al. (2022), Newer is not always better: Rethinking transferability metrics"
    equation = "Sec. 4; Bao et al. (2019), Definition 2"
    shrinkage: str = attrs.field(default="ledoit-wolf", validator=OneOf(SHRINKAGES))

    def estimated(self) -> str:
        """See ``Score.estimated``."""
        return self.estimator + (
            " without shrinkage" if self.shrinkage == "none" else " with Ledoit-Wolf shrinkage"
        )

    def prepared(self, values: Floats) -> tuple[Callable[[Labels], float], str]:
        """See ``Score.prepared``."""
        count, width = values.shape
        centered = values - values.mean(0)
        if not np.abs(centered).max() > EPSILON * np.abs(values).max():
            raise DataError("the features have no variance")
        if self.shrinkage == "none":  # the plain score does not depend on the scale of any feature
            deviations = np.abs(centered).max(0)
            centered = centered[:, deviations > EPSILON * np.abs(values).max(0)]
        centered = centered / np.abs(centered).max(0 if self.shrinkage == "none" else None)
        left, sizes, _ = np.linalg.svd(centered, full_matrices=False)
        rank = int((sizes > sizes[0] * max(centered.shape) * np.finfo(np.float64).eps).sum())
        basis, variances = left[:, :rank], sizes[:rank] ** 2 / count
        share = 0.0 if self.shrinkage == "none" else ledoit_wolf(centered, variances)
        if self.shrinkage != "none" and not share and rank < width:
            raise DataError(
                f"the covariance of {count} examples by {width} features is singular; give more examples"
            )
        weights = variances / ((1 - share) * variances + share * variances.sum() / width)

        def score(labels: Labels) -> float:
            classes, class_indices, counts = np.unique(labels, return_inverse=True, return_counts=True)
            sums = np.zeros((len(classes), rank))
            np.add.at(sums, class_indices, basis)
            return float((1 - share) * (sums**2 / counts[:, None] @ weights).sum())

        return score, self._doubt(values, rank, share)

    def _doubt(self, values: Floats, rank: int, share: float) -> str:
        if share > MOST:
            return f"Ledoit-Wolf shrinkage is {share:.2f}: the score is mostly that of a multiple of the identity"
        different = len(np.unique(values, axis=0)) if self.shrinkage == "none" else len(values)
        if self.shrinkage == "none" and rank >= different - 1:
            return (
                f"{rank} directions of {different} different examples: the score is the same for any labels"
            )
        return ""


def ledoit_wolf(centered: Floats, variances: Floats) -> float:
    """Return the share of the identity in the covariance of centered features, from 0 to 1.

    Args:
        centered: ``(n, d)``.
        variances: Eigenvalues of the covariance above 0.
    """
    count, width = centered.shape
    squares = float((variances**2).sum())
    deviation = squares - variances.sum() ** 2 / width  # from a multiple of the identity
    spread = (float(((centered**2).sum(1) ** 2).sum()) / count - squares) / count
    return float(np.clip(spread / deviation, 0.0, 1.0)) if deviation > EPSILON * squares else 0.0
