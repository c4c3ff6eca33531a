"""The transpose of every kind of layer: <Mx, y> = <x, M'y>, alone and in networks of every family of timm."""

from __future__ import annotations

import copy
import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers import CondConv2d, Conv2dSame, ScaledStdConv2d, ScaledStdConv2dSame, StdConv2d, StdConv2dSame
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from compatkit.adapters.builders import create
from compatkit.errors import UsageError
from compatkit_plugins.regularizers.reverse_pass.adjoint import (
    LINEAR,
    adjoint,
    refusal,
    without_bias,
    written_out,
)

CLOSE = 1e-5
"""The difference of the two products, as a share of the product of the norms."""


def apart(layer: nn.Module, taken: Tensor, inputs: Tensor, seed: int = 0) -> float:
    """Return |<Mx, y> - <x, M'y>| / |Mx| |y|; for what a layer took and gave."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randn(inputs.shape, generator=draw, dtype=torch.float64).to(inputs.dtype)
    mapped, back = without_bias(layer, inputs), adjoint(layer, taken, y)
    assert back.shape == taken.shape
    products = (mapped.double() * y.double()).sum() - (taken.double() * back.double()).sum()
    return float((products.abs() / (mapped.double().norm() * y.double().norm()).clamp(min=1e-30)).detach())


def conv(**settings: Any) -> nn.Module:
    return nn.Conv2d(4, 6, **{"kernel_size": 3, "padding": 1, **settings})


KINDS: dict[str, tuple[nn.Module, tuple[int, ...], bool]] = {
    "dense": (nn.Linear(5, 7), (3, 5), True),
    "dense on tokens": (nn.Linear(5, 7), (2, 4, 5), True),
    "dense on maps": (nn.Linear(5, 7, bias=False), (2, 3, 4, 5), True),
    "strided": (conv(stride=2), (2, 4, 9, 8), True),
    "strided beyond the kernel": (conv(kernel_size=1, stride=3, padding=0), (2, 4, 9, 8), True),
    "uneven": (conv(kernel_size=(3, 5), stride=(2, 3), padding=(0, 2), dilation=(2, 1)), (2, 4, 9, 11), True),
    "grouped": (conv(groups=2), (2, 4, 6, 6), True),
    "depthwise": (nn.Conv2d(4, 8, 3, 2, 1, groups=4), (2, 4, 7, 6), True),
    "dilated": (conv(dilation=2, stride=2), (2, 4, 9, 8), True),
    "same": (conv(padding="same"), (2, 4, 6, 6), True),
    "same, uneven": (conv(kernel_size=(4, 3), padding="same", dilation=(1, 2)), (2, 4, 7, 6), True),
    "valid": (conv(padding="valid", bias=False), (2, 4, 6, 6), True),
    "reflected": (conv(padding_mode="reflect", stride=2), (2, 4, 9, 8), False),
    "circular": (conv(padding_mode="circular"), (2, 4, 6, 6), False),
    "replicated": (conv(padding_mode="replicate", groups=2), (2, 4, 6, 6), False),
    "in 1 dimension": (nn.Conv1d(3, 4, 5, 2, 2), (2, 3, 11), True),
    "in 3 dimensions": (nn.Conv3d(2, 3, 3, 2, 1), (2, 2, 5, 6, 7), True),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2), (2, 4, 5, 6), True),
    "transposed, padded beyond the stride": (
        nn.ConvTranspose2d(4, 6, 3, 1, output_padding=1, dilation=2),
        (2, 4, 5, 6),
        True,
    ),
    "transposed in 1 dimension": (nn.ConvTranspose1d(3, 4, 4, 2, 1), (2, 3, 6), True),
    "Conv2dSame": (Conv2dSame(4, 6, 3, stride=2), (2, 4, 10, 9), False),
    "StdConv2d": (StdConv2d(4, 6, 3, stride=2), (2, 4, 9, 8), False),
    "StdConv2dSame": (StdConv2dSame(4, 6, 3, stride=2), (2, 4, 10, 9), False),
    "ScaledStdConv2d": (ScaledStdConv2d(4, 6, 3, bias=True), (2, 4, 9, 8), False),
    "ScaledStdConv2dSame": (ScaledStdConv2dSame(4, 6, 3, stride=2), (2, 4, 10, 9), False),
    "weight norm": (weight_norm(conv(stride=2)), (2, 4, 9, 8), True),
    "spectral norm": (spectral_norm(nn.Linear(5, 7)), (3, 5), True),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("kind", KINDS)
def test_products_agree_and_gradients_are_those_of_the_layer(kind: str) -> None:
    layer, shape, out = KINDS[kind]
    layer = layer.double().train()
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert refusal(layer) is None
    assert written_out(layer) is out
    inputs = layer(x)
    assert apart(layer, x, inputs) < 1e-12
    y = torch.randn(
        inputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True
    )
    leaves = [y, *(entry for name, entry in layer.named_parameters() if "bias" not in name)]
    got = torch.autograd.grad(adjoint(layer, x, y).pow(3).sum(), leaves)
    layer.eval()  # spectral normalization goes on in every call in train mode
    z = x.clone().requires_grad_()
    (slow,) = torch.autograd.grad(layer(z), z, y, create_graph=True)
    for entry, other in zip(got, torch.autograd.grad(slow.pow(3).sum(), leaves), strict=True):
        torch.testing.assert_close(entry, other, rtol=1e-9, atol=1e-9)


def test_layers_keep_their_mode_and_their_buffers() -> None:
    layer = spectral_norm(nn.Conv2d(3, 4, 3)).train()
    x = torch.randn(2, 3, 5, 5)
    y = layer(x)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    adjoint(layer, x, y)
    assert refusal(layer) is None
    assert all(module.training for module in layer.modules())
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


def test_memory_stays_channels_last() -> None:
    layer = nn.Conv2d(4, 8, 3, padding=1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 4, 6, 6).contiguous(memory_format=torch.channels_last)
    assert adjoint(layer, x, layer(x)).is_contiguous(memory_format=torch.channels_last)


class Squares(nn.Conv2d):
    """No linear map."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).square()


