"""Sprites: white shapes on black, with exact factors: shape, scale, orientation, column, row.

Drawn after dSprites (Higgins et al. 2017), which has 3 shapes, 6 scales from .5 to 1, 40 orientations and 32 x 32
positions at 64x64 pixels; ``dsprites`` reads that file. A pixel is white where at least half of its 2 x 2 sample points
lie in the shape, which is decided by formula.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.hooks import Register

from ..factored import Factored, numbered

compatkit_api = 1
SHAPES = ("square", "ellipse", "heart")
REACH = 0.22
"""Largest distance of a point of a shape from its center at scale 1, as a fraction of the image's side."""
_FINE = 2


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``sprites``: 6,144 images of 32x32 pixels, labeled by shape."""
    register("sprites", lambda root=None, download=False: sprites().labeled("shape"))


@lru_cache(maxsize=4)
def sprites(*, scales: int = 4, orientations: int = 8, positions: int = 8, size: int = 32) -> Factored:
    """Return every combination of the factors once; equal calls share one result.

    Args:
        scales: Number of scales, evenly from .5 to 1.
        orientations: Number of angles, evenly from 0 below a full turn.
        positions: Number of columns, and of rows, for the center.
        size: Pixels per side.

    Raises:
        DataError: A number is below 1, or the image is too small for a shape.
    """
    if min(scales, orientations, positions) < 1 or size < 8:
        raise DataError(
            f"sprites expects counts from 1 and at least 8 pixels; got {scales} scales, {orientations} orientations, "
            f"{positions} positions and {size} pixels."
        )
    counts = {
        **{"shape": len(SHAPES), "scale": scales, "orientation": orientations},
        **{"x": positions, "y": positions},
    }
    grid = np.array(list(product(*map(range, counts.values()))), dtype=np.int64)
    images = np.zeros((len(grid), size, size), dtype=np.uint8)
    centers = np.linspace(REACH, 1 - REACH, positions) if positions > 1 else np.array([0.5])
    sizes = np.linspace(0.5, 1, scales) if scales > 1 else np.array([1.0])
    step = positions * positions  # all positions of one shape, scale and angle are neighbors
    for start in range(0, len(grid), step):
        shape, scale, turn = grid[start, :3]
        angle = 2 * np.pi * turn / orientations
        _draw(images[start : start + step], int(shape), float(sizes[scale]), angle, centers * size)
    factors = {factor: grid[:, column] for column, factor in enumerate(counts)}
    values = {factor: SHAPES if factor == "shape" else numbered(count) for factor, count in counts.items()}
    return Factored("sprites", images[..., None], factors, values)


def inside(shape: int, across: NDArray[np.floating], up: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return whether points lie in a shape of scale 1 around 0; no point is farther than 1.

    Args:
        shape: Index in ``SHAPES``.
        across: Coordinate to the right.
        up: Coordinate upwards, of the same shape.
    """
    if shape == 0:
        return np.maximum(abs(across), abs(up)) <= np.sqrt(0.5)
    if shape == 1:
        return across**2 + (2 * up) ** 2 <= 1
    a, b = 1.36 * across, 1.36 * up + 0.1  # the farthest point of the curve lies at 1.36
    round_ = a**2 + b**2 - 1
    return round_**3 <= a**2 * b**3


def _draw(
    images: NDArray[np.uint8], shape: int, scale: float, angle: float, centers: NDArray[np.float64]
) -> None:
    """Draw one shape at every position, images by column, then row; only in a window around the center."""
    size = images.shape[1]
    reach = REACH * size
    window = int(np.ceil(2 * reach * scale)) + 2
    points = (np.arange(window * _FINE) + 0.5) / _FINE
    corners = np.clip(np.floor(centers - window / 2).astype(int), 0, max(0, size - window))
    for column, left in enumerate(corners):
        right = points - (centers[column] - left)
        for row, top in enumerate(corners):
            down = points - (centers[row] - top)
            u, v = right[None, :] / (reach * scale), -down[:, None] / (reach * scale)
            hit = inside(shape, np.cos(angle) * u + np.sin(angle) * v, np.cos(angle) * v - np.sin(angle) * u)
            share = hit.reshape(window, _FINE, window, _FINE).mean(axis=(1, 3))
            image = images[column * len(centers) + row]
            image[top : top + window, left : left + window] = (share >= 0.5)[
                : size - top, : size - left
            ] * np.uint8(255)
