"""Probes and explained variance: known answers, chance, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

import compatkit as ck
from compatkit.errors import DataError, UnknownName


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of which the first tells the class, and the third nothing."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, count)
    return np.stack([labels + 0.1 * draw.standard_normal(count), draw.standard_normal(count)], axis=1), labels


@pytest.mark.parametrize("kind", ["gradient", "histogram", "logistic"])
def test_a_class_that_features_tell_is_found_and_others_are_not(kind: str) -> None:
    train, test = drawn(150, 0), drawn(100, 1)
    assert ck.probe(train, test, kind=kind).accuracy > 0.95
    blind = ck.probe((train[0][:, 1:], train[1]), (test[0][:, 1:], test[1]), kind=kind)
    assert abs(blind.accuracy - 1 / 3) < 0.15 and blind.classes == 3


def test_chance_is_the_share_of_the_class_that_is_most_frequent_in_training() -> None:
    features = np.arange(10.0)[:, None]
    train, test = np.array([0] * 6 + [1] * 4), np.array([1] * 7 + [0] * 3)
    assert ck.probe((features, train), (features, test), kind="logistic").chance == pytest.approx(0.3)


def test_explained_variance_is_that_of_least_squares() -> None:
    draw = np.random.default_rng(0)
    features = draw.standard_normal((400, 3))
    values = 2 * features[:, 0] - features[:, 1] + 5 + draw.standard_normal(400)
    train, test = (features[:200], values[:200]), (features[200:], values[200:])
    slope = np.linalg.lstsq(np.column_stack([train[0], np.ones(200)]), train[1], rcond=None)[0]
    left = test[1] - np.column_stack([test[0], np.ones(200)]) @ slope
    wanted = 1 - left @ left / np.square(test[1] - test[1].mean()).sum()
    assert ck.explained(train, test) == pytest.approx(wanted, rel=1e-9)
    assert ck.explained((features[:200, :2], values[:200]), (features[200:, :2], values[200:])) > 0.7
    assert ck.explained((features[:200, 2:], values[:200]), test=(features[200:, 2:], values[200:])) < 0.05


def test_a_factor_without_an_order_is_given_as_columns() -> None:
    features, labels = drawn(300, 0)
    columns = (labels[:, None] == np.arange(3)).astype(float)
    both = ck.explained((features[:150], columns[:150]), (features[150:], columns[150:]))
    # the middle class is no linear function of the feature: a third of the variance is missing, and more
    assert 0.3 < both < 0.75
    whole = np.column_stack([features, columns])
    assert ck.explained((whole[:150], columns[:150]), (whole[150:], columns[150:])) == pytest.approx(1)


@pytest.mark.parametrize(
    ("features", "values"),
    [
        (np.zeros((3, 2)), np.arange(4)),
        (np.zeros(3), np.arange(3)),
        (np.array([[np.nan], [0.0]]), np.arange(2)),
        (np.zeros((1, 2)), np.arange(1)),
    ],
)
def test_shapes_that_do_not_go_together_are_refused(features: np.ndarray, values: np.ndarray) -> None:
    for call in (ck.probe, ck.explained):
        with pytest.raises(DataError) as caught:
            call((features, values), drawn(5, 0))
        assert caught.value.subject == "train"


def test_other_widths_one_class_a_constant_and_unknown_probes_are_refused() -> None:
    features, labels = drawn(20, 0)
    with pytest.raises(DataError):
        ck.probe((features, labels), (features[:, :1], labels))
    with pytest.raises(DataError):
        ck.probe((features, labels * 0), (features, labels))
    with pytest.raises(DataError):
        ck.probe((features, labels + 0.5), (features, labels))
    with pytest.raises(DataError):
        ck.explained((features, labels), (features, labels * 0))
    with pytest.raises(UnknownName) as caught:
        ck.probe((features, labels), (features, labels), kind="forest")
    assert caught.value.subject == "forest"
