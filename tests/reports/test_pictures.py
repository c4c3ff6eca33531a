"""Pictures: read back pixel by pixel, the same bytes for the same values, every refusal."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

import compatkit as ck
from compatkit.errors import DataError
from compatkit.reports.pictures import _labels


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_weights_are_red_above_zero_and_blue_below() -> None:
    weight = np.array([[[2.0, -2.0], [0.0, 0.0]]])
    png = ck.pictures.signed(weight, ["3.21"])
    shown = pixels(png)
    height, width, _ = shown.shape
    y, x = int(height * 0.42), int(width * 0.3)
    left, right = shown[y, x], shown[y, width - x]
    assert left[0] > left[2] + 50 and right[2] > right[0] + 50
    assert png == ck.pictures.signed(weight, ["3.21"])


def test_channels_lie_side_by_side_and_pictures_in_rows() -> None:
    draw = np.random.default_rng(0)
    first = pixels(ck.pictures.signed(draw.normal(size=(1, 3, 4, 4))))
    assert first.shape[1] > 2.5 * (first.shape[0] - 0.26 * 160)
    many = pixels(ck.pictures.signed(draw.normal(size=(7, 4, 4)), columns=3))
    assert many.shape[0] > 2.9 * (1.0 + 0.26) * 160 and many.shape[1] < 4 * 1.2 * 160


def test_images_are_shown_in_the_declared_range() -> None:
    images = np.stack([np.full((1, 6, 6), -1.0), np.full((1, 6, 6), 1.0)])
    shown = pixels(
        ck.pictures.image_grid({"input": images, "seen again": -images}, low=-1, high=1, titles=["a", "b"])
    )
    height, width, _ = shown.shape
    rows, columns = (int(height * 0.3), int(height * 0.8)), (int(width * 0.45), int(width * 0.8))
    result = [[int(shown[y, x].mean()) for x in columns] for y in rows]
    assert result == [[0, 255], [255, 0]]


def test_the_plane_shows_every_arm_in_a_color_of_its_own() -> None:
    runs = {"std": [np.array([[12.0, 1.0], [3.0, 0.9]])], "rr": [np.array([[11.0, 0.9], [9.0, 0.8]])] * 2}
    shown = pixels(ck.pictures.information_plane(runs, max_information=12, layers=["1", "2"]))
    for color in ((0x56, 0x61, 0x70), (0xC2, 0x41, 0x0C)):
        assert (np.abs(shown - color).sum(2) < 12).sum() > 50


def test_landscapes_share_one_scale() -> None:
    places = [-1.0, 0.0, 1.0]
    flat, steep = np.full((3, 3), 1.0), np.array([[3.0, 2, 3], [2, 1, 2], [3, 2, 3]])
    shown = pixels(ck.pictures.landscapes({"flat": flat, "steep": steep}, places, step=0.5))

    def color(panel: int, x: float, y: float) -> list[int]:
        """Of a point of a panel, from 0 to 1 of its sides; 160 pixels an inch."""
        column = int(160 * (0.7 + 2.7 * panel + 2.4 * x))
        return shown[int(160 * (0.85 * 3.1 - 2.4 * y)), column].tolist()

    near = (0.58, 0.53)  # beside the mark of the center
    assert color(0, *near) == color(1, *near) == color(0, 0.95, 0.95) != color(1, 0.95, 0.95)
    gap = steep.copy()
    gap[0, 0] = np.nan
    assert ck.pictures.landscapes({"gap": gap}, places) == ck.pictures.landscapes({"gap": gap}, places)


def test_layers_at_one_place_share_a_name_on_the_plane() -> None:
    points = np.array([[12.0, 1.0], [11.9, 0.99], [11.8, 0.7], [3.0, 0.69], [3.1, 0.68]])
    labels = _labels(["D2", "D3", "D4", "D5", "D6"], points, (12.0, 1.0))
    assert labels == [("D2, D3", (12.0, 1.0)), ("D4", (11.8, 0.7)), ("D5, D6", (3.0, 0.69))]
    run = [np.array([[12.0, 1.0], [12.0, 0.5]])]
    plain = pixels(ck.pictures.information_plane({"std": run}, max_information=12))
    names = pixels(ck.pictures.information_plane({"std": run}, max_information=12, layers=["first", "last"]))
    changed = np.nonzero((plain != names).any(axis=(0, 2)))[0]
    assert len(changed) and changed.max() < plain.shape[1] * 0.95  # to the left of points at the right end


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: ck.pictures.signed(np.zeros((4, 4))), "Expected weights"),
        (lambda: ck.pictures.signed(np.zeros((2, 4, 4)), ["one"]), "one title each or none"),
        (lambda: ck.pictures.signed(np.full((1, 2, 2), np.nan)), "NaN or infinity"),
        (lambda: ck.pictures.image_grid({}, low=0, high=1), "Expected rows"),
        (lambda: ck.pictures.image_grid({"a": np.zeros((1, 2, 4, 4))}, low=0, high=1), "1 or 3 channels"),
        (lambda: ck.pictures.image_grid({"a": np.zeros((1, 1, 4, 4))}, low=1, high=1), "low below high"),
        (
            lambda: ck.pictures.information_plane({"a": []}, max_information=12),
            r"arrays \(layers, 2\) of equal shape for 'a'",
        ),
        (lambda: ck.pictures.landscapes({}, [0.0, 1.0]), "Expected grids"),
        (lambda: ck.pictures.landscapes({"a": np.zeros((2, 3))}, [0.0, 1.0]), "Expected grids"),
        (lambda: ck.pictures.landscapes({"a": np.full((2, 2), np.nan)}, [0.0, 1.0]), "finite losses"),
        (
            lambda: ck.pictures.information_plane({"a": [np.zeros((2, 3))]}, max_information=12),
            r"got \[\(2, 3\)\]",
        ),
    ],
)
def test_refusals(draw: Callable[[], bytes], message: str) -> None:
    with pytest.raises(DataError, match=message):
        draw()