class Shifts(nn.Linear):
    """Affine, but not by its bias."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


class Asks(nn.Linear):
    """Takes two arguments."""

    def forward(self, input: Tensor, other: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input) * other


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (CondConv2d(3, 4, 3), "it is a CondConv2d, which has no transpose here"),
        (nn.Embedding(3, 4), "it is an Embedding, which has no transpose here"),
        (Squares(3, 4, 3), "a Squares is not affine in its input"),
        (Shifts(3, 4), "what a Shifts gives for zeros is not its bias"),
        (Asks(3, 4), "an Asks does not take a tensor alone"),
    ],
)
def test_what_has_no_transpose_is_refused_by_name(layer: nn.Module, message: str) -> None:
    assert message in str(refusal(layer))


def test_a_layer_of_another_kind_is_no_silent_answer() -> None:
    with pytest.raises(
        UsageError, match="A LayerNorm has no transpose here; expected a dense layer or convolution"
    ):
        adjoint(nn.LayerNorm(3), torch.zeros(1, 3), torch.zeros(1, 3))


@contextmanager
def compared(network: nn.Module, result: dict[str, float], refused: dict[str, str]) -> Iterator[None]:
    """Compare the products of every layer in the moment of its call, before anything writes over them."""

    def compare(name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        if name not in result and name not in refused:
            if (why := refusal(layer)) is not None:
                refused[name] = why
            else:
                result[name] = apart(layer, inputs[0], output)
            if name in result and not result[name] <= CLOSE:  # a large bias cancels in float32
                exact, taken = copy.deepcopy(layer).double(), inputs[0].double()
                result[name] = apart(exact, taken, exact.forward(taken))

    hooks = [
        layer.register_forward_hook(
            lambda layer, inputs, output, name=name: compare(name, layer, inputs, output)
        )
        for name, layer in network.named_modules()
        if isinstance(layer, LINEAR)
    ]
    try:
        with torch.no_grad():
            yield
    finally:
        for hook in hooks:
            hook.remove()


def examined(model: str, **kwargs: Any) -> tuple[dict[str, float], dict[str, str]]:
    result: dict[str, float] = {}
    refused: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = create("timm", model, kwargs).eval()
        size = network.pretrained_cfg["input_size"]
        side = kwargs.get("img_size", size[-1])
        images = torch.randn(1, size[0], side, side, generator=torch.Generator().manual_seed(0))
        with compared(network, result, refused):
            network(images)
    return result, refused


@pytest.mark.parametrize(
    "model", ["test_resnet", "test_vit", "test_nfnet", "test_convnext", "test_efficientnet", "test_byobnet"]
)
def test_every_layer_of_a_sample_of_networks(model: str) -> None:
    result, refused = examined(model)
    assert not refused
    assert {name: match for name, match in result.items() if not match <= CLOSE} == {}


def zoo() -> dict[str, str]:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "zoo.py"
    spec = importlib.util.spec_from_file_location("zoo_of_adjoints", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SMALLEST


REFUSED: dict[str, set[str]] = {}
"""By family of timm, the kinds of layers that cannot be reversed: all others can."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("family", "model"), zoo().items())
def test_every_layer_of_every_family(family: str, model: str) -> None:
    result, refused = examined(model)
    assert result
    assert {name: match for name, match in result.items() if not match <= CLOSE} == {}
    assert set(refused.values()) == REFUSED.get(family, set())
