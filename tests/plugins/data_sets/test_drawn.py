"""Peaks, and bits on a sphere."""

from __future__ import annotations

import numpy as np

from compatkit.data import load
from compatkit_plugins.data_sets.peaks import peaks
from compatkit_plugins.data_sets.sphere_rule import counts, patterns, rule


def test_peaks_have_a_disc_at_one_of_two_places_and_a_scribble_anywhere():
    data = load("peaks")
    assert data.classes == ("top-left", "bottom-right")
    assert (data.train.counts, data.test.counts, data.train.size) == ((50, 50), (5, 5), (28, 28))
    images, labels = data.train.images[..., 0], data.train.labels
    bright = [(images[labels == label] > 127).mean(0) for label in (0, 1)]
    for label, share in enumerate(bright):
        rows, columns = np.nonzero(share > 0.9)
        assert len(rows) == 24 and (images[labels == label][:, rows, columns] > 127).all()
        low, left = (5, 4) if label == 0 else (18, 19)
        assert (rows.min(), rows.max(), columns.min(), columns.max()) == (low, low + 5, left, left + 5)
        elsewhere = share.copy()
        elsewhere[low : low + 6, left : left + 6] = 0
        assert elsewhere.max() < 0.6 and np.median(elsewhere) < 0.1
    assert 80 < (images > 127).sum((1, 2)).mean() < 110
    assert (images.min(), images.max()) == (0, 255)


def test_peaks_repeat_with_the_seed():
    assert peaks().train.digest == peaks().train.digest != peaks(seed=1).train.digest


def test_the_sphere_rule_is_the_published_one():
    """Counts that the published labels have; see the module's docstring."""
    ones, edges, opposite = counts()
    labels = rule()
    assert labels.sum() == 2118 and ((ones >= 6) == labels).mean() == 0.875
    share = labels.mean()
    assert round(-(share * np.log2(share) + (1 - share) * np.log2(1 - share)), 5) == 0.99916
    assert len(set(zip(ones.tolist(), edges.tolist(), opposite.tolist(), strict=True))) == 64
    # An icosahedron has 30 edges and 6 axes, and every corner 5 neighbors.
    assert (edges[-1], opposite[-1]) == (30, 6)
    assert {int(e) for e, k in zip(edges, ones, strict=True) if k == 11} == {25}


def test_the_label_is_a_threshold_on_a_linear_function_of_the_power_spectrum():
    ones, edges, opposite = counts()
    score = -6 + 18.3333 * ones / 12 - 22.4028 * (ones / 12) ** 2 + 12.2 * edges / 30 - 1.16667 * opposite / 6
    assert ((score > 0) == rule()).all()


def test_the_sphere_rule_does_not_change_when_the_bits_are_turned():
    """A third of a turn about the corner of an octant maps (x, y, z) to (y, z, x): corners i to (i + 4) mod 12."""
    bits, labels = patterns(), rule()
    turned = np.roll(bits, 4, axis=1)
    place = turned @ (1 << np.arange(11, -1, -1))
    assert (labels[place] == labels).all() and not (bits[place] == bits).all()


def test_the_sphere_rule_comes_in_two_splits_and_with_labels_exchanged():
    data, swapped = load("sphere-rule"), load("sphere-rule-swapped")
    both = np.concatenate([data.train.images, data.test.images]).reshape(4096, 12) // 255
    assert sorted(map(bytes, both.astype(np.uint8))) == sorted(map(bytes, patterns().astype(np.uint8)))
    assert (len(data.train), len(data.test), data.train.size) == (3277, 819, (3, 4))
    labels = np.concatenate([data.train.labels, data.test.labels])
    assert (labels == rule()[both @ (1 << np.arange(11, -1, -1))]).all()
    for split in ("train", "test"):
        mine, other = getattr(data, split), getattr(swapped, split)
        assert (mine.images == other.images).all() and (mine.labels + other.labels == 1).all()
    assert (data.name, swapped.name) == ("sphere-rule", "sphere-rule-swapped")
