"""Data that needs no file: handwritten digits from scikit-learn, typeset ones, peaks, and bits on a sphere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compatkit.data import load
from compatkit.data.peaks import peaks
from compatkit.data.sphere_rule import counts, patterns, rule
from compatkit.data.typeset import typeset_digits
from compatkit.errors import DataError, EnvironmentFailure

DIGITS = tuple("0123456789")


def test_handwritten_digits_are_all_of_them_once():
    data = load("digits")
    assert data.classes == DIGITS
    assert (len(data.train), len(data.test), data.train.size, data.train.channels) == (1397, 400, (8, 8), "L")
    assert data.test.counts == (40,) * 10
    assert (data.train.images.min(), data.train.images.max()) == (0, 255)


def test_handwritten_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    raw: Any = load_digits()
    data = load("digits")
    both = np.concatenate([data.train.images, data.test.images])[..., 0]
    restored = np.round(both.astype(float) * 16 / 255)
    assert sorted(map(bytes, restored.astype(np.uint8))) == sorted(map(bytes, raw.images.astype(np.uint8)))


def test_typeset_digits_are_balanced_and_white_on_black():
    data = load("typeset-digits")
    assert data.classes == DIGITS
    assert data.train.counts == (200,) * 10
    assert data.test.counts == (50,) * 10
    assert data.train.images[:, [0, -1], [0, -1]].mean() < 40 < data.train.images.max()


def test_typeset_digits_repeat_with_the_seed():
    first, again, other = (typeset_digits(100, 50, seed=seed) for seed in (3, 3, 4))
    assert first.train.digest == again.train.digest
    assert first.test.digest == again.test.digest
    assert len({first.train.digest, other.train.digest, first.test.digest, other.test.digest}) == 4


def test_no_test_image_is_a_training_image():
    data = typeset_digits()
    training = {image.tobytes() for image in data.train.images}
    assert len(training) == 2000
    assert not any(image.tobytes() in training for image in data.test.images)


@pytest.mark.parametrize("size", [8, 16, 28])
def test_typeset_digits_can_be_told_apart(size):
    data = typeset_digits(600, 200, size=size)
    assert data.train.size == (size, size)
    # The nearest class mean: a coarse reader that chance would leave at a tenth.
    flat = data.train.images.reshape(600, -1).astype(float)
    means = np.stack([flat[data.train.labels == digit].mean(axis=0) for digit in range(10)])
    distance = ((data.test.images.reshape(200, 1, -1) - means) ** 2).sum(axis=2)
    assert (distance.argmin(axis=1) == data.test.labels).mean() > 0.8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": 5}, "at least one image of each of ten classes"),
        ({"size": 4}, "6 to 128 pixels a side, got 4"),
        ({"size": 8.5}, "a size is"),
    ],
)
def test_typeset_digits_of_no_usable_size_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        typeset_digits(**arguments)


def test_missing_fonts_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr("matplotlib.get_data_path", lambda: str(tmp_path))
    with pytest.raises(
        EnvironmentFailure, match=r"DejaVuSans\.ttf cannot be read: .*install matplotlib anew"
    ):
        typeset_digits()


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
