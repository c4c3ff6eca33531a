"""Data with known eigenvectors: centered Gaussian vectors of a given covariance, as images of one row.

Maennel et al. 2020, "What Do Neural Networks Learn When Trained With Random Labels?", Prop. 1 and Sec. 2.3. A vector
of d numbers is a gray image of 1 x d pixels of 8 bits. Values from ``-reach`` to ``reach`` become 0 to 255, where
``reach`` is ``CLIP`` standard deviations of the largest eigenvalue; values beyond are clipped. Rounding adds a
variance of ``(2 reach / 255)^2 / 12`` to every direction: 8e-5 of the largest eigenvalue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compatkit import DataSet
from compatkit.errors import DataError

CLIP = 4.0


def gaussian(
    eigenvalues: ArrayLike,
    *,
    train: int,
    test: int = 1000,
    seed: int = 0,
    vectors: ArrayLike | None = None,
    classes: int = 10,
    name: str = "gaussian",
) -> DataSet:
    """Return vectors drawn from ``N(0, V diag(eigenvalues) V')``, with random labels.

    Args:
        eigenvalues: Variances along the eigenvectors, ``(d,)``, none below 0, not all 0.
        train: Number of training vectors.
        test: Number of test vectors.
        seed: Draws vectors and labels.
        vectors: Orthonormal eigenvectors as the columns of V, ``(d, d)``; None for the axes.
        classes: Number of classes, drawn uniformly and independently of the vectors.
        name: Name of the data set.

    Raises:
        DataError: Eigenvalues are no variances, or the vectors not orthonormal.
    """
    variances = _variances(eigenvalues)
    basis = np.eye(len(variances)) if vectors is None else np.asarray(vectors, dtype=np.float64)
    if basis.shape != (len(variances),) * 2 or not np.allclose(
        basis.T @ basis, np.eye(len(variances)), atol=1e-6
    ):
        raise DataError(
            f"gaussian expects {len(variances)} orthonormal eigenvectors as the columns of a square matrix; got an "
            f"array {basis.shape}. Take those of numpy.linalg.eigh or numpy.linalg.qr."
        )
    rng = np.random.default_rng(seed)
    splits = []
    for count in (train, test):
        rows = rng.standard_normal((count, len(variances))) * np.sqrt(variances) @ basis.T
        pixels = np.clip(np.rint((rows / _reach(variances) + 1) * 127.5), 0, 255).astype(np.uint8)
        splits.append((pixels[:, None, :, None], rng.integers(classes, size=count)))
    names = [f"{number:0{len(str(classes - 1))}d}" for number in range(classes)]
    return DataSet.of(name, splits[0], splits[1], names)


def gaussian_normalization(eigenvalues: ArrayLike) -> dict[str, Any]:
    """Return the ``Task.normalize`` that gives a network the vectors of ``gaussian`` in their own units.

    Raises:
        DataError: See ``gaussian``.
    """
    return {"mean": 0.5, "std": 0.5 / _reach(_variances(eigenvalues))}


def _variances(eigenvalues: ArrayLike) -> NDArray[np.float64]:
    variances = np.asarray(eigenvalues, dtype=np.float64)
    if (
        variances.ndim != 1
        or not variances.size
        or not np.isfinite(variances).all()
        or variances.min() < 0
        or not variances.max()
    ):
        raise DataError(
            f"gaussian expects eigenvalues of a covariance: finite, none below 0, not all 0; got {eigenvalues!r:.100}."
        )
    return variances


def _reach(variances: NDArray[np.float64]) -> float:
    return CLIP * float(np.sqrt(variances.max()))
