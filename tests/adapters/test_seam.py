"""Adapters against loops over positions in float64; what they refuse; how they are built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from compatkit.adapters.stitching.layers import ADAPTERS, build_adapter
from compatkit.contracts.contract import Blueprint
from compatkit.contracts.stitch import FITTED
from compatkit.errors import CutError, UnknownName, UsageError


def blueprint(model: str, **kwargs: Any) -> Blueprint:
    return Blueprint("adapter", "compatkit", model, kwargs, "", "adapter", "whole", (8, 8))


def run(model: str, features: Any, state: dict[str, Tensor] | None = None, **kwargs: Any) -> Any:
    return build_adapter(blueprint(model, **kwargs), state)(features)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_maps_and_tokens_hold_the_same_values_row_by_row() -> None:
    maps = drawn(2, 3, 4, 5)
    nhwc, tokens = (
        run("permute", maps, layout="NCHW", to="NHWC"),
        run("permute", maps, layout="NCHW", to="NLC"),
    )
    for row in range(4):
        for column in range(5):
            assert torch.equal(nhwc[:, row, column], maps[:, :, row, column])
            assert torch.equal(tokens[:, row * 5 + column], maps[:, :, row, column])
    assert torch.equal(run("permute", nhwc, layout="NHWC", to="NLC"), tokens)
    assert torch.equal(run("permute", nhwc, layout="NHWC", to="NCHW"), maps)
    assert torch.equal(run("permute", tokens, layout="NLC", to="NCHW", sides=[4, 5]), maps)
    assert torch.equal(run("permute", tokens, layout="NLC", to="NHWC", sides=[4, 5]), nhwc)
    square = drawn(2, 9, 3)
    assert torch.equal(run("permute", square, layout="NLC", to="NHWC"), square.reshape(2, 3, 3, 3))


def test_tokens_that_form_no_such_map_are_refused() -> None:
    with pytest.raises(UsageError, match="Expected 4x4 tokens, got 20"):
        run("permute", drawn(2, 20, 3), layout="NLC", to="NCHW")
    with pytest.raises(UsageError, match="Expected 3x5 tokens, got 20"):
        run("resize", drawn(2, 20, 3), layout="NLC", size=[2, 2], sides=[3, 5])


def test_pooling_is_the_mean_over_positions_without_class_and_register_tokens() -> None:
    maps, tokens = drawn(2, 3, 4, 5), drawn(2, 7, 3)
    mean = maps.double().numpy().mean(axis=(2, 3))
    for layout, features in (("NCHW", maps), ("NHWC", maps.permute(0, 2, 3, 1))):
        np.testing.assert_allclose(run("pool", features, layout=layout, to="NC"), mean, atol=1e-6)
    for to, shape in (("NCHW", (2, 3, 1, 1)), ("NHWC", (2, 1, 1, 3)), ("NLC", (2, 1, 3))):
        np.testing.assert_allclose(run("pool", maps, layout="NCHW", to=to), mean.reshape(shape), atol=1e-6)
    patches = tokens.double().numpy()[:, 2:].mean(axis=1)
    result = run("pool", tokens, layout="NLC", to="NC", prefix_tokens=2)
    np.testing.assert_allclose(result, patches, atol=1e-6)


def test_shrinking_by_whole_factors_is_the_average_of_blocks() -> None:
    maps = drawn(2, 3, 4, 6)
    expected = maps.double().numpy().reshape(2, 3, 2, 2, 2, 3).mean(axis=(3, 5))
    np.testing.assert_allclose(run("resize", maps, layout="NCHW", size=[2, 2]), expected, atol=1e-6)
    nhwc = run("resize", maps.permute(0, 2, 3, 1), layout="NHWC", size=[2, 2])
    np.testing.assert_allclose(nhwc, expected.transpose(0, 2, 3, 1), atol=1e-6)


def triangles(count: int, wanted: int) -> np.ndarray:
    """Rows of weights: a triangle around each new position, as wide as the step between positions (at least 1)."""
    step = count / wanted
    centers = (np.arange(wanted) + 0.5) * step
    distance = np.abs(np.arange(count)[None, :] + 0.5 - centers[:, None]) / max(step, 1.0)
    weights = np.maximum(0.0, 1.0 - distance)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("size", [(3, 5), (7, 4), (8, 12), (5, 3)])
def test_other_sizes_are_bilinear_with_antialiasing(size: tuple[int, int]) -> None:
    maps = drawn(2, 3, 4, 6)
    expected = triangles(4, size[0]) @ maps.double().numpy() @ triangles(6, size[1]).T
    result = run("resize", maps, layout="NCHW", size=list(size))
    np.testing.assert_allclose(result, expected, atol=1e-5)
    assert result.min() >= maps.min() and result.max() <= maps.max()


def test_resizing_tokens_moves_the_patches_and_keeps_what_stands_before() -> None:
    tokens = drawn(2, 2 + 24, 3)
    result = run("resize", tokens, layout="NLC", size=[2, 3], sides=[4, 6], prefix_tokens=2)
    maps = tokens[:, 2:].transpose(1, 2).reshape(2, 3, 4, 6)
    patches = run("resize", maps, layout="NCHW", size=[2, 3]).flatten(2).transpose(1, 2)
    assert torch.equal(result, torch.cat([tokens[:, :2], patches], dim=1))


def test_dropping_tokens_leaves_the_class_token_for_last() -> None:
    tokens = drawn(2, 7, 3)
    assert torch.equal(run("drop-tokens", tokens, keep=0, drop=3), tokens[:, 3:])
    assert torch.equal(run("drop-tokens", tokens, keep=1, drop=2), tokens[:, [0, 3, 4, 5, 6]])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NLC", "NC"])
def test_a_projection_is_linear_over_the_channels_of_each_position(layout: str) -> None:
    shape = {"NCHW": (2, 3, 4, 5), "NHWC": (2, 4, 5, 3), "NLC": (2, 6, 3), "NC": (2, 3)}[layout]
    features, weight, bias = drawn(*shape), drawn(4, 3), drawn(4)
    axis = 1 if layout in ("NCHW", "NC") else len(shape) - 1
    last = np.moveaxis(features.double().numpy(), axis, -1)
    expected = np.moveaxis(last @ weight.double().numpy().T + bias.double().numpy(), -1, axis)
    state = {"weight": weight, "bias": bias}
    plain = run("project", features, state, layout=layout, channels=[3, 4], nonnegative=False)
    np.testing.assert_allclose(plain.detach(), expected, atol=1e-5)
    clamped = run("project", features, state, layout=layout, channels=[3, 4], nonnegative=True)
    np.testing.assert_allclose(clamped.detach(), np.maximum(expected, 0), atol=1e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_projection_with_a_kernel_is_a_convolution_with_zeros_around_the_edges(layout: str) -> None:
    maps, state = drawn(2, 3, 5, 4), {"weight": drawn(4, 3, 3, 3), "bias": drawn(4)}
    inputs = maps if layout == "NCHW" else maps.permute(0, 2, 3, 1)
    result = run("project", inputs, state, layout=layout, channels=[3, 4], nonnegative=False, kernel=3)
    expected = torch.nn.functional.conv2d(maps, state["weight"], state["bias"], padding=1)
    torch.testing.assert_close(result if layout == "NCHW" else result.permute(0, 3, 1, 2), expected)
    for wrong, value in ((2, "NCHW"), (3, "NLC"), (3, "NC")):
        with pytest.raises(
            UsageError, match="kernel of a projection must be odd, and 1 unless the layout is a map"
        ):
            run("project", inputs, None, layout=value, channels=[3, 4], nonnegative=False, kernel=wrong)


def test_arithmetic_is_wide_and_the_dtype_stays() -> None:
    """A sum of 4096 ones in bfloat16 arithmetic ends at 256."""
    ones = torch.ones(1, 2, 64, 64, dtype=torch.bfloat16)
    for model, kwargs in (
        ("pool", {"layout": "NCHW", "to": "NC"}),
        ("resize", {"layout": "NCHW", "size": [1, 1]}),
        ("resize", {"layout": "NCHW", "size": [3, 3]}),
    ):
        result = run(model, ones, **kwargs)
        assert result.dtype == torch.bfloat16 and torch.equal(result, torch.ones_like(result))
    state = {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}
    assert (
        run("project", ones, state, layout="NCHW", channels=[2, 1], nonnegative=False).dtype == torch.bfloat16
    )
    assert run("pool", ones.double(), layout="NCHW", to="NC").dtype == torch.float64
    assert run("cast", ones, to="float32").dtype == torch.float32


def test_one_tensor_of_a_tuple_is_changed_and_the_others_pass() -> None:
    first, second = drawn(2, 3, 4, 4), drawn(2, 3, 4, 4)
    result = run("pool", (first, second), layout="NCHW", to="NC", port=1)
    assert result[0] is first and torch.equal(result[1], run("pool", second, layout="NCHW", to="NC"))
    with pytest.raises(UsageError, match="takes one tensor, got a tuple"):
        run("pool", (first, second), layout="NCHW", to="NC")


@pytest.mark.parametrize(
    ("model", "kwargs"),
    [
        ("permute", {"layout": "NCHW", "to": "NLC"}),
        ("pool", {"layout": "NCHW", "to": "NC"}),
        ("resize", {"layout": "NCHW", "size": [2, 2]}),
        ("drop-tokens", {"keep": 0, "drop": 1}),
    ],
)
def test_features_with_another_count_of_axes_are_refused(model: str, kwargs: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"{model} takes features .* got the shape \(2, 3\)"):
        run(model, drawn(2, 3), **kwargs)


def test_only_known_adapters_are_built() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'permute'"):
        build_adapter(blueprint("permut"))
    with pytest.raises(UnknownName, match="known are cast, drop-tokens"):
        build_adapter(blueprint("os.system"))


@pytest.mark.parametrize(
    ("model", "kwargs", "message"),
    [
        ("cast", {}, "missing a required argument: 'to'"),
        ("cast", {"to": "int64"}, "one of float16, bfloat16, float32, float64"),
        ("cast", {"to": "float32", "from": "x"}, "unexpected keyword argument 'from'"),
        ("drop-tokens", {"keep": 0, "drop": 0}, "'drop' must be a whole number from 1"),
        ("drop-tokens", {"keep": -1, "drop": 1}, "'keep' must be a whole number from 0"),
        ("permute", {"layout": "NC", "to": "NLC"}, "'layout' must be one of NCHW, NHWC, NLC"),
        ("permute", {"layout": ["NCHW"], "to": "NLC"}, "'layout' must be one of"),
        ("resize", {"layout": "NCHW", "size": [2]}, "two integers"),
        ("resize", {"layout": "NCHW", "size": "22"}, "two integers"),
        ("resize", {"layout": "NCHW", "size": [2, 0.5]}, "a whole number from 1"),
        ("pool", {"layout": "NCHW", "to": "CN"}, "'to' must be one of"),
        ("pool", {"layout": "NLC", "to": "NC", "port": -1}, "'port' must be a whole number from 0"),
        ("project", {"layout": "NCHW", "channels": [3, True], "nonnegative": False}, "a whole number from 1"),
    ],
)
def test_arguments_are_checked(model: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_adapter(blueprint(model, **kwargs))


def test_weights_are_loaded_strictly() -> None:
    made = blueprint("project", layout="NCHW", channels=[3, 4], nonnegative=False)
    with pytest.raises(UsageError, match="needs its fitted weights"):
        build_adapter(made)
    with pytest.raises(CutError, match="missing"):
        build_adapter(made, {"weight": torch.zeros(4, 3)})
    with pytest.raises(CutError, match="another shape"):
        build_adapter(made, {"weight": torch.zeros(3, 4), "bias": torch.zeros(4)})
    with pytest.raises(CutError, match="not known"):
        build_adapter(blueprint("cast", to="float32"), {"weight": torch.zeros(1)})


def test_an_adapter_without_weights_has_no_state_and_says_what_it_does() -> None:
    texts = {
        "cast": ({"to": "bfloat16"}, "Cast(dtype=torch.bfloat16)"),
        "drop-tokens": ({"keep": 1, "drop": 4}, "DropTokens(keep=1, drop=4)"),
        "pool": (
            {"layout": "NLC", "to": "NC", "prefix_tokens": 1},
            "Pool(layout=NLC, to_layout=NC, prefix_tokens=1)",
        ),
        "resize": ({"layout": "NHWC", "size": [2, 3]}, "Resize(layout=NHWC, size=(2, 3), prefix_tokens=0)"),
        "permute": ({"layout": "NLC", "to": "NCHW"}, "Permute(layout=NLC, to_layout=NCHW)"),
    }
    assert texts.keys() | FITTED == ADAPTERS.keys()
    for model, (kwargs, text) in texts.items():
        module = build_adapter(blueprint(model, **kwargs), {})
        assert repr(module) == text and not module.state_dict() and not module.training
