"""Procrustes and permutation: known maps are found again, and their defining properties hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from paired import samples, streamed

from compatkit.adapters.alignment.maps import permutation, procrustes
from compatkit.errors import DataError


def orthogonal(size: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(3).normal(size=(size, size)))[0]


def test_a_rotation_with_a_scale_and_a_shift_is_found_again() -> None:
    x, _ = samples()
    turn = orthogonal(5)
    moments = streamed(x, 0.5 * x @ turn + np.arange(5.0))
    result = procrustes(moments, scaled=True)
    np.testing.assert_allclose(result.weight, 0.5 * turn, atol=1e-10)
    np.testing.assert_allclose(result.bias, np.arange(5.0), atol=1e-10)
    assert result.residual < 1e-12
    plain = procrustes(moments, scaled=False)
    np.testing.assert_allclose(plain.weight, turn, atol=1e-10)
    assert plain.residual == pytest.approx(1, abs=1e-9)  # twice as long: as far off as the mean


@pytest.mark.parametrize("width", [3, 5])
def test_between_unequal_widths_the_map_has_orthonormal_rows_or_columns(width: int) -> None:
    x, y = samples()
    weight = procrustes(streamed(x[:, :width], y), scaled=False).weight
    product = weight @ weight.T if width < 4 else weight.T @ weight
    np.testing.assert_allclose(product, np.eye(min(width, 4)), atol=1e-10)


def test_no_rotation_is_closer() -> None:
    x, y = samples()
    result = procrustes(streamed(x[:, :4], y), scaled=False)

    def off(weight: np.ndarray) -> float:
        return float((((x[:, :4] - x[:, :4].mean(0)) @ weight - y + y.mean(0)) ** 2).sum())

    draw = np.random.default_rng(5)
    others = [np.linalg.qr(result.weight.numpy() + 0.1 * draw.normal(size=(4, 4)))[0] for _ in range(50)]
    signs = [other * np.sign(np.diag(other.T @ result.weight.numpy())) for other in others]
    assert all(off(result.weight.numpy()) <= off(sign) for sign in signs)


def few(count: int = 10, width: int = 84) -> tuple[np.ndarray, np.ndarray]:
    """Return fewer samples than channels, and what a rotation makes of them with some noise."""
    draw = np.random.default_rng(7)
    x = draw.normal(size=(count, width)) + 3
    return x, x @ orthogonal(width) + 0.1 * draw.normal(size=(count, width))


def test_what_few_samples_do_not_span_is_left_out() -> None:
    x, y = few()
    result = procrustes(streamed(x, y, pieces=3), scaled=False).weight.numpy()
    # the polar factor from the eigenvectors of A A', without a singular value decomposition
    product = (x - x.mean(0)).T @ (y - y.mean(0))
    squares, vectors = np.linalg.eigh(product @ product.T)
    spanned = squares > 1e-12 * squares.max()
    assert spanned.sum() == 9  # ten samples about their mean
    top = vectors[:, spanned]
    np.testing.assert_allclose(result, top / np.sqrt(squares[spanned]) @ top.T @ product, atol=1e-9)
    other = np.random.default_rng(8).normal(size=84)
    other -= np.linalg.lstsq((x - x.mean(0)).T, other, rcond=None)[0] @ (x - x.mean(0))
    assert np.abs(other @ result).max() < 1e-9


def test_the_map_of_few_samples_does_not_depend_on_how_they_come() -> None:
    x, y = few()
    result = procrustes(streamed(x, y), scaled=False)
    order = np.random.default_rng(9).permutation(10)
    same = procrustes(streamed(x[order], y[order], pieces=2), scaled=False)
    np.testing.assert_allclose(same.weight, result.weight, atol=1e-6)
    # channels turned on either side: the map turns with them, and says the same of every image
    first, last = (np.linalg.qr(np.random.default_rng(seed).normal(size=(84, 84)))[0] for seed in (10, 11))
    turned = procrustes(streamed(x @ first, y @ last), scaled=False)
    np.testing.assert_allclose(first @ turned.weight.numpy() @ last.T, result.weight, atol=1e-6)


@pytest.mark.parametrize("width", [3, 5])
def test_of_full_rank_nothing_is_left_out(width: int) -> None:
    x, y = samples()
    moments = streamed(x[:, :width], y)
    left, _, right = np.linalg.svd(moments.xy.numpy(), full_matrices=False)
    result = procrustes(moments, scaled=False).weight
    np.testing.assert_allclose(result, left @ right, rtol=0, atol=1e-12)


def test_a_target_that_does_not_change_gets_its_mean() -> None:
    x, _ = samples()
    result = procrustes(streamed(x, np.full((400, 4), 2.5)), scaled=True)
    assert not result.weight.any() and result.bias.tolist() == [2.5] * 4


def test_a_permutation_is_found_again_whatever_the_scales() -> None:
    x, _ = samples()
    order = [3, 0, 4, 1, 2]
    result = permutation(streamed(x, x[:, order] * np.array([1, 100, 0.01, 5, 1])))
    np.testing.assert_array_equal(x @ result.weight.numpy(), x[:, order])
    assert float(result.bias.abs().max()) == 0


def test_the_assignment_is_the_best_of_all() -> None:
    x, y = samples()
    x = x[:, :4]
    weight = permutation(streamed(x, y)).weight.numpy()
    table = np.corrcoef(x.T, y.T)[:4, 4:]
    best = max(
        sum(table[at, to] for at, to in enumerate(order)) for order in itertools.permutations(range(4))
    )
    assert (weight * table).sum() == pytest.approx(best)


def test_dead_channels_take_no_place_of_a_living_one() -> None:
    x, _ = samples()
    x = np.concatenate([np.full((400, 1), 7.0), x], axis=1)
    order = [5, 4, 3, 2, 1, 0]
    result = permutation(streamed(x, x[:, order])).weight
    assert torch.equal(result, torch.eye(6, dtype=torch.float64)[:, order])


def test_what_cannot_be_permuted_is_refused() -> None:
    x, y = samples()
    with pytest.raises(DataError, match="here 5 come for 4"):
        permutation(streamed(x, y))
    for fit in (permutation, lambda moments: procrustes(moments, scaled=True)):
        with pytest.raises(DataError, match="do not change"):
            fit(streamed(np.ones((9, 4)), y[:9]))
