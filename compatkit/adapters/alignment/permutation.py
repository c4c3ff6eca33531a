"""Permutation of channels: each goes where it correlates, found by linear assignment.

Li et al. (2016), "Convergent Learning: Do different neural networks learn the same representations?"; the assignment
is the one of Kuhn (1955) over the matrix of correlations.
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment

from compatkit.adapters.alignment.affine import Affine
from compatkit.adapters.alignment.moments import DEAD, PairedMoments
from compatkit.errors import DataError


def permutation(moments: PairedMoments) -> Affine:
    """Return the permutation as a map whose weight holds zeros and ones, and no bias.

    Channels that hardly change correlate with nothing and go where there is room.

    Raises:
        DataError: The widths differ, or there is nothing to fit on.
    """
    moments.check()
    width, target = moments.xy.shape
    if width != target:
        raise DataError(f"A permutation needs as many channels as it gives; here {width} come for {target}.")
    spread = [one.sqrt() for one in (moments.xx.diagonal(), moments.yy)]
    alive = [one > DEAD * one.max() for one in spread]
    scales = [torch.where(one, by, torch.inf) for one, by in zip(alive, spread, strict=True)]
    correlation = moments.xy / scales[0][:, None] / scales[1]
    rows, columns = linear_sum_assignment(correlation.numpy(), maximize=True)
    weight = torch.zeros_like(moments.xy)
    weight[torch.from_numpy(rows), torch.from_numpy(columns)] = 1
    return Affine.of(moments, weight, torch.zeros_like(moments.mean_y))
