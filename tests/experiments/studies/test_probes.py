"""Probes and explained variance: known answers, chance, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from compatkit.errors import DataError
from compatkit_studies._probes import explained, probe


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of which the first tells the class, and the third nothing."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, count)
    return np.stack([labels + 0.1 * draw.standard_normal(count), draw.standard_normal(count)], axis=1), labels


@pytest.mark.parametrize("kind", ["gradient", "histogram", "logistic"])
def test_a_class_that_features_tell_is_found_and_others_are_not(kind: str) -> None:
    train, test = drawn(150, 0), drawn(100, 1)
    assert probe(train, test, kind=kind).accuracy > 0.95
    blind = probe((train[0][:, 1:], train[1]), (test[0][:, 1:], test[1]), kind=kind)
    assert abs(blind.accuracy - 1 / 3) < 0.15 and blind.classes == 3


def test_chance_is_the_share_of_the_class_that_is_most_frequent_in_training() -> None:
    features = np.arange(10.0)[:, None]
    train, test = np.array([0] * 6 + [1] * 4), np.array([1] * 7 + [0] * 3)
    assert probe((features, train), (features, test), kind="logistic").chance == pytest.approx(0.3)


def test_explained_variance_is_that_of_least_squares() -> None:
    draw = np.random.default_rng(0)
    features = draw.standard_normal((400, 3))
    values = 2 * features[:, 0] - features[:, 1] + 5 + draw.standard_normal(400)
    train, test = (features[:200], values[:200]), (features[200:], values[200:])
    slope = np.linalg.lstsq(np.column_stack([train[0], np.ones(200)]), train[1], rcond=None)[0]
    left = test[1] - np.column_stack([test[0], np.ones(200)]) @ slope
    wanted = 1 - left @ left / np.square(test[1] - test[1].mean()).sum()
    assert explained(train, test) == pytest.approx(wanted, rel=1e-9)
    assert explained((features[:200, :2], values[:200]), (features[200:, :2], values[200:])) > 0.7
    assert explained((features[:200, 2:], values[:200]), test=(features[200:, 2:], values[200:])) < 0.05


def test_a_factor_without_an_order_is_given_as_columns() -> None:
    features, labels = drawn(300, 0)
    columns = (labels[:, None] == np.arange(3)).astype(float)
    both = explained((features[:150], columns[:150]), (features[150:], columns[150:]))
    # the middle class is no linear function of the feature: a third of the variance is missing, and more
    assert 0.3 < both < 0.75
    whole = np.column_stack([features, columns])
    assert explained((whole[:150], columns[:150]), (whole[150:], columns[150:])) == pytest.approx(1)


def test_one_class_and_a_constant_are_refused() -> None:
    features, labels = drawn(20, 0)
    with pytest.raises(DataError):
        probe((features, labels * 0), (features, labels))
    with pytest.raises(DataError):
        explained((features, labels), (features, labels * 0))
