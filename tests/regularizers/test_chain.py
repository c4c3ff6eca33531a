"""Chains: found in networks that are some and proved bit by bit, refused elsewhere with where and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit.adapters.blueprints import build_pair
from compatkit.adapters.builders import create
from compatkit.adapters.cutting.planning import plan
from compatkit.errors import UsageError
from compatkit_plugins.networks.generators import Autoencoder, Generator, Upscaler, VAEDecoder, VAEEncoder
from compatkit_plugins.regularizers.reverse_pass.chain import Stage, chain_of


def create_model(name: str, **kwargs: Any) -> nn.Module:
    return create("timm", name, kwargs)


OUTSIDE = torch.ones(2, 3, 32, 32)


def images(side: int = 32, channels: int = 3) -> Tensor:
    return torch.zeros(2, channels, side, side)


def linears(stages: Sequence[Stage]) -> list[str]:
    return [stage.linear for stage in stages]


@pytest.mark.parametrize(
    ("name", "kwargs", "count"),
    [
        ("lenet", {}, 5),
        ("simple_cnn", {"filters": 4, "units": 8}, 5),
        ("vgg16_cifar", {}, 14),
        (
            "fully_connected",
            {"widths": [6, 5], "norm": "batch", "last_norm": True, "last_activation": True},
            3,
        ),
        ("conv_chain", {"norm": "batch"}, 5),
        ("conv_chain", {"reduce": "max", "top": "mean"}, 5),
        ("conv_chain", {"reduce": "stride", "activation": "leaky_relu"}, 5),
        ("vgg11", {"mlp_ratio": 0.01}, 11),
        ("vgg11_bn", {"mlp_ratio": 0.01}, 11),
    ],
)
def test_a_chain_is_found_in_classifiers(name, kwargs, count):
    network = create_model(name, num_classes=4, **kwargs)
    saved = {key: value.clone() for key, value in network.state_dict().items()}
    before = torch.get_rng_state()
    stages = chain_of(network.train(), images())
    assert len(stages) == count
    assert torch.equal(before, torch.get_rng_state())
    assert all(module.training for module in network.modules())
    assert all(torch.equal(value, saved[key]) for key, value in network.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


@pytest.mark.parametrize(
    ("make", "shape", "count"),
    [
        (lambda: Generator(latent=6), (2, 6), 4),
        (lambda: Generator(latent=6, enlarge="nearest", output="tanh"), (2, 6), 4),
        (lambda: Upscaler(), (2, 1, 8, 8), 6),
        (lambda: Upscaler(enlarge="nearest", norm="batch"), (2, 1, 8, 8), 6),
        (lambda: VAEEncoder(), (2, 1, 64, 64), 6),
        (lambda: VAEDecoder(), (2, 10), 6),
        (lambda: Autoencoder(VAEEncoder(), VAEDecoder()), (2, 1, 64, 64), 12),
    ],
)
def test_a_plan_is_proved_for_generators_and_autoencoders(make, shape, count):
    assert len(chain_of(make(), torch.zeros(shape))) == count


@pytest.mark.parametrize(
    "make",
    [
        lambda: create_model("fully_connected", widths=[6, 5], norm="batch", last_norm=True),
        lambda: create_model("conv_chain", norm="batch", top="mean"),
        lambda: create_model("conv_chain", reduce="max"),
    ],
)
def test_what_is_found_is_what_the_plan_says(make):
    network = make()
    result = chain_of(network, images())
    assert [attrs.evolve(line, taken=None, pooled=None) for line in result] == [
        Stage(**entry) for entry in network.reverse_plan()
    ]
    network.reverse_plan = None
    assert chain_of(network, images()) == result


@pytest.mark.parametrize(
    ("name", "cut", "kwargs"),
    [
        ("lenet", "conv1", {}),
        ("lenet", "pool1", {}),
        ("simple_cnn", "blocks.1", {"filters": 4, "units": 8}),
        ("vgg16_cifar", "stage2", {}),
        ("conv_chain", "layer2", {"norm": "batch"}),
        ("fully_connected", "forward_features", {"widths": [6, 5], "norm": "batch"}),
    ],
)
def test_it_is_the_same_across_a_cut(name, cut, kwargs):
    planned = plan(name, cut, kwargs={"num_classes": 4, **kwargs})
    whole, extractor, head = build_pair(planned.extractor, planned.head, seed=0)
    assert chain_of((extractor, head), images()) == chain_of(whole, images())


def test_normalization_with_activation_inside_counts_as_both():
    norm = timm.layers.BatchNormAct2d(4)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Flatten(), nn.Linear(144, 2))
    assert chain_of(network, images(8))[0] == Stage("0", norm="1", act="1.act")


def test_a_pool_is_noted_with_its_shapes_and_of_several_the_last():
    network = nn.Sequential(
        *(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(64, 2))
    )
    assert chain_of(network, images(30))[1] == Stage("5", None, None, "3", (4, 28, 28), (4, 4, 4))


class Written(nn.Module):
    """A network whose forward pass is a function."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def conv(count: int = 3, made: int = 4) -> nn.Module:
    return nn.Conv2d(count, made, 3, padding=1)


