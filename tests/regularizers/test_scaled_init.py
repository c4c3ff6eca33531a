"""Scaled initial weights: deviations by hand, orthogonality, single layers, and what a run says about them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from small import data_set, quick
from torch import nn

import compatkit as ck
from compatkit.errors import PluginError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.regularizers._called_layers import CalledLayer
from compatkit_plugins.regularizers._initial_weights import draw
from compatkit_plugins.regularizers.scaled_init import ScaledInit

CNN = {"convolutions": 2, "filters": 24, "units": 64, "img_size": 12}


def start(**settings: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Return the weights of the first step, and the report."""
    task = ck.Task("a", data_set("a"), "simple_cnn", "blocks.1", size=12, kwargs=CNN)
    fit = quick(steps=0).fit([task], [ck.use("scaled_init", **settings)])
    return fit.weights("a"), fit.run["pretraining"]["plugins"]["scaled_init"]["a"]


@pytest.mark.parametrize(("scale", "variance"), [(1.0, 2.0), (0.5, 0.5)])
def test_he_weights_have_variance_two_by_fan_in_times_the_scale_squared(
    scale: float, variance: float
) -> None:
    weights, norms = start(scale=scale)
    for name, fan_in in (("blocks.1.conv", 24 * 9), ("dense", 24 * 144), ("fc", 64)):
        weight = weights[f"{name}.weight"]
        # the deviation of a sample variance of n normal numbers is sqrt(2 / n) of it
        spread = math.sqrt(2 / weight.numel())
        assert float(weight.square().mean()) * fan_in == pytest.approx(variance, rel=4 * spread)
        assert norms[name] == pytest.approx(float(weight.double().norm()), rel=1e-12)
        assert not weights[f"{name}.bias"].any()


def test_orthogonal_weights_preserve_lengths_times_the_scale() -> None:
    weight = start(scheme="orthogonal", scale=0.5)[0]["blocks.1.conv.weight"].flatten(1)
    torch.testing.assert_close(weight @ weight.T, 0.25 * torch.eye(24), atol=1e-5, rtol=0)


def test_glorot_weights_fill_their_interval() -> None:
    weight = start(scheme="glorot")[0]["dense.weight"]
    bound = math.sqrt(6 / (24 * 144 + 64))
    assert 0.99 * bound < float(weight.abs().max()) <= bound


def test_glorot_counts_the_outputs_of_an_input_s_own_group() -> None:
    layer = nn.Conv2d(8, 16, 3, groups=4)
    draw(CalledLayer("conv", layer, False, ()), "glorot", 1.0, {}, torch.Generator().manual_seed(0))
    # 2 channels and 4 filters of 3x3 a group: sqrt(6 / (18 + 36))
    assert 0.97 / 3 < float(layer.weight.detach().abs().max()) <= 1 / 3


def test_a_factor_of_one_layer_changes_that_layer_alone() -> None:
    plain, scaled = start()[0], start(layers={"blocks.0.*": 0.1})[0]
    for name, value in plain.items():
        factor = 0.1 if name == "blocks.0.conv.weight" else 1.0
        torch.testing.assert_close(scaled[name], factor * value)


def test_another_seed_draws_other_weights_and_contracts_know_it() -> None:
    task = ck.Task("a", data_set("a"), "simple_cnn", "blocks.1", size=12, kwargs=CNN)
    first, same, other = (
        quick(steps=0, seed=seed).fit([task], ["scaled_init"]).tasks["a"].initial for seed in (0, 0, 1)
    )
    assert first == same != other


def test_normalization_and_shortcuts_do_not_matter() -> None:
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)
    fit = quick(steps=1).fit([task], [ck.use("scaled_init", scale=2.0)])
    assert len(fit.run["pretraining"]["plugins"]["scaled_init"]["a"]) == 8


@pytest.mark.parametrize(
    "settings",
    [
        {"scheme": "uniform"},
        {"scale": 0.0},
        {"scale": math.inf},
        {"layers": {"conv9": 0.1}},
        {"layers": {"dense": -1.0}},
        {"layers": ["dense"]},
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(PluginError) as caught:
        start(**settings)
    assert caught.value.code == "plugin"


def test_it_keeps_the_rules_of_plugins() -> None:
    assert_regularizer(ScaledInit, scale=0.5)
