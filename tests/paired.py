"""Samples, their streamed moments, and ridge regression on all samples at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from compatkit.adapters.alignment.moments import PairedMoments


def samples(count: int = 400, mean: float = 0.0) -> tuple[Any, Any]:
    """Return x of 5 channels and y of 4, which follows from three of them."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, 5)) * np.array([3.0, 1.0, 0.3, 1.0, 0.1]) + mean
    return x, x[:, :3] @ draw.normal(size=(3, 4)) + 2 + 0.1 * draw.normal(size=(count, 4))


def streamed(x: Any, y: Any, pieces: int = 7) -> PairedMoments:
    """Return the moments of samples that came in so many pieces."""
    moments = PairedMoments.empty(x.shape[1], y.shape[1])
    for mine, theirs in zip(np.array_split(x, pieces), np.array_split(y, pieces), strict=True):
        moments.add(torch.from_numpy(mine), torch.from_numpy(theirs))
    return moments


def least_squares(x: Any, y: Any, strength: float) -> tuple[Any, Any]:
    """Ridge as plain least squares on centered samples with one more row of sqrt(m lambda) for each channel."""
    mx, my = x.mean(axis=0), y.mean(axis=0)
    xc, yc = x - mx, y - my
    penalty = strength * np.trace(xc.T @ xc / len(x)) / x.shape[1]
    rows = np.vstack([xc, np.sqrt(len(x) * penalty) * np.eye(x.shape[1])])
    weight = np.linalg.lstsq(rows, np.vstack([yc, np.zeros((x.shape[1], y.shape[1]))]), rcond=None)[0]
    return weight, my - mx @ weight
