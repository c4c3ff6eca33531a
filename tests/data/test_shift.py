"""A shift in color and blur: hand-worked colors, scipy's blur, nothing random."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from compatkit.data.dataset import Split
from compatkit.data.transforms import Shift, rotation, shifted
from compatkit.errors import DataError


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def test_a_third_of_a_turn_moves_red_to_green_and_green_to_blue():
    images = noise(3, 4, 4, 3)
    assert (shifted(images, Shift(hue=1 / 3))[..., 1] == images[..., 0]).all()
    assert (shifted(images, Shift(hue=1 / 3)) == images[..., [2, 0, 1]]).all()
    assert (shifted(images, Shift(hue=-1 / 3)) == images[..., [1, 2, 0]]).all()


def test_half_a_turn_worked_by_hand():
    # About (1, 1, 1): v -> 2 mean(v) - v. (90, 60, 30) has the mean 60.
    assert shifted(np.array([[[[90, 60, 30]]]], np.uint8), Shift(hue=0.5)).ravel().tolist() == [30, 60, 90]


@pytest.mark.parametrize("turns", [0.1, 0.3, 0.77])
def test_a_rotation_keeps_length_and_gray(turns):
    matrix = rotation(turns).astype(float)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(np.ones(3) @ matrix, np.ones(3), atol=1e-6)
    assert np.trace(matrix) == pytest.approx(1 + 2 * math.cos(2 * math.pi * turns), abs=1e-6)


def test_brightness_scales():
    assert shifted(np.array([[[[200], [101]]]], np.uint8), Shift(brightness=0.5)).ravel().tolist() == [
        100,
        51,
    ]


@pytest.mark.parametrize("sigma", [0.6, 1.0, 2.3])
def test_blur_agrees_with_scipy(sigma):
    images = noise(2, 12, 9, 1)
    radius = math.ceil(3 * sigma)
    for image, mine in zip(images, shifted(images, Shift(blur=sigma)), strict=True):
        theirs = gaussian_filter(image[..., 0].astype(float), sigma, mode="nearest", radius=radius)
        assert np.abs(mine[..., 0] - theirs).max() <= 0.5 + 1e-3


def test_the_order_is_hue_then_brightness_then_blur():
    images = noise(2, 8, 8, 3)
    astype = shifted(images, Shift(0.2, 0.6, 0.9)).astype(int)
    steps = shifted(shifted(shifted(images, Shift(hue=0.2)), Shift(brightness=0.6)), Shift(blur=0.9)).astype(
        int
    )
    assert np.abs(astype - steps).max() <= 2  # three roundings against one


def test_no_shift_changes_nothing_and_a_shift_is_repeatable():
    split = Split(noise(3, 6, 6, 3), np.array([0, 0, 0]), ("a",), "s/train")
    assert split.shifted().digest == split.digest
    assert split.shifted(0.3, 0.7, 1.0).digest == split.shifted(0.3, 0.7, 1.0).digest != split.digest


def test_gray_images_have_no_hue():
    with pytest.raises(DataError, match="gray images have no hue"):
        shifted(noise(1, 4, 4, 1), Shift(hue=0.3))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hue": math.nan}, "'hue' must be a finite number"),
        ({"hue": "red"}, "'hue' must be a finite number"),
        ({"blur": True}, "'blur' must be a number"),
        ({"blur": -1}, "from 0 to 100"),
        ({"brightness": 0}, "above 0 and up to 1"),
        ({"brightness": 1.5}, "above 0 and up to 1"),
    ],
)
def test_values_out_of_range_are_refused(values, message):
    with pytest.raises(DataError, match=message):
        Shift(**values)
