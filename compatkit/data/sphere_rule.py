"""Twelve bits on a sphere: a rule that no rotation changes, exact and small enough to count everything.

Shwartz-Ziv and Tishby (2017) place twelve binary inputs evenly on a sphere and label the 4,096 patterns by a threshold
on their power spectrum in spherical harmonics. The places are the corners of an icosahedron, so the spectrum depends on
three counts only: ones (k), pairs of ones that share an edge (e), and pairs of ones that are opposite (a). The label is

    1 where k >= 8, 0 where k <= 4, else whether e - a / 2 > T[k]   with T = 6.25, 5.75, 7.25 for k = 5, 6, 7,

which gives the labels of the published file for all 4,096 patterns, up to the order of the corners. 2,118 are ones
(H(Y) = .99916 bits); the rule k >= 6 alone is right in .875 of them.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from compatkit.data.dataset import DataSet

CORNERS = 12
HEIGHT, WIDTH = 3, 4
"""Of a pattern as an image."""
TRAIN = 3277
"""Patterns for training, four fifths; the other 819 are for testing."""
CLASSES = ("no", "yes")
_THRESHOLDS = {5: 6.25, 6: 5.75, 7: 7.25}


def sphere_rule(*, swapped: bool = False, seed: int = 0, name: str = "sphere-rule") -> DataSet:
    """Return all 4,096 patterns as gray images of 3 x 4 pixels, 0 or 255, in two splits.

    Args:
        swapped: Whether the labels are exchanged: the second task of transfer studies, of the same images.
        seed: Draws which patterns are for testing.
        name: Of the data set.
    """
    bits, labels = patterns(), rule()
    order = np.random.default_rng(seed).permutation(len(bits))
    images = (bits * 255).astype(np.uint8).reshape(-1, HEIGHT, WIDTH, 1)
    given = 1 - labels if swapped else labels
    splits = [(images[part], given[part]) for part in (np.sort(order[:TRAIN]), np.sort(order[TRAIN:]))]
    return DataSet.of(name, splits[0], splits[1], CLASSES)


def swapped_sphere_rule() -> DataSet:
    """Return the same patterns in the same splits with the labels exchanged."""
    return sphere_rule(swapped=True, name="sphere-rule-swapped")


def patterns() -> NDArray[np.int64]:
    """Return all patterns of twelve bits, ``(4096, 12)``, in counting order."""
    return np.array(list(product((0, 1), repeat=CORNERS)), dtype=np.int64)


def counts() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return for every pattern its ones, its edges and its opposite pairs, each ``(4096,)``."""
    bits, (edges, opposite) = patterns(), _pairs()
    return bits.sum(1), _pairs_of(bits, edges), _pairs_of(bits, opposite)


def rule() -> NDArray[np.int64]:
    """Return the label of every pattern, ``(4096,)``."""
    ones, edges, opposite = counts()
    labels = (ones >= 8).astype(np.int64)
    for count, threshold in _THRESHOLDS.items():
        labels |= (ones == count) & (edges - opposite / 2 > threshold)
    return labels


def _pairs() -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which corners of the icosahedron share an edge, and which are opposite, each ``(12, 12)``."""
    golden = (1 + np.sqrt(5)) / 2
    flat = [(0.0, one, other * golden) for one in (1, -1) for other in (1, -1)]
    corners = np.array([np.roll(corner, turn) for turn in range(3) for corner in flat])
    cosines = corners @ corners.T / (1 + golden**2)
    return np.isclose(cosines, 1 / np.sqrt(5)), np.isclose(cosines, -1)


def _pairs_of(bits: NDArray[np.int64], among: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.einsum("ni,ij,nj->n", bits, among.astype(np.int64), bits) // 2
