"""Every setting of the trainer is on the page about training, and none that is off is in a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from small import data_set, quick

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.training.settings import plan_key

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "training.md"


def test_every_setting_is_on_the_page() -> None:
    table = PAGE.read_text().split("\n## Settings\n")[1].split("\n## ")[0]
    missing = [field.name for field in attrs.fields(ck.Trainer) if f"`{field.name}`" not in table]
    assert not missing


def test_what_is_off_is_in_no_plan() -> None:
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)
    fit = quick(steps=1, loggers=None).fit([task]).run["trainer"]
    always = {plan_key(field.name) for field in attrs.fields(ck.Trainer) if "manifest" not in field.metadata}
    assert set(fit) - {"scheduling", "steps_are"} == always
    assert {"steps", "seed", "lr", "log_every"} <= always and not {"ema", "images", "evaluate_on"} & always


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": -1}, "'steps' must be a whole number from 0 up; got -1"),
        ({"steps": 2.5}, "'steps' must be a whole number from 0 up; got 2.5"),
        ({"steps": 1, "batch_size": 1}, "'batch_size' must be a whole number from 2 up; got 1"),
    ],
)
def test_counts_that_no_run_can_have_are_refused_as_a_users(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ck.Trainer(**settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ck.Trainer(steps=1, optimiser="sgd"),
            "Trainer has no setting 'optimiser'; did you mean 'optimizer'?",
        ),  # type: ignore[call-arg]
        (lambda: ck.Task("a", sizes=16), "Task has no setting 'sizes'; did you mean 'size'?"),  # type: ignore[call-arg]
        (lambda: ck.Schedule(evry=3), "Schedule has no setting 'evry'; did you mean 'every'?"),  # type: ignore[call-arg]
        (lambda: ck.EarlyStopping(zzz=1), "EarlyStopping has no setting 'zzz'; it takes patience"),  # type: ignore[call-arg]
    ],
)
def test_a_setting_that_there_is_not_is_answered_with_the_nearest(make: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert message in str(caught.value)
