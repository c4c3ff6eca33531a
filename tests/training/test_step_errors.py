"""Errors of torch in a step are explained where their cause is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small import data_set, quick
from torch import Tensor, nn

import compatkit as ck
from compatkit.adapters.builders import BUILDERS, Builder
from compatkit.errors import TrainingError


class Follows(nn.Module):
    """Follows the mean of its input, in float32 whatever comes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean((0, 2, 3)), 0.1)
        return x


@pytest.fixture(autouse=True)
def following(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(model: str, *, in_chans: int = 3, num_classes: int = 4) -> nn.Module:
        network = nn.Sequential()
        network.add_module("first", nn.Conv2d(in_chans, 6, 3))
        network.add_module("follows", Follows())
        network.add_module("pool", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
        network.add_module("fc", nn.Linear(6, num_classes))
        network.pretrained_cfg = {"input_size": (in_chans, 8, 8), "classifier": "fc"}  # type: ignore[assignment]
        return network

    monkeypatch.setitem(BUILDERS, "following", Builder(create, lambda: "following 1.0"))


def fit(precision: Any) -> ck.Fit:
    task = ck.Task("a", data_set("a"), "any", "first", builder="following", size=8)
    return quick(steps=2, precision=precision).fit([task])


def test_a_module_that_cannot_run_in_a_precision_is_named() -> None:
    with pytest.raises(TrainingError, match="precision='float32'") as caught:
        fit("bf16")
    assert caught.value.subject == "follows"
    assert fit("float32").history["a/task"].size
