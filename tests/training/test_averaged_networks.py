"""Averaged networks for plugins, and the mean teacher: its formula, its ramp-up, its controls and its resumption."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from published import factories, module
from small import data_set, quick, same_parts

import compatkit as ck
from compatkit.errors import PluginError, UsageError
from compatkit.training.testing import assert_regularizer

TEACHER = factories("mean_teacher")
METHOD = module("mean_teacher")
TASK = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)
IMAGES = torch.randn(6, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def test_the_loss_is_that_of_the_paper() -> None:
    student, teacher = np.random.default_rng(0).normal(size=(2, 5, 3))
    shares = [np.exp(logits) / np.exp(logits).sum(1, keepdims=True) for logits in (student, teacher)]
    expected = ((shares[0] - shares[1]) ** 2).sum(1).mean()
    assert float(METHOD.consistency(torch.tensor(student), torch.tensor(teacher))) == pytest.approx(
        expected, rel=1e-12
    )
    same = torch.tensor(student)
    assert float(METHOD.consistency(same, same)) == 0


def test_the_weight_rises_as_in_the_paper() -> None:
    assert METHOD.ramp_up(0, 10) == pytest.approx(math.exp(-5))
    assert METHOD.ramp_up(5, 10) == pytest.approx(math.exp(-1.25))
    assert METHOD.ramp_up(10, 10) == METHOD.ramp_up(99, 10) == METHOD.ramp_up(0, 0) == 1


def test_the_teacher_conforms_and_trains() -> None:
    assert_regularizer(TEACHER["mean_teacher"])
    fit = quick(steps=6, ema=0.9).fit(
        [TASK], [ck.use("mean_teacher", weight=10.0, ramp=0.0)], factories=TEACHER
    )
    plain = quick(steps=6, ema=0.9).fit([TASK])
    assert fit.history["a/mean_teacher/consistency"].min() > 0 and not same_parts(fit, plain)


def test_without_noise_the_first_step_has_no_distance_and_weight_0_is_no_plugin() -> None:
    uses = [ck.use("mean_teacher", noise=0.0, ramp=0.0)]
    settings: dict[str, Any] = {"steps": 3, "ema": 0.9, "device": "cpu"}
    fit = quick(**settings).fit([TASK], uses, factories=TEACHER)
    distances = fit.history["a/mean_teacher/consistency"]
    assert distances[0] == pytest.approx(0, abs=1e-9) and distances[-1] > 1e-9
    off = quick(**settings).fit([TASK], [ck.use("mean_teacher", weight=0.0)], factories=TEACHER)
    assert same_parts(off, quick(**settings).fit([TASK]))


def keeping(found: dict[str, Any], statistics: Any = "batch") -> dict[str, Callable[..., Any]]:
    """A plugin that runs the averaged network after each step and at the end, and keeps what it gave."""

    class Keeps:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.teacher = setup.averaged(setup.tasks["a"], statistics=statistics)
            assert "averaged" not in found or self.teacher is not found["averaged"]

        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            logits = self.teacher(IMAGES)
            assert not logits.requires_grad
            found[f"{step.task.name}{step.number}"] = logits

        @ck.hookimpl
        def compatkit_finish(self) -> None:
            found["end"] = self.teacher(IMAGES)

    return {"keeps": Keeps}


def test_it_is_the_network_of_the_fits_averages_and_changes_nothing() -> None:
    found: dict[str, Any] = {}
    settings: dict[str, Any] = {"steps": 3, "ema": 0.7}
    fit = quick(**settings).fit([TASK], ["keeps"], factories=keeping(found, "stored"))
    with torch.no_grad():
        expected = fit.averaged().network("a").eval()(IMAGES)
    assert torch.equal(found["end"], expected) and torch.equal(found["a2"], expected)
    plain = quick(**settings).fit([TASK])
    assert same_parts(fit, plain) and same_parts(fit.averaged(), plain.averaged())


def test_batch_statistics_are_those_of_the_images_that_are_passed() -> None:
    found: dict[str, Any] = {}
    fit = quick(steps=2, ema=0.7).fit([TASK], ["keeps"], factories=keeping(found))
    network = fit.averaged().network("a").train()
    with torch.no_grad():
        assert torch.allclose(found["a1"], network(IMAGES), atol=1e-6)
    assert same_parts(fit, quick(steps=2, ema=0.7).fit([TASK]))


def test_a_resumed_run_has_the_same_teacher(tmp_path: Path) -> None:
    class Interrupts(TEACHER["mean_teacher"]):  # type: ignore[misc]
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if step.number == 2:
                raise KeyboardInterrupt

    settings: dict[str, Any] = {"steps": 5, "ema": 0.8, "accumulate": 2}
    uses = [ck.use("mean_teacher", weight=5.0)]
    whole = quick(**settings).fit([TASK], uses, factories=TEACHER)
    kept = quick(**settings, checkpoint=tmp_path / "state.safetensors", checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        kept.fit([TASK], uses, factories={"mean_teacher": Interrupts})
    resumed = kept.fit([TASK], uses, factories=TEACHER)
    assert same_parts(resumed, whole) and same_parts(resumed.averaged(), whole.averaged())
    assert resumed.history == whole.history


def test_without_averages_it_is_refused() -> None:
    with pytest.raises(PluginError, match=r"Trainer\(ema=0.999\)") as caught:
        quick(steps=1).fit([TASK], ["mean_teacher"], factories=TEACHER)
    assert isinstance(caught.value.__cause__, UsageError) and caught.value.__cause__.subject == "ema"
    with pytest.raises(PluginError, match="statistics"):
        quick(steps=1, ema=0.5).fit([TASK], ["keeps"], factories=keeping({}, "running"))


def test_what_has_no_averages() -> None:
    class Early:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            setup.averaged(setup.tasks["a"])(IMAGES)

    with pytest.raises(PluginError, match="not in compatkit_set_up"):
        quick(steps=1, ema=0.5).fit([TASK], ["early"], factories={"early": Early})

    class Headless:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.teacher = setup.averaged(setup.tasks["a"])

        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> dict[str, Any]:
            features = self.teacher.extract(step.batch.images)
            self.teacher.classify(features)
            return {"size": step.features.square().mean()}

    with pytest.raises(PluginError, match="head of task 'a' does not run"):
        quick(steps=1, ema=0.5).fit(
            [attrs.evolve(TASK, own_head=False)], ["headless"], factories={"headless": Headless}
        )
