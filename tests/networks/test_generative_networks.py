"""Networks that give images: shapes, parts, codes, the mirror of a generator, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import data_set, quick

import compatkit as ck
from compatkit.errors import UsageError
from compatkit_plugins.networks.generative import (
    Codes,
    Downscaler,
    image_autoencoder,
    image_discriminator,
    info_gan,
    super_resolution,
)
from compatkit_plugins.networks.generators import Upscaler


@pytest.mark.parametrize("make", [super_resolution, image_autoencoder, info_gan])
def test_an_image_gives_an_image(make) -> None:
    network = make(in_chans=3, img_size=16).eval()
    images = torch.rand(2, 3, 16, 16)
    assert network(images).shape == (2, 3 * 16 * 16)
    assert torch.equal(network.forward_head(network.forward_features(images)), network(images))


def test_super_resolution_sees_averages_alone() -> None:
    network: Any = super_resolution(img_size=8).eval()
    images = torch.rand(2, 1, 8, 8)
    blocks = F.interpolate(F.avg_pool2d(images, 4), scale_factor=4.0)
    torch.testing.assert_close(network(blocks), network(images))
    assert len(network.generator.body) == 6


def test_a_mirror_with_the_same_tensors_is_the_transpose_layer_by_layer() -> None:
    up = Upscaler(channels=(3, 4), activation="none").double()
    down = Downscaler(up, "none").double()
    layers: list[Any] = list(up.body)
    mirrors: list[Any] = list(down)[::-1]
    size = 6
    for layer, mirror in zip(layers, mirrors, strict=True):
        mirror.linear.weight.data = layer.linear.weight.data
        mirror.linear.bias.data.zero_()
        layer.linear.bias.data.zero_()
        x = torch.rand(1, layer.linear.in_channels, size, size, dtype=torch.float64)
        y = torch.rand_like(layer.linear(x))
        size = y.shape[-1]
        torch.testing.assert_close((layer.linear(x) * y).sum(), (x * mirror.linear(y)).sum())


def test_codes_are_what_they_should_be_and_the_same_in_eval_mode() -> None:
    torch.manual_seed(0)
    codes = Codes(10, 2, 62)
    drawn = codes.train()(torch.zeros(4000, 1, 2, 2))
    assert drawn.shape == (4000, 74)
    assert set(drawn[:, :10].unique().tolist()) == {0.0, 1.0} and drawn[:, :10].sum(1).eq(1).all()
    assert (drawn[:, :10].mean(0) - 0.1).abs().max() < 0.03
    assert drawn[:, 10:12].abs().max() <= 1 and abs(float(drawn[:, 10:12].var()) - 1 / 3) < 0.03
    assert abs(float(drawn[:, 12:].std()) - 1) < 0.01
    assert not torch.equal(codes(torch.zeros(3, 1)), codes(torch.zeros(3, 1)))
    assert torch.equal(codes.eval()(torch.zeros(3, 1)), codes(torch.ones(3, 1)))


def test_a_generator_is_published_and_loaded_as_a_component(tmp_path) -> None:
    task = ck.Task("a", data_set("a", size=(8, 8)), "super_resolution", "generator", size=8)
    fit = quick(steps=1).fit([task], ["image_error"])
    registry = ck.Registry.init(tmp_path / "registry")
    parts = registry.publish(fit, prefix="smoke")
    images = torch.rand(2, 1, 8, 8)
    result = registry[parts["a.extractor"]].module.eval()(images)
    torch.testing.assert_close(result, fit.tasks["a"].extractor.eval()(images))
    assert result.shape == images.shape


def test_a_discriminator_gives_one_number_of_two_images() -> None:
    assert image_discriminator()(torch.rand(3, 2, 64, 64)).shape == (3, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: super_resolution(img_size=10),
        lambda: image_autoencoder(img_size=(8, 6)),
        lambda: info_gan(img_size=30),
        lambda: info_gan(img_size=(28, 56)),
        lambda: Codes(0, 1, 1),
        lambda: Downscaler(Upscaler(enlarge="nearest"), "relu"),
    ],
)
def test_what_cannot_be_built_is_refused(make) -> None:
    with pytest.raises(UsageError):
        make()
