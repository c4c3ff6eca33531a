"""Activations: what layers give as arrays in memory or in files, which images they belong to, every refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import compatkit as ck
from compatkit.errors import DataError, UnknownName, UsageError


def network(seed: int = 0) -> nn.Sequential:
    """Return a network with an activation that overwrites what the layer before it gave."""
    torch.manual_seed(seed)
    made = nn.Sequential()
    made.add_module("conv", nn.Conv2d(3, 4, 3, padding=1))
    made.add_module("act", nn.ReLU(inplace=True))
    made.add_module("flat", nn.Flatten())
    made.add_module("fc", nn.Linear(4 * 6 * 6, 5))
    return made


IMAGES = torch.rand(23, 3, 6, 6, generator=torch.Generator().manual_seed(3))
DATA = IMAGES, torch.zeros(23, dtype=torch.int64)


@pytest.mark.parametrize("how", ["all", "pooled", "positions"])
def test_rows_are_what_the_layers_gave(how: str) -> None:
    model = network()
    with torch.no_grad():
        before = model.get_submodule("conv")(IMAGES)
        after = before.relu()
        logits = model.get_submodule("fc")(after.flatten(1))
    shaped: dict[str, Callable[[Any], Any]] = {
        "all": lambda one: one.flatten(1),
        "pooled": lambda one: one.mean((2, 3)),
        "positions": lambda one: one.permute(0, 2, 3, 1).flatten(0, 2),
    }
    result = ck.activations(model, DATA, layers=["[ca]*", "fc"], flatten=how, batch_size=5)
    assert list(result) == ["conv", "act", "fc"]
    np.testing.assert_allclose(result["conv"], shaped[how](before), atol=1e-6)
    np.testing.assert_allclose(result["act"], shaped[how](after), atol=1e-6)
    np.testing.assert_allclose(result["fc"], logits, atol=1e-6)
    assert result.positions.tolist() == list(range(23)) and result.settings["flatten"] == how


def test_the_order_of_the_images_is_told() -> None:
    plain, mixed = (ck.activations(network(), DATA, layers=["fc"], seed=seed) for seed in (None, 4))
    assert sorted(mixed.positions.tolist()) == plain.positions.tolist()
    assert mixed.order != plain.order == ck.activations(network(1), DATA, layers=["act"], batch_size=7).order
    np.testing.assert_allclose(mixed["fc"], plain["fc"][mixed.positions], atol=1e-6)


@pytest.mark.parametrize("how", ["all", "positions"])
def test_shuffled_rows_keep_images_together(how: str) -> None:
    plain = ck.activations(network(), DATA, layers=["conv"], flatten=how)
    mixed = plain.shuffled(seed=2)
    order = np.random.default_rng(2).permutation(23)
    images = [one["conv"].reshape(23, -1) for one in (plain, mixed)]
    np.testing.assert_array_equal(images[1], images[0][order])
    assert mixed.order == plain.order and mixed.settings["shuffled"] == 2


def test_refusals() -> None:
    model = network()
    with pytest.raises(UnknownName) as unknown:
        ck.activations(model, DATA, layers=["fcc"])
    assert unknown.value.subject == "fcc"
    with pytest.raises(UnknownName) as missing:
        ck.activations(model, DATA, layers=["fc"])["conv"]
    assert missing.value.subject == "conv"
    with pytest.raises(UsageError) as how:
        ck.activations(model, DATA, layers=["fc"], flatten="mean")
    assert how.value.subject == "flatten"
    with torch.no_grad():
        model.get_submodule("fc").weight[0, 0] = torch.nan  # type: ignore[index]
    with pytest.raises(DataError) as nan:
        ck.activations(model, DATA, layers=["fc"])
    assert nan.value.subject == "fc"
