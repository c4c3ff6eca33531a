"""Every setting of the trainer is on the page about training, and none that is off is in a plan."""

from __future__ import annotations

from pathlib import Path

import attrs
from small import data_set, quick

import compatkit as ck
from compatkit.training.describing import ABSENT_WHERE_OFF, HIDDEN, ONLY_TO_STOP

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def test_every_setting_is_on_the_page() -> None:
    table = PAGE.read_text().split("## Settings")[1].split("\n## ")[0]
    missing = [one.name for one in attrs.fields(ck.Trainer) if f"`{one.name}`" not in table]
    assert not missing


def test_what_is_off_is_in_no_plan() -> None:
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)
    said = quick(steps=1, scalars=None).fit([task]).run["trainer"]
    fields = {one.name for one in attrs.fields(ck.Trainer)}
    assert {*HIDDEN, *ABSENT_WHERE_OFF, *ONLY_TO_STOP} <= fields
    assert set(said) - {"scheduling", "steps_are"} == fields - {*HIDDEN, *ABSENT_WHERE_OFF, *ONLY_TO_STOP}
