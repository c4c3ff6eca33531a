"""Ridge regression from streamed sums against least squares on all samples at once, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from compatkit.errors import DataError
from compatkit.evaluation.ridge import Affine, NormalEquations, usual_strength

STRENGTHS = (1e-9, 0.01, 0.1, 1.0)


def samples(count: int = 400, mean: float = 0.0) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, 5)) * np.array([3.0, 1.0, 0.3, 1.0, 0.1]) + mean
    return x, x[:, :3] @ draw.normal(size=(3, 4)) + 2 + 0.1 * draw.normal(size=(count, 4))


def streamed(x: Any, y: Any, pieces: int = 7) -> NormalEquations:
    equations = NormalEquations()
    for mine, theirs in zip(np.array_split(x, pieces), np.array_split(y, pieces), strict=True):
        equations.add(torch.from_numpy(mine), torch.from_numpy(theirs))
    return equations


def least_squares(x: Any, y: Any, strength: float) -> tuple[Any, Any]:
    """Ridge as plain least squares on centred samples with one more row of sqrt(m lambda) for each channel."""
    mx, my = x.mean(axis=0), y.mean(axis=0)
    xc, yc = x - mx, y - my
    penalty = strength * np.trace(xc.T @ xc / len(x)) / x.shape[1]
    rows = np.vstack([xc, np.sqrt(len(x) * penalty) * np.eye(x.shape[1])])
    weight = np.linalg.lstsq(rows, np.vstack([yc, np.zeros((x.shape[1], y.shape[1]))]), rcond=None)[0]
    return weight, my - mx @ weight


def close(found: Affine, weight: Any, bias: Any, by: float = 1e-8) -> None:
    np.testing.assert_allclose(found.weight, weight, atol=by)
    np.testing.assert_allclose(found.bias, bias, atol=by)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("pieces", [1, 7, 400])
def test_the_fit_is_the_ridge_solution_however_the_samples_come(strength: float, pieces: int) -> None:
    x, y = samples()
    found = streamed(x, y, pieces).solve(strength)
    close(found, *least_squares(x, y, strength))
    assert found.samples == 400


@pytest.mark.parametrize("strength", STRENGTHS)
def test_the_residual_is_the_share_of_the_variance_that_is_left(strength: float) -> None:
    x, y = samples()
    found = streamed(x, y).solve(strength)
    error = y - x @ found.weight.numpy() - found.bias.numpy()
    assert found.residual == pytest.approx((error**2).sum() / ((y - y.mean(axis=0)) ** 2).sum(), abs=1e-10)


def test_large_means_cost_no_digits() -> None:
    x, y = samples(mean=1e6)
    weight, bias = least_squares(x, y, 0.01)
    found = streamed(x, y).solve(0.01)
    np.testing.assert_allclose(found.weight, weight, atol=1e-8)
    np.testing.assert_allclose(x @ found.weight.numpy() + found.bias.numpy(), x @ weight + bias, atol=1e-5)


def test_the_strength_is_free_of_the_scale_of_the_features() -> None:
    x, y = samples()
    plain, scaled = streamed(x, y).solve(0.1), streamed(1000 * x, y).solve(0.1)
    np.testing.assert_allclose(scaled.weight * 1000, plain.weight, atol=1e-8)


def test_dead_and_equal_channels_and_few_samples_have_a_solution() -> None:
    x, y = samples(3)
    x = np.concatenate([x, np.zeros((3, 2)), x[:, :1]], axis=1)
    found = streamed(x, y, 1).solve(0.1)
    close(found, *least_squares(x, y, 0.1))
    assert float(found.weight[5:7].abs().max()) == 0


def test_an_exact_map_is_found_again() -> None:
    x, _ = samples()
    weight, bias = np.random.default_rng(1).normal(size=(5, 5)), np.arange(5.0)
    found = streamed(x, x @ weight + bias).solve(1e-10)
    close(found, weight, bias, by=1e-6)
    assert found.residual < 1e-12


def test_a_target_that_never_changes_is_its_mean() -> None:
    x, _ = samples()
    found = streamed(x, np.full((400, 2), 3.0)).solve(0.1)
    close(found, np.zeros((5, 2)), np.full(2, 3.0))
    assert found.residual == 0


def test_half_precision_features_are_summed_in_float64() -> None:
    x, y = (torch.from_numpy(one).to(torch.bfloat16) for one in samples())
    equations = NormalEquations()
    equations.add(x, y)
    close(equations.solve(0.1), *least_squares(x.double().numpy(), y.double().numpy(), 0.1))


def test_the_usual_strength() -> None:
    assert (usual_strength(10), usual_strength(100), usual_strength(101)) == (0.1, 0.1, 0.01)


def test_what_cannot_be_fitted_is_refused() -> None:
    ones = torch.ones(4, 2)
    with pytest.raises(DataError, match="at least two samples, got 0"):
        NormalEquations().solve(0.1)
    with pytest.raises(DataError, match="4 samples come with 3 targets"):
        NormalEquations().add(ones, ones[:3])
    with pytest.raises(DataError, match="not finite"):
        NormalEquations().add(ones, ones * float("nan"))
    equations = NormalEquations()
    equations.add(ones, torch.rand(4, 2))
    with pytest.raises(DataError, match="do not change"):
        equations.solve(0.1)
