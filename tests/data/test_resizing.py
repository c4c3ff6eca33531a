"""Resizing is bilinear with antialiasing: against a slow reference, torch and Pillow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from compatkit.data.dataset import Split
from compatkit.data.separable import bilinear, gaussian, resized
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


def test_rows_of_weights_sum_to_one():
    for weights in (bilinear(28, 32), bilinear(32, 7), gaussian(9, 0.8), gaussian(3, 5.0)):
        np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
        assert (weights >= 0).all()


def test_constant_images_stay_constant():
    assert (resized(np.full((2, 9, 9, 3), 201, np.uint8), (13, 4)) == 201).all()


def test_many_chunks_give_the_same_as_one(monkeypatch):
    images = noise(12, 12, count=25)
    whole = resized(images, (8, 8))
    monkeypatch.setattr("compatkit.data.separable.CHUNK", 12 * 12 * 4)
    assert (resized(images, (8, 8)) == whole).all()


def test_the_same_size_is_the_same_split():
    split = Split(noise(4, 6), np.array([0, 0, 0]), ("a",), "s/train")
    assert split.resized((4, 6)) is split
    larger = split.resized((8, 12))
    assert (larger.size, larger.name, larger.images.dtype) == ((8, 12), "s/train", np.uint8)


@pytest.mark.parametrize("size", [8, (8,), (8, 8, 8), (0, 8), (8.0, 8), (True, 8), (9999, 8), "88"])
def test_a_size_that_is_none_is_refused(size):
    split = Split(noise(4, 6), np.array([0, 0, 0]), ("a",), "s/train")
    with pytest.raises(DataError, match=r"s/train: a size is \(height, width\)"):
        split.resized(size)
