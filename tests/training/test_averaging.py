"""Moving averages: against timm's, in checkpoints, published like any other, and free where they are off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick, same_parts
from timm.utils.model_ema import ModelEmaV3

import compatkit as ck
from compatkit.errors import UsageError

STEPS = 4


def tasks() -> list[ck.Task]:
    return [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=16)
        for seed, name in enumerate(("left", "right"))
    ]


class Reference:
    """timm's averages of both networks and of the shared head, moved after each step."""

    def __init__(self, warmup: bool) -> None:
        self.made: dict[str, ModelEmaV3] = {}
        self.warmup = warmup

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        self.modules: dict[str, torch.nn.Module] = {
            name: torch.nn.ModuleList([state.extractor, state.head]) for name, state in setup.tasks.items()
        }
        self.modules["shared"] = setup.auxiliary["dcc"].module
        for name, module in self.modules.items():
            self.made[name] = ModelEmaV3(module, decay=0.7, use_warmup=self.warmup)

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        for name in (step.task.name, "shared"):
            self.made[name].update(self.modules[name], step=step.number + 1)


@pytest.mark.parametrize("warmup", [False, True])
def test_averages_are_those_of_timm_bit_for_bit(warmup: bool) -> None:
    reference = Reference(warmup)
    fit = quick(steps=STEPS, ema=0.7, ema_warmup=warmup).fit(
        tasks(), ["dcc", ck.use("timm", after=("dcc",))], factories={"timm": lambda: reference}
    )
    averaged = fit.averaged()
    for name in ("left", "right"):
        state = averaged.tasks[name]
        ours = torch.nn.ModuleList([state.extractor, state.head]).state_dict()
        theirs = reference.made[name].module.state_dict()
        assert all(torch.equal(value, theirs[key]) for key, value in ours.items())
        assert any(not torch.equal(v, fit.weights(name)[k]) for k, v in averaged.weights(name).items())
    head = averaged.auxiliary["dcc"]
    theirs = reference.made["shared"].module.state_dict()
    assert all(torch.equal(value, theirs[key]) for key, value in head.module.state_dict().items())
    assert {anchor.digest for anchor in averaged.tasks["left"].anchors} >= {head.digest}
    assert head.digest != fit.auxiliary["dcc"].digest


def test_averages_change_nothing_of_the_run_and_are_in_its_plan() -> None:
    plain, saved = quick(steps=2).fit(tasks(), ["dcc"]), quick(steps=2, ema=0.9).fit(tasks(), ["dcc"])
    assert same_parts(plain, saved) and plain.history == saved.history
    assert "ema" not in plain.run["trainer"] and saved.run["trainer"]["ema"] == 0.9
    assert plain.averages is None and "weights" not in saved.run
    with pytest.raises(UsageError, match=r"has no averages of its weights. Train with Trainer\(ema=0.999\)"):
        plain.averaged()


def test_a_resumed_run_has_the_same_averages(tmp_path: Path, killed: Callable[..., None]) -> None:
    settings: dict[str, Any] = {"steps": STEPS, "ema": 0.7, "ema_warmup": True}
    whole = quick(**settings).fit(tasks(), ["dcc"])
    trainer = quick(**settings, checkpoint=tmp_path / "run.safetensors", checkpoint_every=1)
    killed(trainer, tasks(), ["dcc"], after=2)
    assert same_parts(whole.averaged(), trainer.fit(tasks(), ["dcc"]).averaged())


def test_averages_are_published_like_any_other_fit(tmp_path: Path) -> None:
    fit = quick(steps=STEPS, ema=0.7).fit(tasks(), ["dcc"])
    registry = ck.Registry.init(tmp_path / "parts")
    registry.publish(fit, prefix="raw")
    averaged = fit.averaged()
    registry.publish(averaged, prefix="mean")
    training = registry.store.manifest("mean/left.head").training
    assert (
        training["weights"] == "averages"
        and "weights" not in registry.store.manifest("raw/left.head").training
    )
    loaded = registry.load("mean/left.extractor").state_dict()
    expected = averaged.tasks["left"].extractor.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in loaded.items())


@pytest.mark.parametrize("frozen", ["dcc"])
def test_frozen_heads_have_no_averages(frozen: str) -> None:
    left, right = tasks()
    first = quick(steps=1).fit([left], [frozen])
    second = quick(steps=2, ema=0.7).fit([right], [frozen], frozen=first).averaged()
    assert second.auxiliary[frozen].digest == first.auxiliary[frozen].digest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ema": 1.0}, "'ema' must be a number above 0 and below 1, or None; got 1.0"),
        ({"ema": 0}, "'ema' must be a number above 0 and below 1, or None; got 0"),
        ({"ema_warmup": True}, "needs ema, for example ema=0.999"),
    ],
)
def test_settings_that_make_no_averages(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        quick(steps=1, **settings)
