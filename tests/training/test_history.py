"""Losses for those who ask: rows and arrays of a fit, and what a plugin sees of each step while it is trained."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.errors import UnknownName
from compatkit.training.fit import History

TASKS = [
    ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
    for seed, name in enumerate(("left", "right"))
]
SHARED = ck.use("dcc", start=2, stop=4)


def test_losses_come_as_arrays_with_their_steps() -> None:
    fit = quick(steps=6, log_every=2, clip_norm=1.0).fit(TASKS, [SHARED])
    left = [row for row in fit.history if row["task"] == "left"]
    own = fit.history["left/loss"]
    assert own.dtype == np.float64 and own.tolist() == [row["losses"]["task"] for row in left]
    assert np.array_equal(fit.history["left/task"], own)
    assert fit.history.steps("left/loss").tolist() == [2, 4, 6]
    assert fit.history["right/dcc/loss"].shape == (1,) and fit.history.steps("right/dcc/loss").tolist() == [4]
    assert (fit.history["left/accuracy"] <= 1).all() and (fit.history["left/gradient_norm"] > 0).all()
    assert fit.history.names[:4] == ("left/task", "left/accuracy", "left/gradient_norm", "right/task")
    assert all(len(fit.history[name]) for name in fit.history.names)


def test_rows_are_a_list_as_ever() -> None:
    fit = quick(steps=2).fit(TASKS)
    rows = list(fit.history)
    assert fit.history == rows and fit.history[-1] == rows[-1] and fit.history[:2] == rows[:2]
    assert isinstance(fit.history, list) and json.loads(json.dumps(fit.history)) == rows
    assert quick(steps=2, ema=0.5).fit(TASKS).averaged().history.names == fit.history.names


@pytest.mark.parametrize("name", ["left/dcc/loss", "left", "middle/loss", ""])
def test_a_name_that_there_is_not_is_refused_with_those_that_there_are(name: str) -> None:
    history = History([{"task": "left", "step": 1, "losses": {"task": 0.5, "mine/pull": 2.0}}])
    for ask in (lambda: history[name], lambda: history.steps(name)):
        with pytest.raises(UnknownName, match="left/task, left/mine/pull") as caught:
            ask()
        assert (caught.value.code, caught.value.subject) == ("unknown-name", name)


class Listens:
    """Keeps what it receives for each step, unread."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, int, dict[str, torch.Tensor]]] = []
        self.earlier: list[dict[str, torch.Tensor]] = []
        self.epochs: list[dict[str, torch.Tensor]] = []

    @ck.hookimpl
    def compatkit_after_backward(self, step: ck.Step) -> None:
        self.earlier.append(step.losses)

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        self.kept.append((step.task.name, step.number, step.losses))

    @ck.hookimpl
    def compatkit_after_epoch(self, step: ck.Step) -> None:
        self.epochs.append(step.losses)


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2, "clip_norm": 1.0}], ids=["plain", "in pieces"])
def test_a_plugin_sees_each_steps_losses_as_the_history_has_them(settings: dict[str, Any]) -> None:
    listener = Listens()
    fit = quick(steps=7, **settings).fit(TASKS, [SHARED, "mine"], factories={"mine": lambda: listener})
    assert len(listener.kept) == len(fit.history)
    for row, (task, number, losses) in zip(fit.history, listener.kept, strict=True):
        assert (row["task"], row["step"]) == (task, number + 1)
        assert row["losses"] == pytest.approx({name: float(value) for name, value in losses.items()})
        assert all(value.shape == () and not value.requires_grad for value in losses.values())
    assert ("dcc/loss" in listener.kept[0][2], "dcc/loss" in listener.kept[4][2]) == (False, True)
    assert listener.earlier == [{}] * 14
    assert [sorted(epoch) for epoch in listener.epochs] == [sorted(listener.kept[10][2])] * 2


def test_a_task_without_a_head_of_its_own_has_no_loss_of_its_own() -> None:
    listener = Listens()
    task = ck.Task("left", data_set("left"), "resnet8_cifar", "layer2", size=(16, 16), own_head=False)
    quick(steps=1).fit([task, TASKS[1]], ["dcc", "mine"], factories={"mine": lambda: listener})
    assert list(listener.kept[0][2]) == ["dcc/loss"]
