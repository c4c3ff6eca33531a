"""Peaks: a bright disc in one of two corners, the class, beside a random scribble.

The data set of "Reviving Autoencoder Pretraining", figure 12 and appendix A.4, drawn again from its description: 110
gray images of 28 x 28 pixels, 55 per class, the last 5 of each for testing. The disc has the same position in all
images of a class and the scribble a random one, so the mean of a class is its disc.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from compatkit import DataSet, hookimpl
from compatkit.hooks import Register

compatkit_api = 1
Floats = NDArray[np.float32]
SIZE, TRAIN, TEST = 28, 50, 5
"""Pixels per side, and images of each class."""
DIAMETER = 5.5
"""Pixels; 24 of them are brighter than half, as in the published images."""
CENTERS = ((7.5, 6.5), (20.5, 21.5))
"""Row and column of the disc's center by class: over rows 5 to 10 and columns 4 to 9, and rotated by half a turn."""
CLASSES = ("top-left", "bottom-right")
MARGIN = 2.5
"""Pixels around the disc without control points of the scribble."""
_FINE = 4


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``peaks``."""
    register("peaks", lambda root=None, download=False: peaks())


def peaks(*, seed: int = 0) -> DataSet:
    """Return the peaks, 100 images for training and 10 for testing.

    Args:
        seed: Seed of all draws.
    """
    rng = np.random.default_rng(seed)
    images = [[_draw(rng, label) for _ in range(TRAIN + TEST)] for label in range(len(CLASSES))]
    splits = []
    for part in (slice(TRAIN), slice(TRAIN, None)):
        pixels = np.stack([image for of_class in images for image in of_class[part]])
        labels = np.repeat(np.arange(len(CLASSES)), len(pixels) // len(CLASSES))
        splits.append((pixels[..., None], labels))
    return DataSet.of("peaks", splits[0], splits[1], CLASSES)


def _draw(rng: np.random.Generator, label: int) -> NDArray[np.uint8]:
    """Draw one image ``(28, 28)``."""
    fine = np.maximum(_disc(label), _scribble(rng, label))
    pixels = fine.reshape(SIZE, _FINE, SIZE, _FINE).mean(axis=(1, 3)) * 255
    return (np.clip(pixels, 0, 255) + np.float32(0.5)).astype(np.uint8)


def _grid() -> tuple[Floats, Floats]:
    """Return the rows and columns of the centers of fine pixels, in pixels."""
    centers = ((np.arange(SIZE * _FINE) + 0.5) / _FINE - 0.5).astype(np.float32)
    return centers[:, None], centers[None, :]


def _disc(label: int) -> Floats:
    rows, columns = _grid()
    row, column = CENTERS[label]
    return (np.hypot(rows - row, columns - column) <= DIAMETER / 2).astype(np.float32)


def _scribble(rng: np.random.Generator, label: int) -> Floats:
    """Draw a chain of quadratic Bezier curves through three to six random points, open or closed."""
    points: list[Floats] = []
    count, width = int(rng.integers(3, 7)), float(rng.uniform(2.0, 3.0))
    while len(points) < count:
        point = rng.uniform(3, SIZE - 4, 2)
        if np.hypot(*(point - np.array(CENTERS[label]))) > DIAMETER / 2 + MARGIN:
            points.append(point.astype(np.float32))
    if rng.random() < 0.5:
        points.append(points[0])
    rows, columns = _grid()
    pixels = np.zeros((SIZE * _FINE, SIZE * _FINE), dtype=np.float32)
    for row, column in _curve(points):
        pixels[np.hypot(rows - row, columns - column) <= width / 2] = 1
    return pixels


def _curve(points: list[Floats]) -> Floats:
    """Return points along the chain: from midpoint to midpoint of neighbors, bent towards the point between."""
    ends = [points[0], *((a + b) / 2 for a, b in pairwise(points[1:-1])), points[-1]]
    along = np.linspace(0, 1, 40, dtype=np.float32)[:, None]
    pieces = [
        (1 - along) ** 2 * start + 2 * along * (1 - along) * towards + along**2 * end
        for start, towards, end in zip(ends[:-1], points[1:-1], ends[1:], strict=True)
    ]
    return np.concatenate(pieces)