def test_functions_that_pool_and_reshape_are_followed():
    network = Written(
        lambda self, x: self.b(
            F.dropout(torch.flatten(F.max_pool2d(self.act(self.a(x)), 2), 1), 0.5, self.training)
        ),
        a=conv(),
        act=nn.ReLU(inplace=True),
        b=nn.Linear(64, 2),
    )
    assert chain_of(network, images(8)) == (
        Stage("a", act="act"),
        Stage("b", None, None, "max_pool2d", (4, 8, 8), (4, 4, 4)),
    )


def test_an_activation_that_is_shared_stands_in_several_stages():
    network = Written(
        lambda self, x: self.act(self.b(self.act(self.a(x)))), a=conv(), b=conv(4, 2), act=nn.Tanh()
    )
    assert chain_of(network, images(8)) == (Stage("a", act="act"), Stage("b", act="act"))


def test_what_does_not_lead_to_the_output_does_not_matter():
    network = Written(lambda self, x: (self.b(self.a(x)), self.c(x)), a=conv(), b=conv(4, 2), c=conv())
    assert linears(chain_of(network, images(8))) == ["a", "b"]


def sequential(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: create_model("resnet8_cifar"), r"layer3\.0 add\(\) takes 2 tensors"),
        (lambda: create_model("resnet18", in_chans=3), r"layer4\.1 add_\(\) takes 2 tensors"),
        (lambda: create_model("efficientnet_b0"), r"blocks\.6\.0\.se mul\(\) takes 2 tensors"),
        (lambda: create_model("densenet121"), r"denseblock4 cat\(\) takes 17 tensors"),
        (
            lambda: create_model("vit_tiny_patch16_224", img_size=32, depth=1),
            r"blocks\.0 add\(\) takes 2 tensors",
        ),
        (
            lambda: Written(lambda self, x: self.b(F.relu(self.a(x))), a=conv(), b=conv(4)),
            r"the network relu\(\) has no place in a chain",
        ),
        (
            lambda: Written(lambda self, x: self.b(self.b(x)), b=conv(3, 3)),
            "b is called twice",
        ),
        (
            lambda: Written(lambda self, x: (self.b(self.a(x)), self.a(x)), a=conv(), b=conv(4)),
            "a is called 2 times, and 1 of them are in the chain",
        ),
        (lambda: Written(lambda self, x: self.a(OUTSIDE), a=conv()), "a takes what no layer gave"),
        (lambda: sequential(conv(), nn.Softmax(1)), "1 Softmax has no place in a chain"),
        (lambda: sequential(nn.BatchNorm2d(3), conv()), "0 normalizes before the first layer"),
        (lambda: sequential(nn.ReLU(), conv()), "0 activates before the first layer"),
        (
            lambda: sequential(conv(), nn.ReLU(), nn.BatchNorm2d(4)),
            "2 normalizes what was normalized or activated",
        ),
        (lambda: sequential(conv(), nn.ReLU(), nn.Tanh()), "2 is a second activation"),
        (
            lambda: sequential(conv(), nn.MaxPool2d(2), nn.ReLU(), conv(4)),
            "2 activates after the pooling MaxPool2d, not before it",
        ),
        (lambda: sequential(conv(), nn.AvgPool2d(2)), "1 pools after the last layer"),
        (
            lambda: sequential(nn.AvgPool2d(2)),
            "the network pools after the last|no linear or convolutional layer",
        ),
        (lambda: sequential(nn.Flatten()), "no linear or convolutional layer"),
    ],
)
def test_what_is_no_chain_is_refused_with_where_and_why(make, message):
    with pytest.raises(UsageError, match=f'{message}.*variant="local", which reverses each layer separately'):
        chain_of(make(), images())


def planned(stages: list[Mapping[str, Any]]) -> nn.Module:
    network = nn.Sequential(conv(), nn.ReLU(), nn.AvgPool2d(2), conv(4), nn.Tanh())
    network.reverse_plan = lambda: stages  # type: ignore[assignment]
    return network


GOOD = {"linear": "0", "act": "1"}, {"linear": "3", "act": "4", "pool": "2"}


def test_a_plan_of_ones_own_is_taken():
    assert linears(chain_of(planned([*GOOD]), images(8))) == ["0", "3"]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "names no stage"),
        ([{"linear": "conv1"}], "names 'conv1', which is not a module of it or is not called"),
        ([{"linear": "0"}, GOOD[1]], "differs from its 2 stages"),
        ([GOOD[0], {"linear": "3", "act": "1", "pool": "2"}], "differs from its 2 stages"),
        ([GOOD[0], {"linear": "3", "act": "4"}], "has stages that do not follow one another"),
        ([GOOD[1]], "has stages that do not follow one another"),
    ],
)
def test_a_plan_that_is_wrong_is_refused(stages, message):
    with pytest.raises(UsageError, match=message):
        chain_of(planned(stages), images(8))
