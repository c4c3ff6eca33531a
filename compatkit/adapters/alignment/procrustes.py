"""Orthogonal Procrustes: the rotation, or the map with orthonormal rows or columns, that brings x closest to y.

Schoenemann (1966). With U S V' the thin singular value decomposition of Xc'Yc it is Q = U V', and
z goes to ``s (z - mx) Q + my``; the scale s = sum(S) / ||Xc||^2. Directions that the samples do not span, as with fewer
samples than channels, have no best turn: Q leaves them out, so that what is seen of them later becomes 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from compatkit.adapters.alignment.affine import Affine
from compatkit.adapters.alignment.moments import PairedMoments

LEAST = 1e-9
"""A singular value below this share of the largest is rounding; its directions are of the decomposition's making."""


def procrustes(moments: PairedMoments, *, scaled: bool, turned: Tensor | None = None) -> Affine:
    """Return the map.

    Args:
        moments: Of the samples; any two widths.
        scaled: Whether the scale is fitted too. Where statistics of batch normalisation follow that are estimated
            anew it changes nothing; before stored ones it shrinks the features and does harm.
        turned: Q, where it is known already.

    Raises:
        DataError: There is nothing to fit on.
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
    known = values > LEAST * values[0]
    return left[:, known] @ right[known]


def scale_of(moments: PairedMoments, turned: Tensor) -> float:
    """Return s for a rotation Q: the sum of the singular values is the trace of Q' Xc'Yc."""
    return float((turned * moments.xy).sum()) / float(moments.xx.trace())
