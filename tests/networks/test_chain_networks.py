"""Chains, generators and the variational autoencoder: parameter counts by hand, cuts, initial weights, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from compatkit.adapters.blueprints import build_pair
from compatkit.adapters.cutting.planning import plan
from compatkit.adapters.cutting.proof import prove
from compatkit.errors import UsageError
from compatkit_plugins.networks.chains import conv_chain, fully_connected
from compatkit_plugins.networks.generators import Autoencoder, Generator, Upscaler, VAEDecoder, VAEEncoder


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_fully_connected_has_the_parameters_of_its_layers():
    # The network of the mutual-information study: 12 bits as 3x4 pixels, 10-7-5-4-3 units, 2 classes.
    network = fully_connected(
        in_chans=1, img_size=(3, 4), widths=(10, 7, 5, 4, 3), num_classes=2, activation="tanh"
    )
    by_hand = 10 * 13 + 7 * 11 + 5 * 8 + 4 * 6 + 3 * 5 + 2 * 4
    assert parameters(network) == by_hand == 294
    assert network(torch.zeros(2, 1, 3, 4)).shape == (2, 2)


def test_batch_normalization_adds_two_numbers_a_unit_also_to_the_class_layer():
    # The peak study: 784 to 128 to 2, both with batch normalization and ReLU.
    network = fully_connected(
        in_chans=1, img_size=28, num_classes=2, norm="batch", last_norm=True, last_activation=True
    )
    assert parameters(network) == 128 * 785 + 2 * 128 + 2 * 129 + 2 * 2
    assert network.train()(torch.rand(8, 1, 28, 28)).min() == 0
    assert network.pretrained_cfg["classifier"] == ("fc", "last_norm")
    network.reset_classifier(3)
    assert network(torch.rand(8, 1, 28, 28)).shape == (8, 3)


def test_no_hidden_layer_is_a_linear_classifier():
    network = fully_connected(in_chans=1, img_size=4, widths=(), num_classes=3)
    assert parameters(network) == 3 * 17
    assert network.pretrained_cfg["first_conv"] == "fc"
    assert network.reverse_plan() == [{"linear": "fc", "norm": None, "act": None, "pool": None}]
    network.reset_classifier(0)
    assert network.reverse_plan() == []
    assert network(torch.zeros(2, 1, 4, 4)).shape == (2, 16)


def test_conv_chain_counts_follow_its_arguments():
    network = conv_chain(in_chans=1, img_size=10, channels=(2, 3), num_classes=4)
    assert parameters(network) == 2 * (9 + 1) + 3 * (18 + 1) + 4 * (3 * 25 + 1)
    mean = conv_chain(in_chans=1, img_size=10, channels=(2, 3), num_classes=4, top="mean", norm="batch")
    assert parameters(mean) == 2 * 10 + 3 * 19 + 2 * (2 + 3) + 4 * (3 + 1)


@pytest.mark.parametrize(
    ("reduce", "sides"), [("average", (4, 2)), ("max", (4, 2)), ("stride", (5, 3)), ("none", (9, 9))]
)
def test_conv_chain_halves_the_size_in_each_of_its_ways(reduce, sides):
    network = conv_chain(in_chans=1, img_size=9, channels=(2, 3, 4), reduce=reduce)
    seen = []
    for name in ("layer2", "layer3"):
        network.get_submodule(name).register_forward_hook(lambda m, a, out: seen.append(out.shape[-1]))
    assert network(torch.zeros(2, 1, 9, 9)).shape == (2, 10)
    assert tuple(seen) == sides


def test_conv_chain_takes_strides_and_may_leave_out_padding():
    network = conv_chain(img_size=27, channels=(4, 5), reduce="none", strides=(3, 2), padding=False)
    seen = []
    for name in ("layer1", "layer2"):
        network.get_submodule(name).register_forward_hook(lambda m, a, out: seen.append(out.shape[-1]))
    assert network(torch.zeros(2, 3, 27, 27)).shape == (2, 10)
    assert seen == [9, 4]  # (27 - 3) / 3 + 1, then (9 - 3) / 2 + 1
    assert [entry["reduction"] for entry in network.feature_info] == [3, 6]


@pytest.mark.parametrize(
    ("model", "kwargs", "splits"),
    [
        (
            "fully_connected",
            {"img_size": [3, 4], "in_chans": 1, "widths": [6, 5], "norm": "batch", "last_norm": True},
            ("blocks.0", "blocks.1", "forward_features"),
        ),
        ("conv_chain", {"img_size": 8, "channels": [2, 3]}, ("layer1", "layer2", "forward_features")),
    ],
)
def test_chains_are_cut_after_each_layer(model, kwargs, splits):
    for cut in splits:
        planned = plan(model, cut, kwargs={"num_classes": 3, **kwargs})
        whole, extractor, head = build_pair(planned.extractor, planned.head, seed=0)
        prove(whole, extractor, head, planned.input.size, planned.input.channels)
        assert {*extractor.state_dict(), *head.state_dict()} == set(whole.state_dict())


def test_glorot_weights_are_uniform_within_their_bound_and_biases_are_zero():
    torch.manual_seed(0)
    network = fully_connected(in_chans=1, img_size=28, initial="glorot")
    for layer, bound in (
        (network.blocks[0].linear, math.sqrt(6 / (784 + 128))),
        (network.fc, math.sqrt(6 / 138)),
    ):
        assert bound * 0.98 < layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert not layer.bias.any()


@pytest.mark.parametrize("build", [fully_connected, conv_chain])
def test_the_body_does_not_depend_on_the_count_of_classes(build):
    bodies = []
    for classes in (2, 5):
        torch.manual_seed(3)
        state = build(num_classes=classes, initial="glorot").state_dict()
        bodies.append({name: value for name, value in state.items() if not name.startswith("fc.")})
    assert all(torch.equal(bodies[0][name], bodies[1][name]) for name in bodies[0])


def test_generator_counts_and_sizes():
    network = Generator(latent=5, channels=(4, 3), out_chans=2, start=3)
    # dense 5 to 4*3*3; 4x4 transposed convolutions 4 to 3 with batch normalization, 3 to 2
    assert parameters(network) == 36 * 6 + (4 * 3 * 16 + 3 + 2 * 3) + (3 * 2 * 16 + 2)
    assert network(torch.zeros(2, 5)).shape == (2, 2, 12, 12)
    nearest = Generator(latent=5, channels=(4, 3), start=3, enlarge="nearest", output="sigmoid")
    images = nearest(torch.randn(2, 5))
    assert images.shape == (2, 1, 12, 12)
    assert 0 < images.min() and images.max() < 1


@pytest.mark.parametrize("enlarge", ["transpose", "nearest"])
def test_upscaler_makes_64x64_of_16x16_in_six_layers(enlarge):
    network = Upscaler(enlarge=enlarge)
    assert network(torch.zeros(2, 1, 16, 16)).shape == (2, 1, 64, 64)
    assert len(network.reverse_plan()) == 6


def test_generators_start_with_activations_of_about_one_size():
    torch.manual_seed(0)
    network = Upscaler(channels=(64, 64, 64), doublings=2)
    inputs = network(torch.randn(4, 1, 8, 8))
    assert 0.1 < inputs.std() < 3


def test_vae_counts_are_those_of_its_layers():
    encoder, decoder = VAEEncoder(), VAEDecoder()
    convolutions = 32 * 17 + 32 * (32 * 16 + 1) + 64 * (32 * 4 + 1) + 64 * (64 * 4 + 1)
    assert parameters(encoder) == convolutions + 256 * 1025 + 2 * 10 * 257
    deconvolutions = 64 * (64 * 16 + 1) + 32 * (64 * 16 + 1) + 32 * (32 * 16 + 1) + (32 * 16 + 1)
    assert parameters(decoder) == 256 * 11 + 1024 * 257 + deconvolutions
    images = torch.rand(2, 1, 64, 64)
    assert [entry.shape for entry in encoder(images)] == [(2, 10), (2, 10)]
    assert Autoencoder(encoder, decoder)(images).shape == images.shape
    assert not any(
        layer.bias.any() for layer in encoder.modules() if isinstance(layer, nn.Conv2d | nn.Linear)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fully_connected(widths=(0,)), "'widths' must be a whole number from 1"),
        (
            lambda: fully_connected(norm="layer"),
            "FullyConnected: 'norm' must be one of none, batch; got 'layer'",
        ),
        (
            lambda: fully_connected(activation="gelu"),
            "'activation' must be one of none, relu, leaky_relu, tanh, sigmoid",
        ),
        (lambda: fully_connected(initial="zero"), "'initial' must be one of he, glorot; got 'zero'"),
        (lambda: conv_chain(channels=()), "at least one convolution"),
        (lambda: conv_chain(channels=(1.5,)), "'channels' must be a whole number from 1"),
        (lambda: conv_chain(kernel=4), "kernel is an odd number.*got 4"),
        (lambda: conv_chain(reduce="half"), "'reduce' must be one of average, max, stride, none"),
        (lambda: conv_chain(strides=(2,), reduce="none"), "one number for each of 4 convolutions"),
        (lambda: conv_chain(channels=(2,), strides=(2,)), "with reduce='none'"),
        (
            lambda: conv_chain(channels=(2,), strides=(0,), reduce="none"),
            "'strides' must be a whole number from 1",
        ),
        (lambda: conv_chain(top="sum"), "'top' must be one of mean, flatten"),
        (lambda: conv_chain(img_size=4, channels=(1, 1, 1, 1)), "nothing is left of 4x4 pixels at layer4"),
        (lambda: Generator(channels=()), "'layers' must be a whole number from 1"),
        (lambda: Generator(enlarge="bilinear"), "Generator: 'enlarge' must be one of transpose, nearest"),
        (lambda: Upscaler(doublings=9), "6 layers cannot double the size 9 times"),
        (lambda: Upscaler(output="gelu"), "Upscaler: 'output' must be one of"),
        (lambda: VAEEncoder(latent=0), "'latent' must be a whole number from 1"),
        (lambda: VAEDecoder(out_chans=0), "'out_chans' must be a whole number from 1"),
    ],
)
def test_what_cannot_be_built_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
