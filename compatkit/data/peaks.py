"""Peaks: a bright disc in one of two corners beside a random scribble; what a network should find in them is known.

The data set of "Reviving Autoencoder Pretraining", figure 12 and appendix A.4, drawn anew from its
description: 110 gray images of 28 x 28 pixels, 55 a class, the last 5 of each for testing. The disc is always at the
same place of its class, the scribble never, so that the mean of a class is its disc.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from compatkit.data.dataset import DataSet
from compatkit.data.transforms import Floats, Images, quantized

SIZE, TRAIN, TEST = 28, 50, 5
"""Pixels a side, and images of each class."""
DIAMETER = 5.5
"""In pixels: 24 of them are brighter than half, as in the published images."""
CENTERS = ((7.5, 6.5), (20.5, 21.5))
"""Middle of the disc by class, row and column: over rows 5 to 10 and columns 4 to 9, and turned by half a turn."""
CLASSES = ("top-left", "bottom-right")
MARGIN = 2.5
"""Pixels around the disc that no end of a scribble comes into."""
_FINE = 4


def peaks(*, seed: int = 0, name: str = "peaks") -> DataSet:
    """Return the peaks, 100 images for training and 10 for testing.

    Args:
        seed: Equal seeds give equal images.
        name: Of the data set.
    """
    draw = np.random.default_rng(seed)
    drawn = [[_image(draw, label) for _ in range(TRAIN + TEST)] for label in range(len(CLASSES))]
    splits = []
    for place in (slice(TRAIN), slice(TRAIN, None)):
        images = np.stack([image for of_class in drawn for image in of_class[place]])
        labels = np.repeat(np.arange(len(CLASSES)), len(images) // len(CLASSES))
        splits.append((images[..., None], labels))
    return DataSet.of(name, splits[0], splits[1], CLASSES)


def _image(draw: np.random.Generator, label: int) -> Images:
    """Draw one image ``(28, 28)``."""
    both = np.maximum(_disc(label), _scribble(draw, label))
    return quantized(both.reshape(SIZE, _FINE, SIZE, _FINE).mean(axis=(1, 3)) * 255)


def _grid() -> tuple[Floats, Floats]:
    """Return the rows and columns of the fine pixels' middles, in pixels."""
    middles = ((np.arange(SIZE * _FINE) + 0.5) / _FINE - 0.5).astype(np.float32)
    return middles[:, None], middles[None, :]


def _disc(label: int) -> Floats:
    rows, columns = _grid()
    row, column = CENTERS[label]
    return (np.hypot(rows - row, columns - column) <= DIAMETER / 2).astype(np.float32)


def _scribble(draw: np.random.Generator, label: int) -> Floats:
    """Draw a chain of quadratic Bezier curves through three to six random points, open or closed."""
    points: list[Floats] = []
    count, width = int(draw.integers(3, 7)), float(draw.uniform(2.0, 3.0))
    while len(points) < count:
        point = draw.uniform(3, SIZE - 4, 2)
        if np.hypot(*(point - np.array(CENTERS[label]))) > DIAMETER / 2 + MARGIN:
            points.append(point.astype(np.float32))
    if draw.random() < 0.5:
        points.append(points[0])
    rows, columns = _grid()
    drawn = np.zeros((SIZE * _FINE, SIZE * _FINE), dtype=np.float32)
    for row, column in _curve(points):
        drawn[np.hypot(rows - row, columns - column) <= width / 2] = 1
    return drawn


def _curve(points: list[Floats]) -> Floats:
    """Return points along the chain: from middle to middle of neighbors, drawn towards the point between."""
    ends = [points[0], *((a + b) / 2 for a, b in pairwise(points[1:-1])), points[-1]]
    along = np.linspace(0, 1, 40, dtype=np.float32)[:, None]
    pieces = [
        (1 - along) ** 2 * start + 2 * along * (1 - along) * towards + along**2 * end
        for start, towards, end in zip(ends[:-1], points[1:-1], ends[1:], strict=True)
    ]
    return np.concatenate(pieces)
