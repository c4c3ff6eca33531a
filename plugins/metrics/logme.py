"""LogME: the evidence of a Bayesian linear model of the labels on features, before anything is trained.

Paper: You, Liu, Wang, Long (2021), "LogME: Practical Assessment of Pre-trained Models for Transfer Learning", Sec. 4.
Equations: for each class a column y of 0 and 1, y ~ N(F w, I / beta), w ~ N(0, I / alpha); the score is the mean over
    classes of max over alpha, beta of log p(y | F, alpha, beta) / n (their Eq. 2). With F = U S V', k = min(n, d)
    singular values s, z = U'y and t = alpha / beta, the best beta is n / E(t) for E(t) = sum_i z_i^2 t / (s_i^2 + t)
    + |y|^2 - |z|^2, which leaves one number to search:
        log p = (n log(n / (2 pi E(t))) - n + sum_{i <= k} log(t / (s_i^2 + t))) / 2.
    It holds for n < d too. The authors' fixed-point code leaves out (d - k) / 2 log alpha there, so that its scores of
    wide features are not the evidence.
Search: a grid of log t and golden sections, which cannot diverge as the fixed point can.
Cost: one thin SVD for all classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from scipy.optimize import minimize_scalar

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.hooks import Register

from ._scores import FeatureScore, Floats, Labels

compatkit_api = 1
GRID = np.linspace(-30, 30, 121)
"""Of log t, relative to the largest squared singular value."""


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``logme``."""
    register("logme", LogME)


@attrs.define(eq=False, kw_only=True)
class LogME(FeatureScore):
    """The table ``logme``, in nats for each example and class."""

    name = "logme"
    unit = "nats"
    estimator = "largest evidence of a linear model, mean over classes, by example"
    paper = "You et al. (2021), LogME: Practical Assessment of Pre-trained Models for Transfer Learning"
    equation = "Eq. 2, Sec. 4"

    def prepared(self, values: Floats) -> Callable[[Labels], float]:
        """See ``Score.prepared``."""
        left, sizes, _ = np.linalg.svd(values, full_matrices=False)
        if not sizes[0]:
            raise DataError("all features are zero")

        def score(labels: Labels) -> float:
            columns = (np.unique(labels)[:, None] == labels).astype(np.float64)
            return float(np.mean([evidence(left, sizes / sizes[0], one)[0] / len(labels) for one in columns]))

        return score


def evidence(left: Floats, sizes: Floats, column: Floats) -> tuple[float, float, float]:
    """Return the largest log evidence of a column of labels, and the alpha and beta that give it.

    Args:
        left: Left singular vectors of the features, ``(n, k)``.
        sizes: Singular values, ``(k,)``.
        column: ``(n,)``.
    """
    count, squares = len(column), sizes**2
    along = (left.T @ column) ** 2
    # Where the features span all columns nothing is left; rounding would count at small t.
    rest = 0.0 if left.shape[1] == count else max(float(column @ column - along.sum()), 0.0)

    def error(log: float) -> float:
        t = math.exp(log) * squares[0]
        return float((along * t / (squares + t)).sum() + rest)

    def negative(log: float) -> float:
        t = math.exp(log) * squares[0]
        fit = count * math.log(count / (2 * math.pi * max(error(log), 1e-300))) - count
        return -(fit + float(np.log(t / (squares + t)).sum())) / 2

    best = int(np.argmin([negative(one) for one in GRID]))
    around = GRID[max(best - 1, 0)], GRID[min(best + 1, len(GRID) - 1)]
    found: Any = minimize_scalar(negative, bounds=around, method="bounded", options={"xatol": 1e-10})
    beta = count / max(error(found.x), 1e-300)
    return -float(found.fun), beta * math.exp(found.x) * float(squares[0]), beta
