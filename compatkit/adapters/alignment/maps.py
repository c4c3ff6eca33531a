"""Maps from one set of features to another, fitted in closed form to the moments of paired samples."""

from __future__ import annotations

import attrs
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from compatkit.adapters.alignment.moments import DEAD, PairedMoments
from compatkit.errors import DataError, UsageError


@attrs.frozen(eq=False)
class Affine:
    """A fitted map ``y = x weight + bias``.

    Attributes:
        weight: float64 ``(c, d)``.
        bias: float64 ``(d,)``.
        residual: Unexplained share of the variance of y on the samples of the fit; above 1 if the map is worse than
            the mean.
        samples: Number of samples.
    """

    weight: Tensor
    bias: Tensor
    residual: float
    samples: int

    @classmethod
    def of(cls, moments: PairedMoments, weight: Tensor, bias: Tensor) -> Affine:
        """Return a map with its residual on the samples of the moments.

        Args:
            moments: Moments of x, c channels, and y, d channels.
            weight: float64 ``(c, d)``.
            bias: float64 ``(d,)``.
        """
        spread = float(moments.yy.sum())
        off = moments.mean_y - moments.mean_x @ weight - bias
        left = spread - 2 * float((weight * moments.xy).sum())
        left += float(((moments.xx @ weight) * weight).sum()) + moments.samples * float(off @ off)
        return cls(weight, bias, max(0.0, left / spread) if spread > 0 else 0.0, moments.samples)


MIN_SINGULAR_SHARE = 1e-9
"""Singular values below this share of the largest are rounding errors; their directions are arbitrary."""


def procrustes(moments: PairedMoments, *, scaled: bool, turned: Tensor | None = None) -> Affine:
    """Return the rotation, or the map with orthonormal rows or columns, that brings x closest to y (Schoenemann 1966).

    With U S V' the thin singular value decomposition of Xc'Yc it is Q = U V', and z goes to ``s (z - mx) Q + my`` with
    the scale s = sum(S) / ||Xc||^2. Directions that the samples do not span, as with fewer samples than channels, have
    no best rotation: Q maps them to 0.

    Args:
        moments: Moments of the samples; any two widths.
        scaled: Whether to fit the scale too. It has no effect before batch normalization whose statistics are
            re-estimated; before stored statistics it shrinks the features and does harm.
        turned: Q, if it is known already.

    Raises:
        DataError: There are too few or constant samples.
    """
    weight = rotation(moments) if turned is None else turned
    if scaled:
        weight = weight * scale_of(moments, weight)
    return Affine.of(moments, weight, moments.mean_y - moments.mean_x @ weight)


def rotation(moments: PairedMoments) -> Tensor:
    """Return Q, float64 ``(c, d)``, of the rank of Xc'Yc.

    Raises:
        DataError: There is nothing to fit on.
    """
    moments.check()
    left, values, right = torch.linalg.svd(moments.xy, full_matrices=False)
    known = values > MIN_SINGULAR_SHARE * values[0]
    return left[:, known] @ right[known]


def scale_of(moments: PairedMoments, turned: Tensor) -> float:
    """Return s for a rotation Q: the sum of the singular values is the trace of Q' Xc'Yc.

    Args:
        moments: Of the samples.
        turned: Q, ``(c, d)``, from ``rotation`` of these moments.
    """
    return float((turned * moments.xy).sum()) / float(moments.xx.trace())


FEW_IMAGES = 100


def usual_strength(images: int) -> float:
    """Return the default strength for a number of images: 0.1 up to 100, 0.01 beyond.

    Between .001 and .1 accuracies differ by less than a point on digits and CIFAR halves; 1 costs up to 16 points
    where stored statistics follow.
    """
    return 0.1 if images <= FEW_IMAGES else 0.01


def ridge(moments: PairedMoments, strength: float, towards: Tensor | None = None) -> Affine:
    """Return ``y = x W + b`` with ``W = (C + lambda I)^-1 (R + lambda T)`` and ``b = my - mx W``.

    C = Xc'Xc / m, R = Xc'Yc / m and ``lambda = strength * trace(C) / c``, so that the strength is independent of the
    scale of the features. W is shrunk towards T: 0, or the Procrustes map.

    Args:
        moments: Moments of the samples.
        strength: Strength of the regularization; 0 is plain least squares.
        towards: T, float64 ``(c, d)``; None shrinks to 0.

    Raises:
        UsageError: The strength is below 0.
        DataError: There are too few or constant samples.
    """
    if not strength >= 0:
        raise UsageError(f"The strength of a regularization is a number from 0, got {strength!r}.")
    moments.check()
    width, samples = len(moments.xx), moments.samples
    if strength == 0 and samples <= width:
        raise DataError(
            f"{samples} samples do not determine a map of {width} channels without regularization. Take a strength "
            f"above 0 ({usual_strength(0)} is usual), or more images."
        )
    penalty = strength * float(moments.xx.trace()) / width
    regular = moments.xx.clone()
    regular.diagonal().add_(penalty)
    wanted = moments.xy if towards is None else moments.xy + penalty * towards
    lower, info = torch.linalg.cholesky_ex(regular)
    if int(info) or (strength == 0 and _near_singular(lower)):
        raise DataError(
            f"The features are not independent ({moments.dead()[0]} of {width} channels are dead), so that a fit with "
            f"strength {strength} has no solution. Take a larger strength ({usual_strength(0)} is usual)."
        )
    weight = torch.cholesky_solve(wanted, lower)
    return Affine.of(moments, weight, moments.mean_y - moments.mean_x @ weight)


def _near_singular(lower: Tensor) -> bool:
    """Return whether a pivot of a Cholesky factor is a rounding error."""
    pivots = lower.diagonal()
    return float(pivots.min()) <= 1e-7 * float(pivots.max())


def permutation(moments: PairedMoments) -> Affine:
    """Return the permutation of channels that maximizes correlation, as a map of zeros and ones without bias.

    It is found by linear assignment (Kuhn 1955) over the matrix of correlations, as in Li et
    al. (2016), "Convergent Learning: Do different neural networks learn the same representations?".
    Nearly constant channels have correlation 0.

    Raises:
        DataError: The widths differ, or there are too few or constant samples.
    """
    moments.check()
    width, target = moments.xy.shape
    if width != target:
        raise DataError(f"A permutation needs as many channels as it gives; here {width} come for {target}.")
    spread = [variances.sqrt() for variances in (moments.xx.diagonal(), moments.yy)]
    alive = [deviation > DEAD * deviation.max() for deviation in spread]
    scales = [torch.where(moving, by, torch.inf) for moving, by in zip(alive, spread, strict=True)]
    correlation = moments.xy / scales[0][:, None] / scales[1]
    rows, columns = linear_sum_assignment(correlation.numpy(), maximize=True)
    weight = torch.zeros_like(moments.xy)
    weight[torch.from_numpy(rows), torch.from_numpy(columns)] = 1
    return Affine.of(moments, weight, torch.zeros_like(moments.mean_y))
