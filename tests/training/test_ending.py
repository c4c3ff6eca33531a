"""How a run ends: a stop that a plugin asks for, hooks after evaluations, and a teardown after every end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small import data_set, quick, same_parts

import compatkit as ck
from compatkit.errors import PluginError, TrainingError, UsageError
from compatkit.reports.contracts import summary

TASK = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)
OTHER = ck.Task("b", data_set("b", seed=1), "resnet8_cifar", "layer2", size=16)
EVALUATED: dict[str, Any] = {"evaluate_every": 2, "evaluate_on": "test", "schedule": "constant"}


class Stops:
    """Asks for the end in a step."""

    def __init__(self, at: int = 2, reason: Any = "enough") -> None:
        self.at, self.reason = at, reason

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        if step.number == self.at:
            step.request_stop(self.reason)


STOPS: dict[str, Any] = {"stops": Stops}


def test_a_stopped_run_is_a_shorter_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "state.safetensors"
    settings: dict[str, Any] = {**EVALUATED, "ema": 0.5, "log_every": 2}
    trainer = quick(steps=9, **settings, checkpoint=checkpoint, progress=True)
    fit = trainer.fit([TASK, OTHER], ["stops"], factories=STOPS)
    shorter = quick(steps=3, **settings).fit([TASK, OTHER])
    assert same_parts(fit, shorter) and fit.history == shorter.history
    assert fit.evaluations == shorter.evaluations and [row["step"] for row in fit.evaluations][-1] == 3
    assert fit.run["stopped"] == {"steps": 3, "weights_of_step": 3, "reason": "enough"}
    assert "a plugin ended the run: enough" in capfd.readouterr().err
    calls: list[str] = []
    monkeypatch.setattr(Stops, "compatkit_after_step", ck.hookimpl(lambda self, step: calls.append("step")))
    again = trainer.fit([TASK, OTHER], ["stops"], factories=STOPS)
    assert calls == [] and same_parts(again, fit) and again.run == fit.run and again.history == fit.history


def test_the_reason_reaches_the_manifests_of_the_parts(tmp_path: Path) -> None:
    fit = quick(steps=4).fit([TASK], ["stops"], factories=STOPS)
    registry = ck.Registry.init(tmp_path / "parts")
    parts = registry.publish(fit, prefix="p")
    manifest = registry.store.manifest(parts["a.extractor"])
    assert manifest.training["stopped"] == {"steps": 3, "weights_of_step": 3, "reason": "enough"}
    assert "a plugin ended the run (enough) after 3 of 4 steps" in summary(manifest)["weights"]


@pytest.mark.parametrize("reason", ["", " ", None, 3])
def test_a_stop_needs_a_reason(reason: Any) -> None:
    with pytest.raises(PluginError, match="request_stop expects a reason") as caught:
        quick(steps=4).fit([TASK], ["stops"], factories={"stops": lambda: Stops(1, reason)})
    assert caught.value.subject == "stops" and isinstance(caught.value.__cause__, UsageError)


def test_after_evaluation_has_the_figures_of_the_fit_and_can_end_the_run() -> None:
    told: list[ck.Evaluation] = []

    class Watches:
        @ck.hookimpl
        def compatkit_after_evaluation(self, evaluation: ck.Evaluation) -> None:
            told.append(evaluation)
            if evaluation.step == 4:
                evaluation.request_stop("four")

    settings: dict[str, Any] = {**EVALUATED, "ema": 0.5}
    fit = quick(steps=9, **settings).fit([TASK, OTHER], ["w"], factories={"w": Watches})
    rows = [
        {"task": task, "step": each.step, "on": each.on, "weights": weights, **figures[task]}
        for each in told
        for task in ("a", "b")
        for weights, figures in (("trained", each.metrics), ("averages", each.averages))
    ]
    assert rows == fit.evaluations and [each.step for each in told] == [2, 4]
    assert all(type(value) is float for value in told[0].metrics["a"].values())
    assert fit.run["stopped"]["reason"] == "four" and fit.run["stopped"]["steps"] == 4
    assert same_parts(fit, quick(steps=4, **settings).fit([TASK, OTHER]))
    told.clear()
    quick(steps=4, **EVALUATED).fit([TASK], [ck.use("w", start=2)], factories={"w": Watches})
    assert [each.step for each in told] == [4] and told[0].averages == {}


def test_random_numbers_drawn_after_an_evaluation_change_no_step() -> None:
    import torch

    class Draws:
        @ck.hookimpl
        def compatkit_after_evaluation(self) -> None:
            torch.rand(3)

    fit = quick(steps=4, **EVALUATED).fit([TASK], ["draws"], factories={"draws": Draws})
    assert same_parts(fit, quick(steps=4, **EVALUATED).fit([TASK]))


def told_teardowns(calls: list[str], fail: str = "", at: str = "") -> dict[str, Callable[..., Any]]:
    """Plugins ``one`` and ``two`` that tell their set-up, finish and teardown, and may fail in one of them."""

    def make(name: str) -> Callable[..., Any]:
        def tell(event: str) -> None:
            calls.append(f"{name} {event}")
            if f"{name} {event}" in (fail, at):
                raise KeyboardInterrupt if at else OSError("disk on fire")

        class Tells:
            @ck.hookimpl
            def compatkit_set_up(self, setup: ck.SetUp) -> None:
                tell("set-up")

            @ck.hookimpl
            def compatkit_after_step(self, step: ck.Step) -> None:
                tell(f"step {step.number}") if step.number == 1 else None

            @ck.hookimpl
            def compatkit_finish(self) -> None:
                tell("finish")

            @ck.hookimpl
            def compatkit_teardown(self, setup: ck.SetUp) -> None:
                tell("teardown")

        return Tells

    return {"one": make("one"), "two": make("two")}


NAMES = ["one", "two"]
SET_UP, FINISH, TEARDOWN = (
    ["one set-up", "two set-up"],
    ["one finish", "two finish"],
    ["two teardown", "one teardown"],
)


def test_teardown_follows_finish_and_dry_runs() -> None:
    calls: list[str] = []
    factories = told_teardowns(calls)
    quick(steps=1).fit([TASK], NAMES, factories=factories)
    assert calls == [*SET_UP, *FINISH, *TEARDOWN]
    calls.clear()
    quick(steps=1).explain([TASK], NAMES, factories=factories)
    quick(steps=1).profile([TASK], NAMES, steps=1, factories=factories)
    steps = [f"{name} step 1" for name in NAMES]
    assert [call for call in calls if call not in steps] == [*SET_UP, *TEARDOWN] * 2


@pytest.mark.parametrize(
    ("fail", "after"),
    [
        ("one step 1", [*SET_UP, "one step 1", *TEARDOWN]),
        ("two finish", [*SET_UP, "one step 1", "two step 1", *FINISH, *TEARDOWN]),
        ("two set-up", [*SET_UP, "one teardown"]),
        ("one set-up", ["one set-up"]),
        ("two teardown", [*SET_UP, "one step 1", "two step 1", *FINISH, *TEARDOWN]),
    ],
)
@pytest.mark.parametrize("interrupt", [False, True])
def test_teardown_follows_every_error(fail: str, after: list[str], interrupt: bool) -> None:
    calls: list[str] = []
    kind = KeyboardInterrupt if interrupt else PluginError
    if interrupt and fail == "two teardown":
        after = after[:-1]  # a second Ctrl-C acts at once
    with pytest.raises(kind):
        quick(steps=2).fit(
            [TASK], NAMES, factories=told_teardowns(calls, *(("", fail) if interrupt else (fail,)))
        )
    assert calls == after


def test_an_error_of_the_teardown_does_not_hide_the_first() -> None:
    class Breaks:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            raise TrainingError("the first")

        @ck.hookimpl
        def compatkit_teardown(self) -> None:
            raise OSError("the second")

    with pytest.raises(TrainingError, match="the first") as caught:
        quick(steps=1).fit([TASK], ["breaks"], factories={"breaks": Breaks})
    assert "the second" in str(caught.value) and "breaks" in str(caught.value)


def test_a_run_that_is_refused_before_its_set_up_is_not_torn_down(tmp_path: Path) -> None:
    calls: list[str] = []
    with pytest.raises(UsageError):
        quick(steps=1, checkpoint=tmp_path / "no" / "state").fit(
            [TASK], NAMES, factories=told_teardowns(calls)
        )
    assert calls == []
