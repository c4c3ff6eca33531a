"""LogME: the evidence of a Bayesian linear model of the labels on features, before anything is trained.

Paper: You, Liu, Wang, Long (2021), "LogME: Practical Assessment of Pre-trained Models for Transfer Learning", Sec. 4.
Equations: for each class a column y of 0 and 1, y ~ N(F w, I / beta), w ~ N(0, I / alpha); the score is the mean over
    classes of max over alpha, beta of log p(y | F, alpha, beta) / n (their Eq. 2). With F = U S V', k = min(n, d)
    singular values s, z = U'y and t = alpha / beta, the best beta is n / E(t) for E(t) = sum_i z_i^2 t / (s_i^2 + t)
    + |y|^2 - |z|^2, which leaves one number to search:
        log p = (n log(n / (2 pi E(t))) - n + sum_{i <= k} log(t / (s_i^2 + t))) / 2.
    It holds for n < d too. The authors' fixed-point code leaves out (d - k) / 2 log alpha there, so that its scores of
    wide features are not the evidence.
    Where features explain a column to rounding and n > k there is no largest evidence: it grows as t falls.
Search: a grid of log t that reaches ``REACH`` beyond the squares of the smallest and the largest singular value, and a
    bounded search around its highest peaks. Singular values that are rounding are left out. Where columns differ much
    in size, a QR decomposition that takes the large ones first keeps the digits of the small ones.
Cost: one thin SVD for all classes.
Limits: undefined where features explain a class exactly. It ranks extractors for a linear head, not for fine-tuning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from scipy.linalg import qr
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.hooks import Register

from ._scores import FeatureScore, Floats, Labels

compatkit_api = 1
REACH = 40.0
"""Search range of log t beyond the squared singular values, where the evidence is constant."""
STEP = 0.5
"""Distance of points of log t; the evidence is a sum of steps of width 4."""
PEAKS = 3
"""Number of refined peaks of the grid."""
UNEQUAL = 1e4
"""Ratio of the norms of columns above which a QR decomposition orders them first."""
EXPLAINED = 1e-12
"""Share of a column's square below which what the features leave of it is rounding."""


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

    def prepared(self, values: Floats) -> tuple[Callable[[Labels], float], str]:
        """See ``Score.prepared``."""
        left, sizes = decomposed(values)

        def score(labels: Labels) -> float:
            columns = (np.unique(labels)[:, None] == labels).astype(np.float64)
            return float(np.mean([evidence(left, sizes, column)[0] / len(labels) for column in columns]))

        return score, ""


def decomposed(values: Floats) -> tuple[Floats, Floats]:
    """Return left singular vectors ``(n, k)`` and singular values ``(k,)``, those that are no rounding.

    Args:
        values: ``(n, d)``; the singular values are relative to the largest.

    Raises:
        DataError: All are zero.
    """
    largest = np.abs(values).max()
    if not largest:
        raise DataError("all features are zero")
    values = values / largest
    norms = np.linalg.norm(values, axis=0)
    values, norms = values[:, norms > 0], norms[norms > 0]
    if norms.max() > UNEQUAL * norms.min():
        rank = int(
            np.linalg.matrix_rank(values / norms)
        )  # of columns of one size, where rounding is of one size too
        split: Any = qr(values, mode="economic", pivoting=True)
        basis, triangle = split[:2]
        turned, sizes, _ = np.linalg.svd(triangle, full_matrices=False)
        left = basis @ turned
    else:
        left, sizes, _ = np.linalg.svd(values, full_matrices=False)
        rank = int((sizes > sizes[0] * max(values.shape) * np.finfo(np.float64).eps).sum())
    return left[:, :rank], sizes[:rank] / sizes[0]


def evidence(left: Floats, sizes: Floats, column: Floats) -> tuple[float, float, float]:
    """Return the largest log evidence of a column of labels, and the alpha and beta that give it.

    Args:
        left: Left singular vectors of the features, ``(n, k)``.
        sizes: Singular values above 0, ``(k,)``.
        column: ``(n,)``.

    Raises:
        DataError: The features explain the column, so that no evidence is the largest.
    """
    count, logs = len(column), 2 * np.log(sizes)
    along = (left.T @ column) ** 2
    # Where the features span all columns nothing is left; rounding would count at small t.
    rest = 0.0 if left.shape[1] == count else float(((column - left @ (left.T @ column)) ** 2).sum())
    if left.shape[1] < count and rest <= EXPLAINED * float(column @ column):
        raise DataError("the features explain a class exactly, so that its evidence has no largest value")

    def negative(log: Any) -> Any:
        gaps = np.asarray(log)[..., None] - logs
        error = np.maximum(expit(gaps) @ along + rest, 1e-300)
        return -(count * np.log(count / (2 * math.pi * error)) - count + log_expit(gaps).sum(-1)) / 2

    points = np.arange(logs.min() - REACH, logs.max() + REACH + STEP, STEP)
    heights = negative(points)
    edged = np.concatenate([[np.inf], heights, [np.inf]])
    peaks = np.flatnonzero((heights <= edged[:-2]) & (heights <= edged[2:]))
    optima: list[Any] = [
        minimize_scalar(
            negative, bounds=points[peak] + [-STEP, STEP], method="bounded", options={"xatol": 1e-10}
        )
        for peak in peaks[np.argsort(heights[peaks], kind="stable")[:PEAKS]]
    ]
    best = min(optima, key=lambda optimum: float(optimum.fun))
    beta = count / max(float(expit(best.x - logs) @ along) + rest, 1e-300)
    return -float(best.fun), beta * math.exp(best.x), beta
