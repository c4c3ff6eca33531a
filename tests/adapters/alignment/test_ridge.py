"""Ridge regression from streamed sums against least squares on all samples at once, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from paired import least_squares, samples, streamed

from compatkit.adapters.alignment.maps import Affine, procrustes, ridge, usual_strength
from compatkit.adapters.alignment.moments import PairedMoments
from compatkit.errors import DataError, UsageError

STRENGTHS = (1e-9, 0.01, 0.1, 1.0)


def close(affine: Affine, weight: object, bias: object, by: float = 1e-8) -> None:
    np.testing.assert_allclose(affine.weight, weight, atol=by)  # type: ignore[arg-type]
    np.testing.assert_allclose(affine.bias, bias, atol=by)  # type: ignore[arg-type]


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("pieces", [1, 7, 400])
def test_the_fit_is_the_ridge_solution_however_the_samples_come(strength: float, pieces: int) -> None:
    x, y = samples()
    result = ridge(streamed(x, y, pieces), strength)
    close(result, *least_squares(x, y, strength))
    error = y - x @ result.weight.numpy() - result.bias.numpy()
    left = (error**2).sum() / ((y - y.mean(axis=0)) ** 2).sum()
    assert result.residual == pytest.approx(left, abs=1e-10)
    assert result.samples == 400


def test_large_means_cost_no_digits() -> None:
    x, y = samples(mean=1e6)
    weight, bias = least_squares(x, y, 0.01)
    result = ridge(streamed(x, y), 0.01)
    np.testing.assert_allclose(result.weight, weight, atol=1e-8)
    np.testing.assert_allclose(x @ result.weight.numpy() + result.bias.numpy(), x @ weight + bias, atol=1e-5)


def test_the_strength_is_free_of_the_scale_of_the_features() -> None:
    x, y = samples()
    plain, scaled = ridge(streamed(x, y), 0.1), ridge(streamed(1000 * x, y), 0.1)
    np.testing.assert_allclose(scaled.weight * 1000, plain.weight, atol=1e-8)


def test_dead_and_equal_channels_and_few_samples_have_a_solution() -> None:
    x, y = samples(3)
    x = np.concatenate([x, np.zeros((3, 2)), x[:, :1]], axis=1)
    moments = streamed(x, y, 1)
    result = ridge(moments, 0.1)
    close(result, *least_squares(x, y, 0.1))
    assert float(result.weight[5:7].abs().max()) == 0
    assert moments.dead() == (2, 0)


def test_shrunk_to_a_map_it_is_that_map_where_the_strength_is_large() -> None:
    x, y = samples()
    moments = streamed(x, y)
    towards = procrustes(moments, scaled=True).weight
    close_to = ridge(moments, 1e9, towards)
    np.testing.assert_allclose(close_to.weight, towards, atol=1e-8)
    close(ridge(moments, 1e-12, towards), *least_squares(x, y, 0), by=1e-8)
    rows = np.vstack(
        [x - x.mean(0), np.sqrt(len(x) * (lam := 0.1 * np.trace(np.cov(x.T, bias=True)) / 5)) * np.eye(5)]
    )
    goal = np.vstack([y - y.mean(0), np.sqrt(len(x) * lam) * towards.numpy()])
    expected = np.linalg.lstsq(rows, goal, rcond=None)[0]
    np.testing.assert_allclose(ridge(moments, 0.1, towards).weight, expected, atol=1e-8)


def test_a_target_that_never_changes_is_its_mean() -> None:
    x, _ = samples()
    result = ridge(streamed(x, np.full((400, 2), 3.0)), 0.1)
    close(result, np.zeros((5, 2)), np.full(2, 3.0))
    assert result.residual == 0


def test_without_regularization_it_is_least_squares_or_refused() -> None:
    x, y = samples()
    close(ridge(streamed(x, y), 0), *least_squares(x, y, 0))
    with pytest.raises(DataError, match=r"5 samples do not determine a map of 5 channels.*strength above 0"):
        ridge(streamed(x[:5], y[:5]), 0)
    dead = np.concatenate([x, np.zeros((400, 1))], axis=1)
    with pytest.raises(DataError, match=r"1 of 6 channels are dead.*larger strength"):
        ridge(streamed(dead, y), 0)
    with pytest.raises(UsageError, match="a number from 0, got -1"):
        ridge(streamed(x, y), -1)


def test_the_usual_strength() -> None:
    assert (usual_strength(10), usual_strength(100), usual_strength(101)) == (0.1, 0.1, 0.01)


def test_what_cannot_be_fitted_is_refused() -> None:
    ones = torch.ones(4, 2)
    with pytest.raises(DataError, match="at least two samples, got 0"):
        ridge(PairedMoments.empty(2, 2), 0.1)
    with pytest.raises(DataError, match="do not change"):
        ridge(streamed(ones.numpy(), np.arange(8.0).reshape(4, 2)), 0.1)
