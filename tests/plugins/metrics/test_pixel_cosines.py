"""Cosines of normalized images from their bytes: as of vectors, for any normalization, with one look at the pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compatkit.errors import DataError, UsageError
from compatkit_plugins.metrics import _pixels
from compatkit_plugins.metrics._pixels import NormalizedImages, remembered
from compatkit_plugins.metrics.theory_transfer import TheoryTransfer, unit

NAMES = ("a", "b", "c")


def drawn(count: int, channels: int, side: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, side, side), generator=draw, dtype=torch.uint8)


def normalized(images: torch.Tensor, mean: Any, std: Any) -> torch.Tensor:
    middle, spread = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (mean, std))
    return (images.double() / 255 - middle) / spread


@settings(max_examples=40)
@given(
    st.sampled_from((1, 3)),
    st.integers(4, 40),
    st.integers(0, 99),
    st.lists(st.floats(-1, 2), min_size=3, max_size=3),
    st.lists(st.floats(0.01, 3), min_size=3, max_size=3),
)
def test_cosines_equal_those_of_normalized_vectors(
    channels: int, side: int, seed: int, mean: list[float], std: list[float]
) -> None:
    left, right = drawn(5, channels, side, seed), drawn(4, channels, side, seed + 100)
    mean, std = mean[:channels], std[:channels]
    first, second = (NormalizedImages.of(images, mean, std) for images in (left, right))
    for one, other, images, others in ((first, second, left, right), (first, first, left, left)):
        expected = unit(normalized(images, mean, std)) @ unit(normalized(others, mean, std)).T
        np.testing.assert_allclose(one.cosines(other), expected, atol=1e-10)


@pytest.mark.parametrize("value", [0, 255])
def test_inner_products_of_many_extreme_bytes_are_exact(value: int) -> None:
    images = torch.full((2, 1, 100, 100), value, dtype=torch.uint8)
    images[1, 0, 0, 0] = 127
    products = _pixels._products(*2 * [NormalizedImages.of(images, (0.5,), (0.5,))])
    rows = images.flatten(1).numpy().astype(np.int64)
    assert (products[0] == rows @ rows.T).all()


def metric(images: Any, **settings: Any) -> TheoryTransfer:
    labels = torch.arange(len(images)) % 3
    return TheoryTransfer(source=(images, labels, NAMES), **settings)


def bound(one: TheoryTransfer, images: torch.Tensor) -> float:
    labels = torch.arange(len(images)) % 3
    table = one.finalize(one.update(one.init(), images, labels, torch.arange(len(images))), NAMES)
    value = table.at(quantity="bound").value
    assert value is not None
    return value


def test_bytes_with_a_normalization_give_the_figures_of_normalized_images_and_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target, looks = drawn(30, 3, 12, 1000), drawn(24, 3, 12, 1001), list[Any]()
    plain = _pixels._products
    monkeypatch.setattr(_pixels, "_PRODUCTS", {})
    monkeypatch.setattr(_pixels, "_products", lambda *sides: looks.append(sides) or plain(*sides))
    figures = dict[float, float]()
    for middle in (0.0, 0.4, 0.5, 0.6):
        mean, std = (middle, 0.5, 0.4), (0.2, 0.3, middle + 0.1)
        figures[middle] = bound(metric(source, mean=mean, std=std), target)
        plainly = bound(metric(normalized(source, mean, std)), normalized(target, mean, std))
        assert figures[middle] == pytest.approx(plainly, rel=1e-9)
    assert len(looks) == 3  # source, target, and both, whatever the normalization
    assert len(set(figures.values())) == 4


def test_an_image_that_is_zero_has_no_direction() -> None:
    images = drawn(6, 1, 4, 0)
    images[2] = 0
    one = metric(images, mean=(0,), std=(1,))
    table = one.finalize(one.update(None, images, torch.arange(6) % 3, torch.arange(6)), NAMES)
    assert (
        table.at(quantity="bound").status == "undefined"
        and "zero everywhere" in table.at(quantity="bound").reason
    )


def test_what_cannot_be_normalized_is_refused() -> None:
    images = drawn(6, 3, 4, 0)
    for given_settings, subject in (
        ({"mean": (0.5,)}, "std"),
        ({"std": (0.5,)}, "std"),
        ({"mean": (0.5,), "std": (0,)}, "std"),
        ({"mean": ("half",), "std": (1,)}, "mean"),
        ({"mean": 0.5, "std": 0.5}, "mean"),
    ):
        with pytest.raises(UsageError) as caught:
            metric(images, **given_settings)
        assert caught.value.subject == subject
    for wrong, mean in ((images.float(), (0.5,) * 3), (images, (0.5,))):
        with pytest.raises(DataError):
            NormalizedImages.of(wrong, mean, mean)


def test_the_last_used_values_are_remembered() -> None:
    known: dict[Any, int] = {}
    for key in (1, 2, 1, 3):
        remembered(known, key, lambda key=key: 10 * key, 2)
    assert known == {1: 10, 3: 30}
    assert remembered(known, 1, lambda: 99, 2) == 10
