"""Augmentation by timm: every operation at every magnitude on gray and color images; failures say where."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import timm.data.auto_augment
import torch
from PIL import Image
from timm.data.auto_augment import LEVEL_TO_ARG, AugmentOp

from compatkit.adapters.augmentation import _posterize, image_augmentation
from compatkit.contracts.contract import Data
from compatkit.errors import DataError

SIZE = 24
COLOR = Data((SIZE, SIZE), "RGB", mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
GRAY = Data((SIZE, SIZE), "L", mean=(0.5,), std=(0.2,))
STRINGS = (
    "rand-m9-mstd0.5-inc1",
    "rand-m10-inc1",
    "rand-m10-n3-mstd1-inc1-p1",
    "rand-m20-mmax30-inc1-p1",
    "rand-m0-p1",
    "rand-m2-mstd0.5-p1",
    "rand-m9-mstd101-inc1-p1",
    "rand-m7-mstd0.5-inc1-tweights",
    "rand-m9-t3a",
    "rand-m9-inc1-t3aw-p1",
    "augmix-m3-w3",
    "augmix-m10-mstd1",
    "augmix-m10-w2-d2-b1",
    "original",
    "originalr-mstd0.5",
    "v0",
    "v0r-mstd1",
    "3a",
)


def picture(channels: int) -> Image.Image:
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (32, 40, 3)[: 2 + (channels == 3)], dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("data", [COLOR, GRAY], ids=["color", "gray"])
@pytest.mark.parametrize("words", STRINGS)
def test_every_string_of_timm_augments_every_image(words: str, data: Data) -> None:
    channels = len(data.mean)
    augmentation, image = image_augmentation({"auto_augment": words}, data), picture(channels)
    for seed in range(150):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        pixels = augmentation(image, (SIZE, SIZE, channels), "picture")
        assert pixels.shape == (SIZE, SIZE, channels) and pixels.dtype == torch.uint8


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", sorted(LEVEL_TO_ARG))
def test_every_operation_at_every_magnitude(name: str, channels: int) -> None:
    image, fill = picture(channels), (128,) * channels
    for quarters in range(0, 4 * 30 + 1, 3):
        settings = {"img_mean": fill, "translate_const": 100, "magnitude_max": 30}
        if name.startswith("Posterize"):
            continue  # where no bits are left, see below
        operation = AugmentOp(name, prob=1.0, magnitude=quarters / 4, hparams=settings)  # type: ignore[arg-type]
        made = operation(image)
        assert (made.size, made.mode) == (image.size, image.mode)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("bits", range(-3, 10))
def test_bits_by_hand(bits: int, channels: int) -> None:
    image = picture(channels)
    lost = 8 - min(8, max(0, bits))
    expected = (np.array(image).astype(int) >> lost << lost).astype(np.uint8)
    np.testing.assert_array_equal(np.array(_posterize(image, bits)), expected)


def test_strong_augmentation_may_keep_no_bits_and_timm_does_not_change() -> None:
    before = dict(timm.data.auto_augment.NAME_TO_OP)
    augmentation = image_augmentation({"auto_augment": "rand-m10-inc1-p1"}, COLOR)
    assert before == timm.data.auto_augment.NAME_TO_OP
    for seed in range(100):
        random.seed(seed)
        np.random.seed(seed)
        augmentation(picture(3), (SIZE, SIZE, 3), "picture")


def test_a_failure_names_augmentation_image_and_place() -> None:
    class Breaks:
        def __call__(self, image: Any) -> Any:
            return self.shift(image)

        def shift(self, image: Any) -> Any:
            raise ValueError("no room")

    with pytest.raises(DataError) as caught:
        image_augmentation(Breaks(), COLOR)(picture(3), (SIZE, SIZE, 3), "cat/1.jpg")
    assert (caught.value.code, caught.value.subject) == ("data", "cat/1.jpg")
    for word in ("Breaks of the task", "cat/1.jpg", "no room", "in shift, test_augmentation.py", "retry"):
        assert word in str(caught.value)
