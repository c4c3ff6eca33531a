"""Networks of variational autoencoders: counts by hand, sizes, initial weights, the classifier's encoder, refusals."""

from __future__ import annotations

import math

import pytest
import torch

from compatkit.errors import UsageError
from compatkit_plugins.networks import build
from compatkit_plugins.networks.generators import VAETrunk
from compatkit_plugins.networks.variational import (
    DenseDecoder,
    DenseTrunk,
    Latent,
    Sample,
    vae_conv,
    vae_conv_classifier,
    vae_dense,
    vae_dense_classifier,
)


def parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_counts_of_the_papers_networks() -> None:
    convolutions = 32 * 17 + 32 * (32 * 16 + 1) + 64 * (32 * 4 + 1) + 64 * (64 * 4 + 1)
    network = vae_conv(in_chans=1)
    assert parameters(network.encoder) == convolutions + 256 * 1025
    assert parameters(network.latent) == 2 * 10 * 257
    dense = vae_dense(in_chans=1)
    assert parameters(dense.encoder) == 1200 * 4097 + 1200 * 1201
    assert parameters(dense.decoder) == 1200 * 11 + 2 * 1200 * 1201 + 4096 * 1201


@pytest.mark.parametrize("make", [vae_conv, vae_dense])
@pytest.mark.parametrize("size", [32, (16, 48)])
def test_an_image_comes_back_as_logits_of_its_pixels(make, size) -> None:
    network = make(in_chans=3, img_size=size, latent=5).eval()
    height, width = (size, size) if isinstance(size, int) else size
    images = torch.rand(2, 3, height, width)
    assert network(images).shape == (2, 3 * height * width)
    assert torch.equal(network.forward_head(network.forward_features(images)), network(images))
    assert network.latent(network.encoder(images)).shape == (2, 10)


def test_initial_weights_are_glorot_uniform_and_biases_zero() -> None:
    torch.manual_seed(0)
    network = vae_conv(in_chans=1)
    for layer, bound in ((network.encoder.dense.linear, 1280), (network.latent.mean, 266)):
        assert 0.98 * math.sqrt(6 / bound) < layer.weight.abs().max() <= math.sqrt(6 / bound)
    assert not any(value.any() for name, value in network.state_dict().items() if name.endswith("bias"))


def test_a_draw_has_the_mean_and_the_variance_that_were_given() -> None:
    torch.manual_seed(0)
    moments = torch.tensor([[2.0, -1.0, math.log(0.25), math.log(9.0)]]).expand(40_000, 4)
    drawn = Sample().train()(moments)
    torch.testing.assert_close(drawn.mean(0), torch.tensor([2.0, -1.0]), atol=0.06, rtol=0)
    torch.testing.assert_close(drawn.var(0), torch.tensor([0.25, 9.0]), atol=0, rtol=0.05)


@pytest.mark.parametrize(
    ("make", "other"), [(vae_conv, vae_conv_classifier), (vae_dense, vae_dense_classifier)]
)
def test_the_classifier_has_the_encoder_of_the_vae(make, other) -> None:
    network, classifier = make(in_chans=1), other(in_chans=1, num_classes=7)
    assert {name: value.shape for name, value in network.encoder.state_dict().items()} == {
        name: value.shape for name, value in classifier.encoder.state_dict().items()
    }
    assert classifier(torch.rand(2, 1, 64, 64)).shape == (2, 7)
    assert build(other.__name__, num_classes=3).fc.out_features == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: VAETrunk(img_size=24),
        lambda: vae_conv(img_size=(32, 40)),
        lambda: vae_dense(widths=()),
        lambda: DenseTrunk(widths=(0,)),
        lambda: DenseDecoder(widths=(4, -1)),
        lambda: Latent(3, 0),
    ],
)
def test_what_cannot_be_built_is_refused(make) -> None:
    with pytest.raises(UsageError):
        make()
