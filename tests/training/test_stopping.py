"""Early stopping: when it ends a run, which weights come back, and that a killed run ends the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from small import data_set, quick, same_parts

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.training.evaluating import EarlyStopping, Evaluator

SETTINGS: dict[str, Any] = {"validation": 0.25, "evaluate_every": 1}


def tasks() -> list[ck.Task]:
    return [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=16)
        for seed, name in enumerate(("left", "right"))
    ]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what makes evaluations give chosen figures, one a step, by task."""

    def set_figures(on: str = "loss", **kwargs: Sequence[float]) -> None:
        def measure(
            self: Evaluator, setup: ck.SetUp, averages: Any, step: int, *_: Any
        ) -> list[dict[str, Any]]:
            made = ("trained",) if averages is None else ("trained", "averages")
            return [
                {"task": task, "step": step, "on": self.on, "weights": weights}
                | {"loss": 1.0, "accuracy": 0.5}
                | {on: kwargs[task][step - 1] if weights == made[-1] else 100.0 - step}
                for task in setup.tasks
                for weights in made
            ]

        monkeypatch.setattr(Evaluator, "measure", measure)

    return set_figures


def test_it_ends_after_patience_and_gives_the_best_weights_back(figures: Callable[..., None]) -> None:
    figures(left=[3, 1, 2, 2, 0, 0], right=[3, 2, 2, 2, 0, 0])
    rule = EarlyStopping(patience=2)
    fit = quick(steps=6, schedule="constant", **SETTINGS, stop_early=rule, log_every=3).fit(tasks(), ["dcc"])
    best = quick(steps=2, schedule="constant", validation=0.25).fit(tasks(), ["dcc"])
    assert same_parts(best, fit)
    assert fit.run["stopped"] == {"steps": 4, "weights_of_step": 2}
    assert [row["step"] for row in fit.history] == [3, 3, 4, 4]
    assert fit.run["trainer"]["stop_early"] == {"patience": 2, "least": 0.0, "on": "loss", "restore": True}
    assert fit.run["trainer"]["evaluate_every"] == 1


def test_without_restoring_the_last_weights_stay(figures: Callable[..., None]) -> None:
    figures(left=[1, 2, 3], right=[1, 2, 3])
    rule = EarlyStopping(patience=1, restore=False)
    fit = quick(steps=3, schedule="constant", **SETTINGS, stop_early=rule).fit(tasks())
    last = quick(steps=2, schedule="constant", validation=0.25).fit(tasks())
    assert same_parts(last, fit) and fit.run["stopped"] == {"steps": 2, "weights_of_step": 2}


@pytest.mark.parametrize(
    ("rule", "value", "ended"),
    [
        (EarlyStopping(patience=1, on="accuracy"), [0.1, 0.2, 0.2, 0.9], (3, 2)),
        (EarlyStopping(patience=1, on="accuracy", least=0.1), [0.1, 0.2, 0.5, 0.6], (2, 1)),
        (EarlyStopping(patience=2, on="loss", least=0.5), [3, 2.6, 2.4, 2.0], (4, 3)),
        (EarlyStopping(patience=4), [1, 2, 2, 2], (4, 1)),
    ],
)
def test_what_counts_as_better(
    figures: Callable[..., None], rule: EarlyStopping, value: list[float], ended: tuple[int, int]
) -> None:
    figures(rule.on, left=value)
    fit = quick(steps=4, **SETTINGS, stop_early=rule).fit(tasks()[:1])
    assert tuple(fit.run["stopped"].values()) == ended


def test_several_tasks_count_by_their_mean(figures: Callable[..., None]) -> None:
    figures(left=[1, 5, 9, 13], right=[9, 4, -1, -2])  # the mean: 5, 4.5, 4, 5.5
    fit = quick(steps=4, **SETTINGS, stop_early=EarlyStopping(patience=1)).fit(tasks())
    assert fit.run["stopped"] == {"steps": 4, "weights_of_step": 3}


def test_averages_are_what_is_looked_at_and_given_back(figures: Callable[..., None]) -> None:
    figures(left=[1, 2, 3, 4])
    settings: dict[str, Any] = {"schedule": "constant", "ema": 0.5}
    fit = quick(steps=4, **settings, **SETTINGS, stop_early=EarlyStopping(patience=2)).fit(tasks()[:1])
    best = quick(steps=1, **settings, validation=0.25).fit(tasks()[:1])
    assert fit.run["stopped"] == {"steps": 3, "weights_of_step": 1}
    assert same_parts(best, fit) and same_parts(best.averaged(), fit.averaged())


@pytest.mark.parametrize("after", [3, 5])
def test_a_killed_run_ends_where_it_would_have_ended(
    figures: Callable[..., None], tmp_path: Path, killed: Callable[..., None], after: int
) -> None:
    """Killed in the middle, and after the checkpoint of the step at which it stopped."""
    figures(left=[3, 1, 2, 2, 2, 0])
    settings: dict[str, Any] = {**SETTINGS, "stop_early": EarlyStopping(patience=3), "ema": 0.5}
    whole = quick(steps=6, **settings).fit(tasks()[:1])
    trainer = quick(steps=6, **settings, checkpoint=tmp_path / "run.safetensors", checkpoint_every=1)
    killed(trainer, tasks()[:1], after=after)
    resumed = trainer.fit(tasks()[:1])
    assert same_parts(whole, resumed) and same_parts(whole.averaged(), resumed.averaged())
    assert resumed.run == whole.run and resumed.history == whole.history
    assert resumed.run["stopped"] == {"steps": 5, "weights_of_step": 2}
    assert resumed.evaluations == whole.evaluations


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {**SETTINGS, "evaluate_on": "test"},
            "on held-out training images only.*its figures on them are too good",
        ),
        ({"validation": 0.25}, "stop_early needs validation"),
        ({"evaluate_every": 5, "evaluate_on": "validation"}, "Hold some out"),
    ],
)
def test_settings_that_cannot_stop_a_run(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        quick(steps=1, **settings, stop_early=EarlyStopping(patience=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": 0}, "'patience' must be a whole number from 1 up; got 0"),
        ({"patience": 1, "least": -1}, "'least' must be a number from 0 up; got -1"),
        ({"patience": 1, "on": "f1"}, "'on' must be one of loss, accuracy; got 'f1'"),
    ],
)
def test_rules_that_are_none(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EarlyStopping(**settings)
