"""Twelve bits on a sphere, labeled by a rule that no rotation changes; small enough to compute everything exactly.

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

from compatkit import DataSet, hookimpl
from compatkit.hooks import Register

compatkit_api = 1
CORNERS = 12
HEIGHT, WIDTH = 3, 4
"""Pixels of a pattern as an image."""
TRAIN = 3277
"""Patterns for training, four fifths; the other 819 are for testing."""
CLASSES = ("no", "yes")
_THRESHOLDS = {5: 6.25, 6: 5.75, 7: 7.25}


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``sphere-rule``, and ``sphere-rule-swapped`` with exchanged labels."""
    register("sphere-rule", lambda root=None, download=False: sphere_rule())
    register("sphere-rule-swapped", lambda root=None, download=False: sphere_rule(swapped=True))


def sphere_rule(*, swapped: bool = False, seed: int = 0) -> DataSet:
    """Return all 4,096 patterns as gray images of 3 x 4 pixels, 0 or 255, in two splits.

    Args:
        swapped: Whether the labels are exchanged, for the second task of transfer studies.
        seed: Draws which patterns are for testing.
    """
    bits, labels = patterns(), rule()
    order = np.random.default_rng(seed).permutation(len(bits))
    images = (bits * 255).astype(np.uint8).reshape(-1, HEIGHT, WIDTH, 1)
    labels = 1 - labels if swapped else labels
    splits = [(images[part], labels[part]) for part in (np.sort(order[:TRAIN]), np.sort(order[TRAIN:]))]
    return DataSet.of("sphere-rule-swapped" if swapped else "sphere-rule", splits[0], splits[1], CLASSES)


def patterns() -> NDArray[np.int64]:
    """Return all patterns of twelve bits, ``(4096, 12)``, in counting order."""
    return np.array(list(product((0, 1), repeat=CORNERS)), dtype=np.int64)


def counts() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of ones, edges and opposite pairs of every pattern, each ``(4096,)``."""
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
    flat = [(0.0, a, b * golden) for a in (1, -1) for b in (1, -1)]
    corners = np.array([np.roll(corner, turn) for turn in range(3) for corner in flat])
    cosines = corners @ corners.T / (1 + golden**2)
    return np.isclose(cosines, 1 / np.sqrt(5)), np.isclose(cosines, -1)


def _pairs_of(bits: NDArray[np.int64], among: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.einsum("ni,ij,nj->n", bits, among.astype(np.int64), bits) // 2
