"""Scores before training: evidence computed directly, formulas by hand, controls, arrays, refusals."""

from __future__ import annotations

from typing import Any

import mpmath as mp  # comes with torch
import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.evaluation.metrics import Metric, TableCell
from compatkit.measuring.arrays import on_arrays
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics.h_score import HScore
from compatkit_plugins.metrics.leep import LEEP
from compatkit_plugins.metrics.logme import LogME, evidence
from compatkit_plugins.metrics.nce import NCE


def drawn(count: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of which the first knows the class, and labels."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, count)
    features = draw.normal(size=(count, width))
    features[:, 0] += 2.0 * labels
    return features, labels


def score(metric: Metric, values: np.ndarray, labels: np.ndarray, which: str = "as given") -> TableCell:
    role = "logits" if isinstance(metric, LEEP | NCE) else "outputs"
    (table,) = on_arrays([metric], {role: values, "labels": labels})
    return next(cell for names, cell in table if names[1] == which)  # type: ignore[union-attr]


def direct(features: np.ndarray, column: np.ndarray, alpha: float, beta: float) -> float:
    """Log density of the labels, the weights integrated out: y ~ N(0, I / beta + F F' / alpha)."""
    covariance = np.eye(len(column)) / beta + features @ features.T / alpha
    return float(multivariate_normal(np.zeros(len(column)), covariance).logpdf(column))


@pytest.mark.parametrize(("count", "width"), [(60, 8), (40, 64), (30, 30)])
def test_logme_is_the_evidence_computed_directly_and_its_maximum(count: int, width: int) -> None:
    features, labels = drawn(count, width)
    left, sizes, _ = np.linalg.svd(features, full_matrices=False)
    values = []
    for index in range(3):
        column = (labels == index).astype(float)
        value, alpha, beta = evidence(left, sizes, column)
        assert value == pytest.approx(direct(features, column, alpha, beta), abs=1e-7)
        best = minimize(
            lambda logs, column=column: -direct(features, column, *np.exp(logs)),
            [0.0, 0.0],
            method="Nelder-Mead",
            options={"xatol": 1e-6, "fatol": 1e-10},
        )
        assert value == pytest.approx(-best.fun, abs=1e-6)
        values.append(value / count)
    assert score(LogME(), features, labels).value == pytest.approx(np.mean(values), abs=1e-9)


def test_logme_of_wide_features_is_not_that_of_public_code() -> None:
    # The authors' fixed point counts log alpha d times in the prior, and k times in the determinant.
    features, labels = drawn(40, 64)
    left, sizes, _ = np.linalg.svd(features, full_matrices=False)
    column = (labels == 0).astype(float)
    value, alpha, _ = evidence(left, sizes, column)
    public = value + (64 - 40) / 2 * np.log(alpha)
    assert abs(public - value) > 1


def exact(features: np.ndarray, labels: np.ndarray) -> float:
    """LogME with 50 digits or 300: the largest evidence on a fine grid of log t, mean over classes, by example."""
    with mp.workdps(300 if np.abs(features).max() > 1e30 else 50):
        matrix = mp.matrix([[mp.mpf(float(value)) for value in row] for row in features])
        wide = matrix.cols > matrix.rows
        values, vectors = mp.eigsy(matrix * matrix.T if wide else matrix.T * matrix)
        squares, count, logs = list(values), len(labels), []
        for entry in np.unique(labels):
            column = mp.matrix((labels == entry).astype(int).tolist())
            turned = vectors.T * (column if wide else matrix.T * column)
            along = [turned[i] ** 2 / (1 if wide else squares[i]) for i in range(len(squares))]
            rest = 0 if wide else (column.T * column)[0] - sum(along)

            def height(log: Any, along: Any = along, rest: Any = rest) -> Any:
                t = mp.e**log
                shares = [t / (t + square) for square in squares]
                error = sum(z * share for z, share in zip(along, shares, strict=True)) + rest
                return (count * mp.log(count / (2 * mp.pi * error)) - count + sum(map(mp.log, shares))) / 2

            low, high = (float(mp.log(end)) for end in (min(squares), max(squares)))
            grid = np.arange(low - 45, high + 45, 0.5)
            best = max(grid, key=lambda log: height(mp.mpf(log)))
            fine = np.linspace(best - 0.5, best + 0.5, 201)
            logs.append(max(height(mp.mpf(log)) for log in fine) / count)
        return float(mp.fsum(logs) / len(logs))


@pytest.mark.parametrize(
    ("sizes", "width"),
    [
        *(([size], width) for size in (1e3, 1e7, 1e8, 1e12, 1e-9) for width in (4, 14)),
        ([1e20, 1e-20], 14),
        ([1e60, 1.0, 1e-60], 4),
    ],
    ids=str,
)
def test_logme_finds_the_largest_evidence_whatever_the_sizes_of_features(
    sizes: list[float], width: int
) -> None:
    features, labels = drawn(12, width)
    features[:, : len(sizes)] *= sizes
    assert score(LogME(), features, labels).value == pytest.approx(exact(features, labels), abs=2e-5)


@pytest.mark.parametrize("offset", [1e3, 1e8])
def test_logme_of_features_with_a_large_mean(offset: float) -> None:
    features, labels = drawn(18, 4)
    assert score(LogME(), features + offset, labels).value == pytest.approx(
        exact(features + offset, labels), abs=2e-5
    )


def test_logme_of_features_that_repeat_is_that_of_one_with_their_square() -> None:
    features, labels = drawn(40, 3)
    twice = np.concatenate([features, features], 1)
    wanted = score(LogME(), features * 2**0.5, labels).value
    assert score(LogME(), twice, labels).value == pytest.approx(wanted, abs=1e-9)


def test_features_that_explain_a_class_exactly_have_no_logme() -> None:
    labels = drawn(40, 3)[1]
    cell = score(LogME(), np.eye(3)[labels], labels)
    assert cell.status == "undefined" and cell.reason


def test_useful_features_score_above_permuted_labels_and_above_useless_ones() -> None:
    features, labels = drawn(200, 12)
    noise = np.random.default_rng(9).normal(size=features.shape)
    for metric in (LogME(), HScore()):
        inputs, permuted = (
            score(metric, features, labels, which).value for which in ("as given", "permuted")
        )
        assert inputs > permuted  # type: ignore[operator]
        assert inputs > score(metric, noise, labels).value  # type: ignore[operator]
    logits = np.eye(3)[labels] * 4.0
    for metric in (LEEP(), NCE()):
        assert score(metric, logits, labels).value > score(metric, noise, labels, "permuted").value  # type: ignore[operator]


def test_leep_and_nce_by_hand() -> None:
    # Two source classes; the third is never predicted, and has no mass at all.
    logits = np.log(np.array([[0.5, 0.5, 0], [1, 0, 0], [0, 1, 0], [0.25, 0.75, 0]]) + 1e-300)
    labels = np.array([0, 0, 1, 1])
    # P(y, z) = [[1.5, .5], [.25, 1.75]] / 4; P(y | z) = [[6/7, 2/9], [1/7, 7/9]].
    predicted = [0.5 * 6 / 7 + 0.5 * 2 / 9, 6 / 7, 7 / 9, 0.25 * 1 / 7 + 0.75 * 7 / 9]
    assert score(LEEP(), logits, labels).value == pytest.approx(np.log(predicted).mean())
    # Predicted classes 0, 0, 1, 1 know the label; 0, 1, 1, 1 leave a third of three unsure.
    assert score(NCE(), logits + np.array([1e-3, 0, 0]), labels).value == pytest.approx(0, abs=1e-12)
    other = np.eye(3)[[0, 1, 1, 1]]
    expected = 0.25 * 0 + 0.25 * np.log(1 / 3) + 0.5 * np.log(2 / 3)
    assert score(NCE(), other, labels).value == pytest.approx(expected)


def test_h_score_equals_its_definition_and_shrinks_where_features_outnumber_examples() -> None:
    from sklearn.covariance import ledoit_wolf

    for count, width in ((300, 5), (20, 60)):
        features, labels = drawn(count, width)
        centered = features - features.mean(0)
        covariance, share = ledoit_wolf(centered, assume_centered=True)
        means = np.stack([centered[labels == label].mean(0) for label in labels])
        expected = (1 - share) * np.trace(np.linalg.solve(covariance, means.T @ means / count))
        assert score(HScore(), features, labels).value == pytest.approx(expected)
    assert 0 < expected < 2  # at most the classes less one; without shrinkage it would be 2 for any labels


def whitened(deviations: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Separated classes whose features have these deviations along orthogonal directions."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 4, 400)
    features = np.eye(4)[labels][:, :3] * 5 + draw.normal(size=(400, 3))
    left = np.linalg.svd(features - features.mean(0), full_matrices=False)[0]
    return left * 20 * np.array(deviations), labels


@pytest.mark.parametrize("apart", [0.0, 1e-9, 1e-3, 0.01, 0.05, 0.07, 0.08, 0.1, 0.3, 0.9])
def test_h_score_of_nearly_isotropic_features_is_not_small_and_ok(apart: float) -> None:
    features, labels = whitened([1, 1 - apart, 1 + apart])
    cell = score(HScore(), features, labels)
    assert cell.value is not None
    assert (
        cell.value > 1 if cell.status == "ok" else cell.status == "degenerate" and "shrinkage" in cell.reason
    )


def plain_h_score(features: np.ndarray, labels: np.ndarray) -> float:
    """The definition of Bao et al. (2019): tr(C^-1 B), with the pseudo-inverse."""
    centered = features - features.mean(0)
    means = np.stack([centered[labels == label].mean(0) for label in labels])
    return float(np.trace(np.linalg.pinv(centered.T @ centered) @ means.T @ means))


def test_the_plain_h_score_is_its_definition_whatever_the_sizes_of_features() -> None:
    features, labels = drawn(200, 6)
    wanted = plain_h_score(features, labels)
    for sizes in (1.0, 1e200, np.array([1e9, 1, 1e-9, 1, 1, 1]), np.array([1e150, 1, 1e-150, 1, 1, 1])):
        cell = score(HScore(shrinkage="none"), features * sizes, labels)
        assert cell.value == pytest.approx(wanted, rel=1e-9) and cell.status == "ok"
    beside = np.concatenate([features, np.zeros((200, 1)), features[:, :2]], 1)  # dead and repeated features
    assert score(HScore(shrinkage="none"), beside, labels).value == pytest.approx(wanted, rel=1e-9)
    isotropic = whitened([1, 0.99, 1.01])
    assert score(HScore(shrinkage="none"), *isotropic).value == pytest.approx(plain_h_score(*isotropic))


@pytest.mark.parametrize("times", [1, 5])
def test_the_plain_h_score_of_more_features_than_different_examples_is_degenerate(times: int) -> None:
    features, labels = (np.repeat(item, times, 0) for item in drawn(20, 30))
    cell = score(HScore(shrinkage="none"), features, labels)
    assert cell.status == "degenerate" and cell.value == pytest.approx(2)


def test_maps_are_averaged_over_positions_and_tokens_over_their_number() -> None:
    features, labels = drawn(50, 4)
    maps = torch.from_numpy(features)[:, :, None, None] + torch.tensor([[-1.0, 1.0]])
    tokens = torch.from_numpy(features)[:, None] + torch.tensor([[-1.0], [1.0]])
    wanted = score(LogME(), features, labels).value
    for item in (maps, tokens):
        assert score(LogME(), item, labels).value == pytest.approx(wanted)  # type: ignore[arg-type]
        assert score(LogME(pool="flatten"), item, labels).value != pytest.approx(wanted)  # type: ignore[arg-type]


def test_they_conform_and_are_installed() -> None:
    for factory in (LogME, HScore, LEEP, NCE):
        assert_metric(factory)
        assert type(ck.metrics.make_metric(factory.name)).__name__ == factory.__name__


def test_features_that_explain_every_label_have_the_evidence_of_their_limit() -> None:
    # Fewer examples than features and no pattern: the best t is near 0, where rounding must not count as a rest.
    draw = np.random.default_rng(1)
    features, labels = draw.normal(size=(30, 80)), np.arange(30) % 3
    features[:, :3] += 3 * np.eye(3)[labels]
    left, sizes, _ = np.linalg.svd(features, full_matrices=False)
    column, t = (labels == 0) * 1.0, 1e-13 * sizes[0] ** 2
    rest = float((((left.T @ column) ** 2) * t / (sizes**2 + t)).sum())
    limit = (30 * np.log(30 / (2 * np.pi * rest)) - 30 + np.log(t / (sizes**2 + t)).sum()) / 2
    assert evidence(left, sizes, column)[0] >= limit - 1e-9


def test_scores_do_not_depend_on_the_scale_of_features_or_the_numbers_of_classes() -> None:
    features, labels = drawn(60, 5)
    for metric in (LogME(), HScore()):
        wanted = score(metric, features, labels).value
        for scale in (1e200, 1e-200):
            assert score(metric, features * scale, labels).value == pytest.approx(wanted)
    for metric in (LogME(), HScore(), LEEP(), NCE()):
        wanted = score(metric, features, labels).value
        assert score(metric, features, labels * 10**8).value == pytest.approx(wanted)


def test_h_score_of_one_feature_is_its_share_of_variance_between_classes() -> None:
    features, labels = drawn(60, 1)
    centered = features[:, 0] - features.mean()
    between = np.mean([centered[labels == label].mean() ** 2 for label in labels])
    assert score(HScore(), features, labels).value == pytest.approx(between / centered.var())


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: (x, np.zeros_like(y)),  # one class
        lambda x, y: (np.full_like(x, 0.1), y),  # variance of rounding alone
        lambda x, y: (x[:2], np.arange(2)),  # a singular covariance
        lambda x, y: (x, y - 1),  # a label below 0
        lambda x, y: (np.zeros_like(x), y),  # no variance
    ],
)
def test_what_has_no_score_is_undefined_with_its_reason(change: Any) -> None:
    features, labels = change(*drawn(30, 4))
    cell = score(HScore(), features, labels)
    assert cell.status == "undefined" and cell.reason


@pytest.mark.parametrize(
    ("settings", "subject"),
    [
        ({"permuted": 0}, "permuted"),
        ({"pool": "max"}, "pool"),
        ({"permuted": True}, "permuted"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_settings(settings: dict[str, Any], subject: str) -> None:
    with pytest.raises(UsageError) as caught:
        LogME(**settings)
    assert caught.value.subject == subject
