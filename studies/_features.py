"""Images in a dense layer's weights: energies, and pictures stored as integers and drawn in rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import compatkit as ck
from compatkit.evaluation.metrics import make_metric
from compatkit.reports.pictures import image_grid

Picture = Sequence[Sequence[int]]
DEEPEST = 127


def energies(fit: ck.Fit, split: ck.Split, layer: str, top: int, *, subspace: str = "top") -> list[float]:
    """Return the share of each class's mean image in the span of a layer's first right singular vectors.

    Args:
        fit: Fit of a single network.
        split: Images; empty classes are omitted.
        layer: Path of the layer that takes them.
        top: Number of vectors.
        subspace: ``"active"`` for all vectors with a non-zero singular value.
    """
    (state,) = fit.tasks.values()
    measured = ck.measure(state, split, [make_metric("singular_features", top=top)], layers=[layer])
    table = measured.table("singular_features/energy")
    cells = [cell for (*_, which), cell in table if which == subspace]
    return [cell.value for cell in cells if cell.value is not None]


def singular(weight: Tensor, count: int) -> tuple[list[float], Tensor]:
    """Return all singular values of ``weight (out, in)``, and the first right singular vectors ``(count, in)``."""
    _, values, right = torch.linalg.svd(weight.double(), full_matrices=False)
    return values.tolist(), right[:count]


def to_pixels(values: Any, size: tuple[int, int]) -> list[list[int]]:
    """Return numbers as a picture of integers from -127 to 127, whose largest absolute value is positive.

    Args:
        values: One number per pixel; the overall sign is arbitrary, as for a singular vector.
        size: Height and width.
    """
    array = np.asarray(values, dtype=np.float64).reshape(size)
    largest = array.flat[np.abs(array).argmax()] or 1.0
    return np.rint(array / largest * DEEPEST).astype(int).tolist()


def rows(pictures: Mapping[str, Sequence[Picture]], titles: Sequence[str]) -> bytes:
    """Return a PNG with rows of pictures; zero is gray.

    Args:
        pictures: Pictures by the name of their row; shorter rows are filled with gray.
        titles: One per column.
    """
    longest = max(len(row) for row in pictures.values())
    arrays = {}
    for name, row in pictures.items():
        array = np.asarray(row)[:, None]
        arrays[name] = np.pad(array, [(0, longest - len(array)), (0, 0), (0, 0), (0, 0)])
    return image_grid(arrays, low=-DEEPEST, high=DEEPEST, titles=titles)
