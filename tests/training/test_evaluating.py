"""Evaluation while a run trains: a share held out, figures against a plain pass, and a run that does not notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import data_set, quick, same_parts

import compatkit as ck
from compatkit.errors import TrainingError, UsageError
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.training.prepare import hold_out
from compatkit.training.progress import Bar

SETTINGS: dict[str, Any] = {"steps": 4, "validation": 0.25}


def tasks(**settings: Any) -> list[ck.Task]:
    return [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=16, **settings)
        for seed, name in enumerate(("left", "right"))
    ]


class TestShare:
    def test_it_is_of_every_class_and_no_step_sees_it(self) -> None:
        seen: set[int] = set()

        class Watch:
            @ck.hookimpl
            def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
                seen.update(batch.index.tolist())
                return batch

        fit = quick(**SETTINGS).fit(tasks(), ["watch"], factories={"watch": Watch})
        (saved, other), state = hold_out(tasks(), 0.25, 0)
        assert saved.data.train.counts == (12, 12, 12) and state["left"].counts == (4, 4, 4)
        whole = tasks()[0].data.train
        both = np.concatenate([saved.data.train.images, state["left"].images])
        assert sorted(member.tobytes() for member in both) == sorted(
            image.tobytes() for image in whole.images
        )
        assert max(seen) < 36 and saved.data.train.name == whole.name
        described = fit.run["tasks"][0]["data"]["digest"]
        assert described == saved.data.train.digest != whole.digest
        assert fit.run["trainer"]["validation"] == 0.25 and fit.tasks["left"].task.data.test is not None
        assert len(other.data.train) == 36

    def test_it_depends_on_seed_and_task_alone(self) -> None:
        first, again, other = (hold_out(tasks(), 0.25, seed)[1] for seed in (0, 0, 1))
        assert first["left"].digest == again["left"].digest != other["left"].digest
        alone = hold_out(tasks()[1:], 0.25, 0)[1]
        assert alone["right"].digest == first["right"].digest

    def test_small_classes_give_one_image_and_keep_one(self) -> None:
        data = data_set("few", count=48).train
        few = data.take([0, 1, 2, 3, 4, 6])  # classes 0 1 2 0 1 0
        task = ck.Task("few", ck.DataSet("few", few, data), "resnet8_cifar", "layer2", size=16)
        (saved,), state = hold_out([task], 0.9, 0)
        assert state["few"].counts == (2, 1, 0) and saved.data.train.counts == (1, 1, 1)

    def test_a_loader_has_none(self) -> None:
        batch = torch.zeros(8, 1, 16, 16), torch.arange(8) % 3
        with pytest.raises(UsageError, match="'left' has a loader, from which no images can be held out"):
            quick(**SETTINGS).fit(tasks(loader=[batch])[:1])


@pytest.mark.parametrize("on", ["validation", "test"])
def test_figures_are_those_of_a_plain_pass(on: str) -> None:
    fit = quick(**SETTINGS, evaluate_every=3, evaluate_on=on, ema=0.5).fit(tasks(), ["dcc"])
    assert [(row["task"], row["step"], row["weights"]) for row in fit.evaluations] == [
        (task, step, weights)
        for step in (3, 4)
        for task in ("left", "right")
        for weights in ("trained", "averages")
    ]
    content = hold_out(tasks(), 0.25, 0)[1]
    for row in fit.evaluations[-4:]:
        state = (fit if row["weights"] == "trained" else fit.averaged()).tasks[row["task"]]
        examples = prepare(content[row["task"]] if on == "validation" else state.task.data.test, state.data)
        with torch.no_grad():
            logits = state.head.eval()(state.extractor.eval()(normalize(examples.images, state.data)))
        assert row["on"] == on
        assert row["loss"] == pytest.approx(float(F.cross_entropy(logits, examples.labels)), rel=1e-4)
        assert row["accuracy"] == float((logits.argmax(1) == examples.labels).double().mean())


def test_a_run_does_not_notice_that_it_is_evaluated() -> None:
    """Bitwise: weights, statistics, history and plan; with dropout and augmentation drawing numbers."""
    networks = tasks(kwargs={"drop_rate": 0.3}, augment=["crop", "flip"])
    settings: dict[str, Any] = {**SETTINGS, "ema": 0.5}
    without = quick(**settings).fit(networks, ["dcc"])
    evaluated = quick(**settings, evaluate_every=1).fit(networks, ["dcc"])
    assert same_parts(without, evaluated) and same_parts(without.averaged(), evaluated.averaged())
    assert without.history == evaluated.history and without.plan == evaluated.plan
    assert not without.evaluations and len(evaluated.evaluations) == 16


def test_modules_are_in_their_modes_after_an_evaluation() -> None:
    modes: list[list[bool]] = []

    class Watch:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            modes.append([module.training for module in step.task.extractor.modules()])

    quick(**SETTINGS, evaluate_every=1).fit(tasks()[:1], ["watch"], factories={"watch": Watch})
    assert len(modes) == 4 and all(mode == modes[0] and all(mode) for mode in modes)


def test_a_resumed_run_has_the_same_evaluations(tmp_path: Path, killed: Callable[..., None]) -> None:
    whole = quick(**SETTINGS, evaluate_every=1).fit(tasks())
    trainer = quick(**SETTINGS, evaluate_every=1, checkpoint=tmp_path / "run.safetensors", checkpoint_every=2)
    killed(trainer, tasks(), after=2)
    resumed = trainer.fit(tasks())
    assert resumed.evaluations == whole.evaluations and resumed.history == whole.history


def test_a_figure_that_is_not_finite_ends_the_run() -> None:
    class Break:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            with torch.no_grad():
                next(step.task.head.parameters()).fill_(float("nan"))

    with pytest.raises(
        TrainingError, match=r"loss of task 'left' on the validation images after 1 steps is nan"
    ):
        quick(**SETTINGS, evaluate_every=1, log_every=4).fit(tasks(), ["x"], factories={"x": Break})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"evaluate_every": 1},
            "evaluate_every=1 has no images to evaluate on.*validation=0.1",
        ),
        (
            {"evaluate_every": 1, "evaluate_on": "all"},
            "'evaluate_on' must be one of validation, test, train; got 'all'",
        ),
        ({"validation": 1.5}, "'validation' must be a number above 0 and below 1, or None; got 1.5"),
        ({"evaluate_every": 0}, "'evaluate_every' must be a whole number from 1 up, or None; got 0"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        quick(steps=1, **settings)


def test_the_last_figures_are_shown_with_the_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, dict[str, float]]] = []
    monkeypatch.setattr(Bar, "at", lambda self, step, losses: shown.append(losses))
    fit = quick(**SETTINGS, evaluate_every=4, ema=0.5).fit(tasks())
    assert list(shown[2]["left"]) == ["task", "accuracy"]
    averages = next(row for row in fit.evaluations if (row["task"], row["weights"]) == ("right", "averages"))
    assert shown[3]["right"]["validation accuracy"] == averages["accuracy"]
    assert all(set(row["losses"]) == {"task", "accuracy"} for row in fit.history)


class TestOnTrainingImages:
    def fit(self, **settings: Any) -> ck.Fit:
        return quick(steps=6, evaluate_every=2, evaluate_on="train", **settings).fit(tasks()[:1])

    def test_figures_are_those_of_a_pass_over_all_of_them(self) -> None:
        fit = self.fit()
        result: Any = ck.measure(fit.tasks["left"], fit.tasks["left"].task.data.train, ["accuracy"])
        last = fit.evaluations[-1]
        assert (last["on"], last["step"]) == ("train", 6)
        assert last["accuracy"] == pytest.approx(result["accuracy"].value, abs=1e-6)

    def test_images_held_out_do_not_count(self) -> None:
        with pytest.raises(UsageError, match="stop_early"):
            self.fit(validation=0.25, stop_early=ck.EarlyStopping(patience=1))
        fit = self.fit(validation=0.25)
        assert all(
            row["accuracy"] * 36 == pytest.approx(round(row["accuracy"] * 36)) for row in fit.evaluations
        )

    def test_learning_speed_is_the_area_under_the_curve(self) -> None:
        fit = self.fit()
        two, four, six = (row["accuracy"] for row in fit.evaluations)
        assert fit.learning_speed("left") == pytest.approx((two / 2 + four + six / 2) / 2)

    def test_one_point_is_no_curve(self) -> None:
        fit = quick(steps=2, evaluate_every=2, evaluate_on="train").fit(tasks()[:1])
        with pytest.raises(UsageError, match="two points"):
            fit.learning_speed("left")

    def test_a_loader_is_refused(self) -> None:
        batch = torch.zeros(8, 1, 16, 16), torch.arange(8) % 3
        with pytest.raises(UsageError) as caught:
            quick(steps=2, evaluate_every=2, evaluate_on="train").fit(tasks(loader=[batch])[:1])
        assert caught.value.subject == "left"
