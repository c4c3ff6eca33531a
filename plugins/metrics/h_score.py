"""H-score: how much of the variance of features lies between classes, with a covariance that can be inverted.

Paper: Bao et al. (2019), "An Information-Theoretic Approach to Transferability in Task Transfer Learning", Def. 2;
    Ibrahim, Ponomareva, Mazumder (2022), "Newer is not always better: Rethinking transferability metrics, their
    peculiarities, stability and performance", Sec. 4: with shrinkage.
Equation: H_a = (1 - a) tr(C_a^-1 B), with C the covariance of the features, B that of their class means, each example
    standing for its class's, and C_a = (1 - a) C + a tr(C) / d I, a by Ledoit and Wolf (2004). Without shrinkage H is
    min(n - 1, d) for any labels once features outnumber examples.
Cost: a solve with d x d numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
from scipy.linalg import cho_factor, cho_solve

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.hooks import Register

from ._scores import FeatureScore, Floats, Labels

compatkit_api = 1
EPSILON = 1e-12
"""Least deviation of features from their mean, relative to their size; less is rounding."""


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``h_score``."""
    register("h_score", HScore)


@attrs.define(eq=False, kw_only=True)
class HScore(FeatureScore):
    """The table ``h_score``: 0 and more, at most the number of classes less one."""

    name = "h_score"
    unit = "1"
    estimator = "tr(C^-1 B) with Ledoit-Wolf shrinkage"
    paper = "Ibrahim et al. (2022), Newer is not always better: Rethinking transferability metrics"
    equation = "Sec. 4; Bao et al. (2019), Definition 2"

    def prepared(self, values: Floats) -> Callable[[Labels], float]:
        """See ``Score.prepared``."""
        count, width = values.shape
        centred = values - values.mean(0)
        largest = np.abs(centred).max()
        if not largest > EPSILON * np.abs(values).max():
            raise DataError("the features have no variance")
        centred = centred / largest  # the score does not depend on the scale
        covariance = centred.T @ centred / count
        variance = np.trace(covariance) / width
        squares = float((covariance**2).sum())
        spread = (float(((centred**2).sum(1) ** 2).sum()) / count - squares) / count
        apart = squares - width * variance**2  # from a multiple of the identity
        share = min(spread / apart, 1.0) if apart > 0 else 0.0
        if share >= 1:  # nothing is left of the covariance
            return lambda labels: 0.0
        try:
            factor = cho_factor((1 - share) * covariance + share * variance * np.eye(width))
        except np.linalg.LinAlgError as error:
            raise DataError(
                f"the covariance of {count} examples by {width} features is singular; give more examples"
            ) from error

        def score(labels: Labels) -> float:
            classes, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
            sums = np.zeros((len(classes), width))
            np.add.at(sums, places, centred)
            means = sums / counts[:, None] * np.sqrt(counts / count)[:, None]
            return float((1 - share) * (means * cho_solve(factor, means.T).T).sum())

        return score
