"""Gaussian vectors as images: covariance in their own units, given eigenvectors, refusals, and a network on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small import quick

import compatkit as ck
from compatkit.errors import DataError
from compatkit_plugins.gaussian import gaussian, gaussian_normalization

EIGENVALUES = np.linspace(0.1, 3.0, 30)


def vectors_of(split: ck.Split, eigenvalues: Any) -> np.ndarray:
    """Return the vectors that a network sees, ``(n, d)``."""
    stated = gaussian_normalization(eigenvalues)
    return (split.read(range(len(split)))[:, 0, :, 0] / 255 - stated["mean"]) / stated["std"]


def test_covariance_is_the_given_one_and_the_mean_zero() -> None:
    count = 20_000
    result = vectors_of(gaussian(EIGENVALUES, train=count).train, EIGENVALUES)
    covariance = np.cov(result.T)
    # the deviation of an entry is sqrt((s_ii s_jj + s_ij^2) / n)
    spread = np.sqrt((np.outer(EIGENVALUES, EIGENVALUES) + np.diag(EIGENVALUES) ** 2) / count)
    assert (np.abs(covariance - np.diag(EIGENVALUES)) / spread).max() < 5
    assert (np.abs(result.mean(0)) / np.sqrt(EIGENVALUES / count)).max() < 5


def test_eigenvectors_are_the_given_ones() -> None:
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]
    values = [16.0, 8.0, 4.0, 2.0, 1.0]
    result = vectors_of(gaussian(values, train=20_000, vectors=basis).train, values)
    _, own = np.linalg.eigh(np.cov(result.T))
    assert (np.abs(np.sum(own[:, ::-1] * basis, 0)) > 0.99).all()


def test_labels_are_even_and_splits_differ() -> None:
    data = gaussian([1.0, 2.0], train=1000, test=1000, classes=4, seed=3)
    assert data.classes == ("0", "1", "2", "3") and min(data.train.counts) > 200
    assert data.train.digest != data.test.digest
    again = gaussian([1.0, 2.0], train=1000, test=1000, classes=4, seed=3)
    assert data.train.digest == again.train.digest


def test_a_dense_network_trains_on_them() -> None:
    data = gaussian([1.0, 2.0, 3.0], train=64, test=16, classes=2)
    task = ck.Task(
        "vectors",
        data,
        "fully_connected",
        "blocks.0",
        kwargs={"widths": [8], "img_size": [1, 3]},
        normalize=gaussian_normalization([1.0, 2.0, 3.0]),
    )
    assert quick(steps=2).fit([task]).tasks["vectors"].feature_shape == (2, 8)


@pytest.mark.parametrize("eigenvalues", [[], [0.0, 0.0], [1.0, -1.0], [1.0, np.nan], [[1.0]]])
def test_eigenvalues_of_no_covariance_are_refused(eigenvalues: Any) -> None:
    with pytest.raises(DataError):
        gaussian(eigenvalues, train=10)


@pytest.mark.parametrize("vectors", [np.ones((2, 2)), np.eye(3), np.eye(3)[:2]])
def test_vectors_that_are_not_orthonormal_are_refused(vectors: Any) -> None:
    with pytest.raises(DataError):
        gaussian([1.0, 2.0], train=10, vectors=vectors)
