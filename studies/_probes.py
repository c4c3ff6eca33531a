"""Probes: how well labels and factors of images follow from features, beside what guessing gives.

Bonheme and Grzes (2023), Sec. 4.3, classify the mean representation of a VAE with gradient boosting (scikit-learn's
defaults: 100 trees of depth 3, rate .1), one classifier a label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import ArrayLike

from compatkit.errors import DataError

Samples = tuple[ArrayLike, ArrayLike]
"""Features ``(n, p)`` and one value each ``(n,)``."""


def _gradient(seed: int) -> Any:
    from sklearn.ensemble import GradientBoostingClassifier

    return GradientBoostingClassifier(random_state=seed)


def _histogram(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=seed, early_stopping=False)  # type: ignore[arg-type]


def _logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, random_state=seed))


PROBES: Mapping[str, Callable[[int], Any]] = {
    "gradient": _gradient,
    "histogram": _histogram,
    "logistic": _logistic,
}
"""``gradient`` is the paper's; ``histogram`` bins the features and is much faster; ``logistic`` is linear."""


@attrs.frozen
class Probed:
    """What a probe reached on test samples.

    Attributes:
        accuracy: Share of right answers, from 0 to 1.
        chance: Share of the test samples that are of the most frequent training class: what a probe that sees no
            features reaches.
        classes: Count of classes in training.
    """

    accuracy: float
    chance: float
    classes: int


def probe(train: Samples, test: Samples, *, kind: str = "gradient", seed: int = 0) -> Probed:
    """Train a classifier on features, and test it.

    Args:
        train: Features ``(n, p)`` and labels ``(n,)``.
        test: The same of other images.
        kind: A key of ``PROBES``.
        seed: Of the classifier.

    Raises:
        DataError: There is one class only.
    """
    features, labels = map(np.asarray, train)
    others, truth = map(np.asarray, test)
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise DataError(
            f"A probe tells classes apart; all {len(labels)} training labels are {classes[0]}. Give samples of "
            "several classes."
        )
    answers = PROBES[kind](seed).fit(features.astype(np.float64), labels).predict(others.astype(np.float64))
    chance = float((truth == classes[counts.argmax()]).mean())
    return Probed(float((answers == truth).mean()), chance, len(classes))


def explained(train: Samples, test: Samples) -> float:
    """Return R2 of a factor on test samples, predicted linearly from features: 1 all of it, 0 none.

    It may be below 0, where the prediction is worse than the mean of the training values.

    Args:
        train: Features ``(n, p)`` and values ``(n,)``; values of a factor without an order, such as a shape, are given
            as ``(n, values)`` of 0 and 1, and the variance explained is that of all columns together.
        test: The same of other images.

    Raises:
        DataError: The factor does not vary.
    """
    features, others = (np.asarray(side[0], dtype=np.float64) for side in (train, test))
    mean, scale = features.mean(0), features.std(0)
    scale[scale == 0] = 1
    left, right = (
        np.column_stack([(side - mean) / scale, np.ones(len(side))]) for side in (features, others)
    )
    values, truth = (
        np.asarray(side[1]).reshape(len(side[1]), -1).astype(np.float64)  # type: ignore[arg-type]
        for side in (train, test)
    )
    total = np.square(truth - truth.mean(0)).sum()
    if not total > 0:
        raise DataError(
            "The factor does not vary over the test samples, so that there is nothing to explain."
        )
    coefficients = np.linalg.lstsq(left, values, rcond=None)[0]
    return float(1 - np.square(truth - right @ coefficients).sum() / total)
