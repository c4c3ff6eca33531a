"""Color jitter in one pass: affine functions by hand, torchvision's draws, its values where nothing is clipped."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import ColorJitter

from compatkit.adapters.augmentation import image_augmentation
from compatkit.adapters.pixel_jitter import WEIGHTS, PixelJitter, combined
from compatkit.contracts.contract import Data


def picture(low: int, high: int) -> np.ndarray:
    """Return random colors, uint8 ``(20, 30, 3)``."""
    return np.random.default_rng(0).integers(low, high, (20, 30, 3), dtype=np.uint8)


def one_by_one(pixels: np.ndarray, order: list[int], factors: tuple[float | None, ...]) -> np.ndarray:
    """Return the pixels after each step in turn, in float64, not clipped."""
    colors = pixels.astype(np.float64)
    for step in order:
        factor = factors[step] if step < 3 else None
        gray = colors @ np.array(WEIGHTS)
        if factor is None:
            continue
        if step == 0:
            colors = factor * colors
        elif step == 1:
            colors = factor * colors + (1 - factor) * int(gray.mean() + 0.5)
        else:
            colors = factor * colors + (1 - factor) * gray[..., None]
    return colors


@pytest.mark.parametrize(
    "order", list(itertools.permutations(range(3))), ids=lambda order: "".join(map(str, order))
)
def test_one_function_is_the_steps_one_by_one(order: tuple[int, ...]) -> None:
    pixels = picture(0, 256)
    for factors in (
        (0.7, 1.3, 0.6),
        (1.4, 0.6, 1.4),
        (None, 1.2, 0.5),
        (0.8, None, None),
        (None, None, None),
    ):
        mean = float((pixels @ np.array(WEIGHTS)).mean())
        own, gray, shift = combined([3, *order], factors, mean)
        result = own * pixels + gray * (pixels @ np.array(WEIGHTS))[..., None] + shift
        np.testing.assert_allclose(result, one_by_one(pixels, [3, *order], factors), rtol=0, atol=1e-9)


def test_by_hand() -> None:
    """Twice as bright, then half of the contrast around 2 * 50, then half of the saturation."""
    assert combined([0, 1, 2], (2.0, 0.5, 0.5), 50) == (0.5, 0.5, 50)


@pytest.mark.parametrize("seed", range(20))
def test_draws_and_values_are_those_of_torchvision_where_nothing_is_clipped(seed: int) -> None:
    image = Image.fromarray(picture(90, 150))
    step = ColorJitter(0.3, 0.3, 0.3)
    results, states = list[np.ndarray](), list[torch.Tensor]()
    for jitter in (step, PixelJitter(step)):
        torch.manual_seed(seed)
        results.append(np.asarray(jitter(image)).astype(int))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    difference = results[1] - results[0]
    assert 0 <= difference.min() and difference.max() <= 4  # torchvision rounds down thrice, and enlarges it


def test_values_are_clipped_once_at_the_end() -> None:
    pixels = np.full((2, 2, 3), 200, dtype=np.uint8)
    step = ColorJitter(brightness=(1.5, 1.5), contrast=(0.5, 0.5))
    own, _, shift = combined([0, 1], (1.5, 0.5, None), 200)
    assert own * 200 + shift == 300
    np.testing.assert_array_equal(np.asarray(PixelJitter(step)(Image.fromarray(pixels))), 255)


def test_gray_images_are_left_to_torchvision() -> None:
    step, gray = ColorJitter(0.5, 0.5, 0.5), Image.fromarray(picture(0, 256)[..., 0])
    torch.manual_seed(0)
    expected = np.asarray(step(gray))
    torch.manual_seed(0)
    np.testing.assert_array_equal(np.asarray(PixelJitter(step)(gray)), expected)


def test_files_are_jittered_by_torchvision_and_cached_pixels_at_once() -> None:
    data = Data((24, 28), "RGB", (0.5,) * 3, (0.2,) * 3)
    augmentation = image_augmentation(("imagenet",), data)
    assert augmentation.jitters_by_matrix and any(
        type(step) is ColorJitter for step in augmentation.random.transforms
    )
    assert any(type(step) is PixelJitter for step in augmentation.of_pixels.transforms)
    for others in (
        {"color_jitter": None},
        {"color_jitter": (0.4, 0.4, 0.4, 0.1)},
        {"color_jitter_prob": 0.5},
    ):
        assert not image_augmentation(others, data).jitters_by_matrix
