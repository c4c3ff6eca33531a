"""Preprocessing by the extractor's contract: channels, size, scale."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from sample_components import GRAY

from compatkit.contracts.contract import Data
from compatkit.data.dataset import Split
from compatkit.errors import DataError, TooCostly
from compatkit.evaluation.preprocessing import normalize, prepare


def split(shape: tuple[int, ...]) -> Split:
    images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    return Split(images, np.arange(shape[0]) % 2, ("0", "1"), "noise/test")


RGB = Data((8, 8), "RGB", (0.5, 0.4, 0.3), (0.25, 0.2, 0.1))


def test_images_that_fit_are_only_turned_to_channels_first() -> None:
    noise = split((4, 8, 8, 3))
    result = prepare(noise, RGB)
    assert len(result) == 4
    assert result.images.dtype == torch.uint8
    assert result.images.is_contiguous()
    for n in range(4):
        for channel in range(3):
            assert np.array_equal(result.images[n, channel].numpy(), noise.images[n, :, :, channel])
    assert result.labels.tolist() == [0, 1, 0, 1]


def test_channels_are_converted_before_the_size() -> None:
    noise = split((3, 10, 12, 3))
    result = prepare(noise, GRAY).images
    assert result.shape == (3, 1, 8, 8)
    assert np.array_equal(result[:, 0].numpy(), noise.converted("L").resized((8, 8)).images[..., 0])
    assert prepare(split((3, 10, 12, 1)), RGB).images.shape == (3, 3, 8, 8)


def test_interpolation_and_crop_are_those_of_the_contract() -> None:
    noise = split((2, 12, 10, 3))
    data = attrs.evolve(RGB, interpolation="bicubic", crop_pct=0.8, crop_mode="center")
    result = prepare(noise, data).images.permute(0, 2, 3, 1).numpy()
    # 8 / 0.8 = 10: the shorter side is 10 already, so the middle 8 x 8 pixels are cut out as they are.
    assert np.array_equal(result, noise.images[:, 2:10, 1:9])


def test_images_that_would_fill_the_memory_at_the_size_of_a_contract_are_refused() -> None:
    """A contract may be a stranger's: 4,096 x 4,096 pixels make 50 MB of every image."""
    noise = split((400, 1, 1, 1))
    with pytest.raises(TooCostly) as caught:
        prepare(noise, attrs.evolve(RGB, size=(4096, 4096)))
    assert caught.value.subject == "noise/test" and caught.value.code == "too-costly"
    assert len(prepare(noise, RGB)) == 400


def test_normalize_subtracts_the_mean_and_divides_by_the_deviation() -> None:
    images = prepare(split((5, 8, 8, 3)), RGB).images
    result = normalize(images, RGB)
    mean, std = (torch.tensor(item, dtype=torch.float64).view(1, 3, 1, 1) for item in (RGB.mean, RGB.std))
    assert result.dtype == torch.float32
    assert torch.allclose(result.double(), (images.double() / 255 - mean) / std, atol=2e-6)
    assert normalize(images, RGB, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert normalize(images, RGB, device="cpu").device.type == "cpu"


def test_what_does_not_go_together_is_refused() -> None:
    images = prepare(split((2, 8, 8, 1)), GRAY).images
    with pytest.raises(DataError, match="3 means"):
        normalize(images, RGB)
    with pytest.raises(DataError, match="hamming"):
        prepare(split((2, 8, 8, 1)), attrs.evolve(GRAY, interpolation="hamming"))
