"""Data that needs no file: handwritten digits from scikit-learn, and typeset ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compatkit.data import load
from compatkit.errors import DataError, EnvironmentFailure
from compatkit_plugins.data_sets.typeset_digits import typeset_digits

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
        ({"train": 5}, "'train' must be a whole number from 10 up; got 5"),
        ({"size": 4}, "'size' must be a whole number from 6 to 128; got 4"),
        ({"size": 8.5}, "got 8.5"),
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
