"""Networks that keep state where no part would: they work, or are refused before the first step, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import compatkit as ck
from compatkit.adapters.builders import BUILDERS, Builder
from compatkit.errors import CutError


class Layer(nn.Module):
    """A layer that keeps a state of some kind."""

    calls: Tensor
    bank: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.number, self.last = how, 0, None
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("bank", torch.zeros(1))
        if how in ("random buffer", "seeded"):
            self.register_buffer("noise", torch.rand(8, 1, 1), persistent=False)
        if how == "random tensor":
            self.noise = torch.rand(8, 1, 1)
        if how == "random number":
            self.noise = float(torch.rand(()))

    def forward(self, x: Tensor) -> Tensor:
        how = self.how
        if how == "assigned":
            self.calls = self.calls + 1
        elif how == "in place":
            self.calls.add_(1)
        elif how == "grows":
            self.bank = torch.cat([self.bank, x.detach().mean().view(1)])
        elif how == "resized":
            self.bank.resize_(len(self.bank) + 1)
        elif how == "added":
            self.register_buffer("more", torch.ones(1))
        elif how == "parameter":
            self.scale = nn.Parameter(torch.ones(1))
        elif how == "counter":
            self.number += 1
            return x * (1 + self.number)
        elif how == "memory":
            past = 0 if self.last is None else self.last
            self.last = x.detach().mean()
            return x + past
        elif how == "cache":
            self.last = x.detach().mean()
        return x + getattr(self, "noise", 0)


class Net(nn.Module):
    """A small network with such a layer, or with such a line in its own forward (``traced``)."""

    calls: Tensor
    bank: Tensor

    def __init__(self, how: str, in_chans: int, num_classes: int) -> None:
        super().__init__()
        where, _, how = how.partition("-")
        conv = nn.Conv2d(8, 8, 3, padding=1)
        self.how = how if where == "traced" else ""
        self.stem, self.bn = nn.Conv2d(in_chans, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.mid = {"weight norm": weight_norm, "spectral norm": spectral_norm}.get(how, lambda item: item)(
            conv
        )
        self.layer = Layer(how if where == "leaf" else "")
        self.pool, self.flat, self.fc = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("bank", torch.zeros(1))
        if how == "leaf hook":
            self.mid.register_forward_hook(lambda module, inputs, out: out * 2)
        if how == "root hook":
            self.register_forward_pre_hook(lambda module, arguments: (arguments[0] * 2,))
        if how == "lazy":
            self.mid = nn.LazyConv2d(8, 3, padding=1)
        self.pretrained_cfg = {"input_size": (in_chans, 12, 12), "classifier": "fc"}

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(self.mid(self.bn(self.stem(x)).relu()))
        if self.how == "assigned":
            self.calls = self.calls + 1
        elif self.how == "augmented":
            self.calls += 1
        elif self.how == "in place":
            self.calls.add_(1)
        elif self.how == "grows":
            self.bank = torch.cat([self.bank, x.detach().mean().view(1)])
        elif self.how == "added":
            self.register_buffer("more", torch.ones(1))
        return self.fc(self.flat(self.pool(x)))


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ck.Task]:
    def create(model: str, *, in_chans: int = 3, num_classes: int = 10, **kwargs: Any) -> nn.Module:
        return Net(model.replace("_", " "), in_chans, num_classes)

    monkeypatch.setitem(BUILDERS, "kept", Builder(create, lambda: "kept 1"))

    def made(how: str, cut: str = "mid") -> ck.Task:
        return ck.Task("a", data_set("a"), how.replace(" ", "_"), cut, size=12, builder="kept")

    return made


WORK = [
    "plain",
    "traced-in place",
    "leaf-in place",
    "leaf-cache",
    "x-weight norm",
    "x-spectral norm",
    "x-leaf hook",
]
REFUSED = {
    "traced-assigned": "calls",
    "traced-augmented": "calls",
    "traced-grows": "bank",
    "traced-added": "more",
    "leaf-assigned": "layer.calls",
    "leaf-grows": "layer.bank",
    "leaf-resized": "layer.bank",
    "leaf-added": "layer.more",
    "leaf-parameter": "layer.scale",
    "leaf-counter": "layer.number",
    "leaf-memory": "layer.last",
    "leaf-random buffer": "layer.noise",
    "leaf-random tensor": "layer.noise",
    "leaf-random number": "layer.noise",
    "x-lazy": "mid",
    "x-root hook": "x-root_hook",
}


@pytest.mark.parametrize("cut", ["bn", "mid", "layer"])
@pytest.mark.parametrize("how", REFUSED)
def test_state_that_no_part_keeps_is_refused_before_the_first_step(
    task: Callable[..., ck.Task], how: str, cut: str
) -> None:
    with pytest.raises(CutError) as caught:
        quick(steps=1).fit([task(how, cut)])
    assert caught.value.code == "cut" and caught.value.subject == REFUSED[how]


@pytest.mark.parametrize("how", WORK)
def test_what_is_kept_trains_publishes_and_loads(
    task: Callable[..., ck.Task], how: str, tmp_path: Path
) -> None:
    fit = quick(steps=2).fit([task(how)])
    registry = ck.Registry.init(tmp_path / "parts")
    registry.publish(fit, prefix="x")
    images = torch.randn(2, 1, 12, 12)
    with torch.no_grad():
        again = registry.load("x/a.head")(registry.load("x/a.extractor")(images))
        torch.testing.assert_close(again, fit.network("a").eval()(images), atol=1e-5, rtol=1e-5)
    if how.endswith("in place"):
        name = "calls" if how.startswith("traced") else "layer.calls"
        assert float(fit.weights("a")[name]) >= 2
