"""Steps captured as CUDA graphs: they compute what eager ones do, and nobody waits for the device between rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick
from torch import nn

import compatkit as ck
from compatkit.errors import PluginError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ALL = ["identical_init", "dcc", "rotation_prediction"]
ON_GPU: dict[str, Any] = {"device": "cuda", "optimizer": "sgd", "schedule": "cosine", "deterministic": True}


def tasks() -> list[ck.Task]:
    """Two small tasks with the same classes and other images."""
    return [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16), augment=("crop",))
        for seed, name in enumerate(("left", "right"))
    ]


def weights(fit: ck.Fit) -> dict[str, torch.Tensor]:
    """All that was trained, by name."""
    return {f"{name}/{key}": value for name in fit.tasks for key, value in fit.weights(name).items()}


@pytest.mark.parametrize("mode", ["graph", "compile", "compile+graph"])
@pytest.mark.parametrize(
    "settings", [{}, {"accumulate": 2, "clip_norm": 1.0, "ema": 0.9}], ids=["plain", "all"]
)
def test_a_run_is_the_eager_one_to_rounding(mode: Any, settings: dict[str, Any]) -> None:
    """The learning rate changes at every step, which a captured one must notice."""
    eager = quick(steps=6, **ON_GPU, execution="eager", **settings).fit(tasks(), ALL)
    other = quick(steps=6, **ON_GPU, execution=mode, **settings).fit(tasks(), ALL)
    assert other.run["environment"]["execution"] == {"mode": mode, "reason": "asked for"}
    for name, value in weights(eager).items():
        torch.testing.assert_close(weights(other)[name], value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("mode", ["graph", "compile+graph"])
def test_other_self_supervised_tasks_are_captured_too(mode: Any) -> None:
    task = ck.Task("a", data_set("a", channels=3), "resnet8_cifar", "layer2", size=16, augment=("crop",))
    uses = ["jigsaw", ck.use("colorization", cells=2)]
    eager = quick(steps=4, **ON_GPU, execution="eager").fit([task], uses)
    other = quick(steps=4, **ON_GPU, execution=mode).fit([task], uses)
    assert other.run["environment"]["execution"] == {"mode": mode, "reason": "asked for"}
    assert other.run["environment"]["passes"] == {"a": "fused"}
    for name, value in weights(eager).items():
        torch.testing.assert_close(weights(other)[name], value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_run_that_is_killed_goes_on_bit_by_bit(tmp_path: Path, mode: Any) -> None:
    whole = quick(steps=6, **ON_GPU, execution=mode).fit(tasks(), ALL)

    class Kill:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if step.number == 3 and not resumed:
                raise KeyboardInterrupt

    resumed: list[bool] = []
    trainer = quick(steps=6, **ON_GPU, execution=mode, checkpoint=tmp_path / "run", checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(tasks(), [*ALL, "kill"], factories={"kill": Kill})
    resumed.append(True)
    ended = trainer.fit(tasks(), [*ALL, "kill"], factories={"kill": Kill})
    assert all(torch.equal(value, weights(ended)[name]) for name, value in weights(whole).items())


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_no_captured_step_waits_for_the_device(mode: Any) -> None:
    class Watch:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            torch.cuda.set_sync_debug_mode("error" if 0 < step.number < 28 else "default")

    try:
        quick(steps=30, log_every=30, **ON_GPU, execution=mode).fit(
            tasks(), [*ALL, "watch"], factories={"watch": Watch}
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_losses_that_a_plugin_keeps_are_not_overwritten_and_cost_no_wait(mode: Any) -> None:
    saved: list[dict[str, torch.Tensor]] = []

    class Listens:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            saved.append(step.losses)
            torch.cuda.set_sync_debug_mode("error" if 0 < step.number < 8 else "default")

    try:
        fit = quick(steps=10, log_every=10, **ON_GPU, execution=mode).fit(
            tasks(), [*ALL, "listens"], factories={"listens": Listens}
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for place, row in enumerate(fit.history):
        for name, mean in row["losses"].items():
            values = [float(number[name]) for number in saved[place::2]]
            assert sum(values) / 10 == pytest.approx(mean, rel=1e-5) and len(set(values)) > 1


class Projects:
    """Trains a layer of its own, or one that nobody owns."""

    owned = True

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        layer = nn.Linear(32, 2)
        self.layer = setup.own("layer", layer) if self.owned else layer.cuda()
        self.before = self.layer.weight.detach().clone()

    @ck.hookimpl
    @ck.effect("pure")
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
        return {"pull": (self.layer(step.features.mean((2, 3))) - 1).square().mean()}  # type: ignore[union-attr]

    @ck.hookimpl
    def compatkit_finish(self, setup: ck.SetUp) -> None:
        assert self.layer.weight.is_cuda and not torch.equal(self.layer.weight, self.before)


@pytest.mark.parametrize("mode", ["eager", "graph", "compile+graph"])
def test_a_module_of_a_plugin_is_trained_or_refused_in_every_mode(mode: Any) -> None:
    trainer = quick(steps=4, **ON_GPU, execution=mode)
    fit = trainer.fit(tasks(), ["mine"], factories={"mine": Projects})
    assert fit.run["environment"]["execution"]["mode"] == mode
    with pytest.raises(PluginError, match=r"'layer\.weight'") as caught:
        trainer.fit(tasks(), ["mine"], factories={"mine": type("Unowned", (Projects,), {"owned": False})})
    assert caught.value.subject == "mine"


def test_a_trial_chooses_and_leaves_no_trace() -> None:
    plain = quick(steps=4, **{**ON_GPU, "deterministic": False}, execution="eager").fit(tasks(), ALL)
    tried = quick(steps=4, **{**ON_GPU, "deterministic": False}).fit(tasks(), ALL)
    assert "in a trial of 20 steps" in tried.run["environment"]["execution"]["reason"]
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(tried)[name], value, rtol=1e-3, atol=1e-4, msg=name)
