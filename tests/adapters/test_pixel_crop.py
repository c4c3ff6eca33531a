"""Resized crops of pixels beside timm's transform on Pillow images: the same draws, the stated rounding."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.transforms import RandomResizedCropAndInterpolation

from compatkit.adapters.augmentation import ImageAugmentation, image_augmentation
from compatkit.adapters.pixel_crop import PixelCrop
from compatkit.contracts.contract import Data
from compatkit.data.transforms import Images

SIZE = (24, 28)


def clouds(channels: int, height: int = 60, width: int = 75) -> Images:
    """Return a smooth picture, uint8 ``(height, width, channels)``."""
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)[..., :channels]


def drawn(augmentation: ImageAugmentation, image: Any, seed: int, channels: int) -> torch.Tensor:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return augmentation(image, (*SIZE, channels), "picture").to(torch.int64)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "random"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_give_the_crop_of_a_pillow_image_within_rounding(channels: int, interpolation: str) -> None:
    data = Data(SIZE, "RGB" if channels == 3 else "L", (0.5,) * channels, (0.2,) * channels)
    augmentation = image_augmentation({"interpolation": interpolation, "color_jitter": None}, data)
    pixels = clouds(channels)
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    differences = torch.cat(
        [
            (
                drawn(augmentation, pixels, seed, channels) - drawn(augmentation, image, seed, channels)
            ).flatten()
            for seed in range(60)
        ]
    ).abs()
    assert differences.max() <= 2
    assert (differences > 0).double().mean() < 0.05 and (differences > 1).double().mean() < 1e-3


def test_later_transforms_draw_the_same() -> None:
    """With a crop of everything, which rounding cannot change, jitter and flips are those of Pillow images."""
    data = Data(SIZE, "RGB", (0.5,) * 3, (0.2,) * 3)
    whole = {"scale": (1.0, 1.0), "ratio": (SIZE[1] / SIZE[0],) * 2}
    augmentation = image_augmentation({**whole, "auto_augment": "rand-m9-mstd0.5-inc1"}, data)
    pixels = clouds(3, *SIZE)
    for seed in range(20):
        mine = drawn(augmentation, pixels, seed, 3)
        assert torch.equal(mine, drawn(augmentation, Image.fromarray(pixels), seed, 3))


@pytest.mark.parametrize(
    "augment",
    [
        {"interpolation": "lanczos"},
        {"train_crop_mode": "rkrc"},
        {"no_aug": True},
        lambda image: image,
        ("flip",),
    ],
    ids=["lanczos", "rkrc", "none", "transform", "flip"],
)
def test_other_transforms_take_pillow_images_alone(augment: Any) -> None:
    data = Data(SIZE, "RGB", (0.5,) * 3, (0.2,) * 3)
    assert image_augmentation(augment, data).of_pixels is None


def test_pixels_that_cannot_be_written_are_not_changed() -> None:
    pixels = clouds(3).copy()
    pixels.flags.writeable = False
    before = pixels.copy()
    crop = PixelCrop.of(RandomResizedCropAndInterpolation(SIZE, scale=(1.0, 1.0)))
    assert crop is not None and crop(pixels).size == SIZE[::-1]
    np.testing.assert_array_equal(pixels, before)
