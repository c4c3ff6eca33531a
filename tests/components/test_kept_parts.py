"""A part that is kept comes back: it is rebuilt and asked before anything is written, whatever its seam."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick
from torch import Tensor, nn

import compatkit as ck
from compatkit.adapters.builders import BUILDERS, Builder
from compatkit.adapters.cutting.sideeffects import copied
from compatkit.adapters.fingerprint import observe
from compatkit.components.splitting import publish_split, split
from compatkit.contracts.contract import Scaled
from compatkit.errors import CutError


class Small(nn.Module):
    """Two convolutions; subclasses bend what lies between them."""

    def __init__(self, in_chans: int = 3, num_classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_chans, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.fc = nn.Linear(6, num_classes)
        self.pretrained_cfg = {"input_size": (in_chans, 8, 8), "classifier": "fc"}

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.second(self.first(x)).mean((2, 3)))


class Folded(Small):
    """Four windows of each image are folded into the batch."""

    def forward(self, x: Tensor) -> Tensor:
        windows = self.second(self.first(x).reshape(-1, 6, 4, 4)).mean((2, 3))
        return self.fc(windows.reshape(-1, 4, 6).mean(1))


class Draws(Small):
    """Draws random numbers in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(self.second(self.first(x)), 0.3, True)
        return self.fc(x.mean((2, 3)))


class Shift(nn.Module):
    """Adds a number that is drawn when it is built and is in no state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.by = float(torch.rand(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


class Always(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.3, True)


class Hidden(Small):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shift = Shift()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.shift(self.second(self.first(x))).mean((2, 3)))


class Normed(Small):
    """Its weights are computed in each pass, by hooks that assign them."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with warnings.catch_warnings(action="ignore"):  # torch deprecates it; networks that have it remain
            nn.utils.weight_norm(self.first)
        nn.utils.spectral_norm(self.second)


@pytest.fixture(autouse=True)
def bent(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = {item.__name__.lower(): item for item in (Small, Folded, Draws, Hidden, Normed)}

    def create(model: str, **kwargs: Any) -> nn.Module:
        return networks[model](**kwargs)

    monkeypatch.setitem(BUILDERS, "bent", Builder(create, lambda: "bent 1.0"))


@pytest.fixture
def registry(tmp_path: Path) -> ck.Registry:
    return ck.Registry.init(tmp_path / "parts")


def test_a_head_whose_input_folds_several_images_into_one_axis_is_loaded_again(registry: ck.Registry) -> None:
    parts = split("folded", "second", builder="bent")
    (port,) = parts["head"].contract.structural.inputs
    assert port.shape[0] == Scaled("N", times=4)
    published = publish_split(registry.store, parts, "zoo/folded")
    for side, part in parts.items():
        registry.load(published[side])
        honest = registry.store.manifest(published[side])
        registry.publish(honest, f"again.{side}", state=part.module.state_dict())


def test_parts_whose_weights_are_computed_in_each_pass_are_trained_published_and_loaded(
    registry: ck.Registry,
) -> None:
    task = ck.Task("a", data_set("a"), "normed", "first", builder="bent", size=8)
    fit = quick(steps=3, ema=0.9).fit([task])
    for name, made in (("now", fit), ("mean", fit.averaged())):
        parts = registry.publish(made, prefix=name)
        images = torch.rand(4, 1, 8, 8)
        expected = copied(made.network("a")).to(memory_format=torch.contiguous_format).eval()(images)  # type: ignore[call-overload]
        network = nn.Sequential(*(registry.load(parts[f"a.{side}"]) for side in ("extractor", "head")))
        assert torch.equal(network.eval()(images), expected)


@pytest.mark.parametrize(
    ("model", "cut", "message"),
    [
        ("draws", "first", "The head of draws at 'first' gives random outputs in eval mode"),
        (
            "hidden",
            "first",
            "The head of hidden at 'first', rebuilt .* outside its state dict .'shift.by'",
        ),
    ],
)
def test_a_part_that_would_not_come_back_is_refused_when_it_is_cut(
    model: str, cut: str, message: str
) -> None:
    with pytest.raises(CutError, match=message):
        split(model, cut, builder="bent", seed=1)


def test_a_part_that_was_changed_after_it_was_cut_is_refused_before_anything_is_written(
    registry: ck.Registry,
) -> None:
    parts = split("small", "first", builder="bent")
    with torch.no_grad():
        parts["head"].module.get_parameter("fc.weight").mul_(2)
    with pytest.raises(CutError, match="was changed after its contract was derived"):
        publish_split(registry.store, parts, "zoo/small")
    assert registry.store.names() == []


@pytest.mark.parametrize(
    ("model", "message"),
    [("draws", "the head gives random outputs"), ("hidden", "outside its state dict .'shift.by'")],
)
def test_a_run_with_such_a_part_never_begins(model: str, message: str) -> None:
    task = ck.Task("left", data_set("left"), model, "first", size=(8, 8), builder="bent")
    with pytest.raises(CutError, match=message) as caught:
        quick(steps=1).fit([task])
    assert caught.value.code == "cut"


def test_the_probe_does_not_depend_on_the_global_random_state() -> None:
    module = nn.Sequential(nn.Conv2d(3, 6, 3), Always())
    before = torch.get_rng_state()
    first = observe(module, (2, 3, 8, 8)).probe
    torch.rand(5)
    assert observe(module, (2, 3, 8, 8)).probe == first
    torch.set_rng_state(before)
    assert observe(module, (2, 3, 8, 8), seed=1).probe != first
    assert torch.equal(torch.get_rng_state(), before)
