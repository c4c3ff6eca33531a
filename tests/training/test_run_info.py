"""What plugins are told of their run: ``setup.run``, in fits, plans, profiles, sweeps and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from small import data_set, quick, same_parts

import compatkit as ck
from compatkit.errors import UsageError

TASK = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)


def listening(told: list[ck.RunInfo]) -> dict[str, Any]:
    """A plugin that keeps what it is told."""

    class Listens:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            told.append(setup.run)

    return {"listens": Listens}


def test_a_fit_tells_its_settings(tmp_path: Path) -> None:
    told: list[ck.RunInfo] = []
    settings: dict[str, Any] = {
        "steps": 2,
        "seed": 5,
        "batch_size": 8,
        "accumulate": 2,
        "device": "cpu",
        "ema": 0.5,
    }
    settings |= {"evaluate_every": 2, "evaluate_on": "test"}
    factories = listening(told)
    quick(**settings).fit([TASK], ["listens"], factories=factories)
    (run,) = told
    assert {name: getattr(run, name) for name in settings if name != "evaluate_on"} == {
        name: value for name, value in settings.items() if name != "evaluate_on"
    }
    assert (run.name, run.folder, run.dry) == (None, None, False)
    quick(**settings, checkpoint=tmp_path / "night.safetensors").fit([TASK], ["listens"], factories=factories)
    assert attrs.evolve(run, name="night", folder=tmp_path) == told[1]


def test_plan_and_profile_are_dry() -> None:
    told: list[ck.RunInfo] = []
    factories, trainer = listening(told), quick(steps=2)
    trainer.explain([TASK], ["listens"], factories=factories)
    trainer.profile([TASK], ["listens"], steps=1, factories=factories)
    trainer.fit([TASK], ["listens"], factories=factories)
    assert [run.dry for run in told] == [True, True, False]


def test_a_name_changes_nothing_but_the_name(tmp_path: Path) -> None:
    told: list[ck.RunInfo] = []
    settings: dict[str, Any] = {"steps": 2, "checkpoint": tmp_path / "state.safetensors"}
    named = quick(**settings, run_name="mine").fit([TASK], ["listens"], factories=listening(told))
    plain = quick(steps=2).fit([TASK], ["listens"], factories=listening([]))
    assert told[0].name == "mine" and named.run == plain.run and named.plan == plain.plan
    assert same_parts(named, plain)
    with pytest.raises(UsageError, match="run_name"):
        quick(steps=1, run_name=3)
