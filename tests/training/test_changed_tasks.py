"""Plugins that change a task before its network is built: plan, network and evaluation are those of the changed one."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from small import data_set, quick

import compatkit as ck
from compatkit.errors import PluginError


class Fewer:
    """Trains on a subset, drawn by the seed of the run."""

    @ck.hookimpl
    def compatkit_task(self, task: ck.Task, seed: int) -> ck.Task:
        return attrs.evolve(task, data=task.data.subset(train=24, seed=seed))


class Wider:
    """Replaces the width of the network; sees what plugins before it made of the task."""

    seen: Any = None

    @ck.hookimpl
    def compatkit_task(self, task: ck.Task) -> ck.Task:
        Wider.seen = len(task.data.train)
        return attrs.evolve(task, kwargs={**task.kwargs, "widths": [9]})


def task() -> ck.Task:
    kwargs = {"widths": [6], "img_size": [12, 12]}
    return ck.Task("a", data_set("a"), "fully_connected", "blocks.0", kwargs=kwargs)


def test_network_and_manifest_are_those_of_the_changed_task() -> None:
    inputs = task()
    fit = quick(steps=1, seed=3).fit([inputs], ["fewer", "wider"], factories={"fewer": Fewer, "wider": Wider})
    state = fit.tasks["a"]
    assert state.feature_shape == (2, 9) and Wider.seen == 24
    assert fit.run["tasks"][0]["data"]["digest"] == inputs.data.subset(train=24, seed=3).train.digest
    assert inputs.kwargs["widths"] == [6] and len(inputs.data.train) == 48


def test_the_plan_names_the_hook() -> None:
    plan = quick(steps=1).explain([task()], ["fewer"], factories={"fewer": Fewer})
    assert "task" in str(plan) and "fewer" in str(plan)


@pytest.mark.parametrize("requested", [None, ck.Task("b", data_set("a"), "fully_connected", "blocks.0")])
def test_something_else_than_the_task_is_refused(requested: Any) -> None:
    class Wrong:
        @ck.hookimpl
        def compatkit_task(self, task: ck.Task) -> Any:
            return requested

    with pytest.raises(PluginError) as caught:
        quick(steps=1).fit([task()], ["wrong"], factories={"wrong": Wrong})
    assert caught.value.subject == "wrong"
