"""Sprites: white shapes on black, with exact factors: shape, scale, orientation, column, row.

Drawn after dSprites (Higgins et al. 2017), which has 3 shapes, 6 scales from .5 to 1, 40 orientations and 32 x 32
places at 64x64 pixels; ``dsprites`` reads that file. A pixel is white where at least half of its 2 x 2 sample points
lie in the shape, which is decided by formula.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from compatkit.data.dataset import DataSet
from compatkit.data.factored import Factored, counted
from compatkit.data.transforms import Images
from compatkit.errors import DataError

SHAPES = ("square", "ellipse", "heart")
REACH = 0.22
"""Largest distance of a point of a shape from its middle, at scale 1, over the side of the image."""
_FINE = 2


@lru_cache(maxsize=4)
def sprites(
    *, scales: int = 4, orientations: int = 8, positions: int = 8, size: int = 32, name: str = "sprites"
) -> Factored:
    """Return every combination of the factors once; equal calls share one result.

    Args:
        scales: Count of scales, evenly from .5 to 1.
        orientations: Count of angles, evenly from 0 below a full turn.
        positions: Columns, and rows, at which the middle can be.
        size: Pixels a side.
        name: Of the data sets.

    Raises:
        DataError: A count is below 1, or the image too small for a shape.
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
    made = np.zeros((len(grid), size, size), dtype=np.uint8)
    middles = np.linspace(REACH, 1 - REACH, positions) if positions > 1 else np.array([0.5])
    sizes = np.linspace(0.5, 1, scales) if scales > 1 else np.array([1.0])
    each = positions * positions  # the places of one shape, scale and angle follow each other
    for start in range(0, len(grid), each):
        shape, scale, turn = grid[start, :3]
        angle = 2 * np.pi * turn / orientations
        _draw(made[start : start + each], int(shape), float(sizes[scale]), angle, middles * size)
    factors = {factor: grid[:, place] for place, factor in enumerate(counts)}
    values = {factor: SHAPES if factor == "shape" else counted(count) for factor, count in counts.items()}
    return Factored(name, made[..., None], factors, values)


def labeled_sprites() -> DataSet:
    """Return the small sprites by shape: 6,144 images of 32x32 pixels."""
    return sprites().labeled("shape")


def inside(shape: int, across: NDArray[np.floating], up: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return whether points lie in a shape of scale 1 around 0; no point is farther than 1.

    Args:
        shape: Position in ``SHAPES``.
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


def _draw(into: Images, shape: int, scale: float, angle: float, middles: NDArray[np.float64]) -> None:
    """Draw one shape at every place, rows of ``into`` by column, then row; only around the place."""
    size = into.shape[1]
    reach = REACH * size
    window = int(np.ceil(2 * reach * scale)) + 2
    points = (np.arange(window * _FINE) + 0.5) / _FINE
    corners = np.clip(np.floor(middles - window / 2).astype(int), 0, max(0, size - window))
    for column, left in enumerate(corners):
        right = points - (middles[column] - left)
        for row, top in enumerate(corners):
            down = points - (middles[row] - top)
            u, v = right[None, :] / (reach * scale), -down[:, None] / (reach * scale)
            hit = inside(shape, np.cos(angle) * u + np.sin(angle) * v, np.cos(angle) * v - np.sin(angle) * u)
            share = hit.reshape(window, _FINE, window, _FINE).mean(axis=(1, 3))
            place = into[column * len(middles) + row]
            place[top : top + window, left : left + window] = (share >= 0.5)[
                : size - top, : size - left
            ] * np.uint8(255)
