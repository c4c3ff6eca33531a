"""Probes: how well labels and factors of images follow from features, compared with chance.

Bonheme and Grzes (2023), Sec. 4.3, classify the mean representation of a VAE with gradient boosting (scikit-learn's
defaults: 100 trees of depth 3, rate .1), one classifier per label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from compatkit.errors import DataError, UnknownName, suggest
from compatkit.foundation.arguments import checks_arguments

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
    """Result of a probe on test samples.

    Attributes:
        accuracy: Share of right answers, from 0 to 1.
        chance: Share of the test samples that are of the most frequent training class: what a probe that sees no
            features reaches.
        classes: Count of classes in training.
    """

    accuracy: float
    chance: float
    classes: int


@checks_arguments
def probe(train: Samples, test: Samples, *, kind: str = "gradient", seed: int = 0) -> Probed:
    """Train a classifier on features, and test it.

    Args:
        train: Features ``(n, p)`` and labels ``(n,)``.
        test: The same of other images.
        kind: A key of ``PROBES``.
        seed: Seed of the classifier.

    Raises:
        UnknownName: There is no such probe.
        DataError: Shapes do not go together, features are not finite, labels are fractions, or there is one class only.
    """
    if kind not in PROBES:
        raise UnknownName(
            f"Unknown probe {kind!r:.60}.{suggest(str(kind), PROBES)} There are {', '.join(PROBES)}.",
            subject=kind,
        )
    features, labels = _checked(train, "train")
    others, truth = _checked(test, "test", features.shape[1])
    if labels.ndim != 1 or (labels.dtype.kind == "f" and (labels % 1 != 0).any()):
        raise DataError(
            f"train: expected a class for each sample; got {labels.dtype} of shape {labels.shape}. Use ck.explained "
            "for values that are not classes.",
            subject="train",
        )
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise DataError(f"All {len(labels)} training labels are {classes[0]}; a probe needs several classes.")
    answers = PROBES[kind](seed).fit(features, labels).predict(others)
    chance = float((truth == classes[counts.argmax()]).mean())
    return Probed(float((answers == truth).mean()), chance, len(classes))


@checks_arguments
def explained(train: Samples, test: Samples) -> float:
    """Return R2 of a factor on test samples, predicted linearly from features: 1 all of it, 0 none.

    It may be below 0, where the prediction is worse than the mean of the training values.

    Args:
        train: Features ``(n, p)`` and values ``(n,)``; values of a factor without an order, such as a shape, are given
            as ``(n, values)`` of 0 and 1, and the variance explained is that of all columns together.
        test: The same of other images.

    Raises:
        DataError: Shapes do not go together, values are not finite, or the factor does not vary.
    """
    features, values = _checked(train, "train")
    others, truth = _checked(test, "test", features.shape[1])
    mean, scale = features.mean(0), features.std(0)
    scale[scale == 0] = 1
    sides = features, others
    left, right = (np.column_stack([(side - mean) / scale, np.ones(len(side))]) for side in sides)
    values, truth = (column.reshape(len(column), -1).astype(np.float64) for column in (values, truth))
    total = np.square(truth - truth.mean(0)).sum()
    if not total > 0:
        raise DataError("The factor does not vary over the test samples.")
    coefficients = np.linalg.lstsq(left, values, rcond=None)[0]
    return float(1 - np.square(truth - right @ coefficients).sum() / total)


def _checked(
    samples: Samples, name: str, width: int | None = None
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    features, values = np.asarray(samples[0], dtype=np.float64), np.asarray(samples[1])
    fits = features.ndim == 2 and len(features) == len(values) > 1
    fits = fits and features.shape[1] == (width or features.shape[1])
    if not fits or not np.isfinite(features).all():
        raise DataError(
            f"{name}: expected finite features (n, p) and a value for each of at least two samples; got "
            f"{features.shape} and {values.shape}{'' if width is None else f', with p = {width}'}.",
            subject=name,
        )
    return features, values
