"""Resizing is antialiased: against a slow reference, torch, Pillow, and timm's own transform for evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform

from compatkit.data.dataset import Split
from compatkit.data.transforms import gaussian, resized, scaled_size, weights
from compatkit.errors import DataError

SIZES = [((28, 28), (32, 32)), ((28, 28), (16, 16)), ((8, 8), (16, 16)), ((9, 7), (5, 11)), ((4, 4), (1, 1))]


def slow(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Weigh every source pixel by the widened triangle, in float64, one target pixel at a time."""
    height, width = image.shape

    def triangle(target: int, source: int, place: int, n: int) -> float:
        scale = n / target
        return max(0.0, 1 - abs(source + 0.5 - (place + 0.5) * scale) / max(scale, 1.0))

    result = np.zeros(size)
    for row in range(size[0]):
        for column in range(size[1]):
            weights = np.array(
                [
                    [
                        triangle(size[0], i, row, height) * triangle(size[1], j, column, width)
                        for j in range(width)
                    ]
                    for i in range(height)
                ]
            )
            result[row, column] = (weights * image).sum() / weights.sum()
    return result


def noise(height: int, width: int, channels: int = 1, count: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, channels)).astype(np.uint8)


@pytest.mark.parametrize(("source", "target"), SIZES)
def test_agrees_with_the_slow_reference(source, target):
    images = noise(*source, count=1)
    result = resized(images, target)[0, ..., 0].astype(float)
    assert np.abs(result - slow(images[0, ..., 0], target)).max() <= 0.5 + 1e-3


@pytest.mark.parametrize(("source", "target"), SIZES)
def test_agrees_with_torch_and_pillow(source, target):
    images = noise(*source, channels=3)
    result = resized(images, target).astype(int)
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    theirs = torch.nn.functional.interpolate(
        tensor, target, mode="bilinear", antialias=True, align_corners=False
    )
    assert np.abs(result - theirs.permute(0, 2, 3, 1).numpy()).max() <= 0.5 + 1e-3
    for image, mine in zip(images, result, strict=True):
        # Pillow rounds after each of the two passes.
        other = np.asarray(Image.fromarray(image).resize(target[::-1], Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(mine - other).max() <= 1


@pytest.mark.parametrize("name", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(("source", "target"), SIZES)
def test_every_interpolation_agrees_with_pillow(name, source, target):
    images, kernel = noise(*source, channels=3), getattr(Image.Resampling, name.upper())
    for image, mine in zip(images, resized(images, target, name).astype(int), strict=True):
        # In two steps, because Pillow itself may take the rows first.
        other = Image.fromarray(image).resize((target[1], source[0]), kernel).resize(target[::-1], kernel)
        assert np.abs(mine - np.asarray(other).astype(int)).max() <= (0 if name == "nearest" else 1)


CROPS = [
    (name, mode, *sides)
    for name in ("bilinear", "bicubic")
    for mode in ("center", "squash")
    for sides in (((32, 32), (24, 24)), ((40, 29), (24, 24)), ((28, 31), (24, 20)), ((9, 14), (16, 16)))
    # Where the sides are scaled by different factors, Pillow may take the rows first, with other overshoots.
    if (name, mode) != ("bicubic", "squash") or sides[0][0] == sides[0][1]
]


@pytest.mark.parametrize("crop_pct", [0.875, 0.95, 1.0, 1.15])
@pytest.mark.parametrize(("name", "mode", "source", "size"), CROPS)
def test_the_crop_agrees_with_timm(name, mode, source, size, crop_pct):
    """Within 1 of 255: timm resizes with Pillow, which rounds after each direction."""
    images = noise(*source, channels=3, count=2)
    transform = create_transform(
        (3, *size), interpolation=name, crop_pct=crop_pct, crop_mode=mode, mean=(0, 0, 0), std=(1, 1, 1)
    )
    for image, mine in zip(images, resized(images, size, name, crop_pct, mode), strict=True):
        theirs = transform(Image.fromarray(image)).permute(1, 2, 0).numpy() * 255
        assert theirs.shape == mine.shape
        assert np.abs(mine - theirs).max() <= 1 + 1e-3


def test_the_size_before_the_crop_by_hand():
    # 224 / 0.875 = 256: the shorter side becomes 256, and 375 x 500 becomes 256 x 341.
    assert scaled_size((375, 500), (224, 224), 0.875, "center") == (256, 341)
    assert scaled_size((375, 500), (224, 224), 0.875, "squash") == (256, 256)
    assert scaled_size((375, 500), (224, 224), 1.0, "squash") == (224, 224)


def test_rows_of_weights_sum_to_one():
    for made in (weights(28, 32, "bilinear"), weights(32, 7, "nearest"), gaussian(9, 0.8), gaussian(3, 5.0)):
        np.testing.assert_allclose(made.sum(axis=1), 1, rtol=1e-6)
        assert (made >= 0).all()
    for name in ("bicubic", "lanczos"):
        np.testing.assert_allclose(weights(28, 33, name).sum(axis=1), 1, rtol=1e-6)


def test_constant_images_stay_constant():
    assert (resized(np.full((2, 9, 9, 3), 201, np.uint8), (13, 4)) == 201).all()


def test_many_chunks_give_the_same_as_one(monkeypatch):
    images = noise(12, 12, count=25)
    whole = resized(images, (8, 8))
    monkeypatch.setattr("compatkit.data.transforms.CHUNK", 12 * 12 * 4)
    assert (resized(images, (8, 8)) == whole).all()


def test_the_same_size_is_the_same_split():
    split = Split(noise(4, 6), np.array([0, 0, 0]), ("a",), "s/train")
    assert split.resized((4, 6)) is split
    larger = split.resized((8, 12))
    assert (larger.size, larger.name, larger.images.dtype) == ((8, 12), "s/train", np.uint8)
    assert split.resized(8).size == split.resized(np.int64(8)).size == (8, 8)


@pytest.mark.parametrize("size", [0, (8,), (8, 8, 8), (0, 8), (8.0, 8), (True, 8), (9999, 8), "88"])
def test_a_size_that_is_none_is_refused(size):
    split = Split(noise(4, 6), np.array([0, 0, 0]), ("a",), "s/train")
    with pytest.raises(DataError, match=r"resized of s/train expects \(height, width\)"):
        split.resized(size)


def test_an_interpolation_or_a_crop_that_is_none_is_refused():
    split = Split(noise(4, 6), np.array([0, 0, 0]), ("a",), "s/train")
    with pytest.raises(DataError, match=r"s/train: expected an interpolation of bilinear, .*'hamming'"):
        split.resized((2, 2), interpolation="hamming")
    with pytest.raises(DataError, match=r"a crop_pct above 0, got 'bilinear' and 0\.0"):
        split.resized((2, 2), crop_pct=0.0)
