"""A loss may move the network of its own task alone: gradients of another task's network are never lost silently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from small import data_set, quick, same_parts
from torch import Tensor

import compatkit as ck
from compatkit.errors import PluginError


def tasks() -> list[ck.Task]:
    return [ck.Task(name, data_set(name), "resnet8_cifar", "layer2", size=12) for name in ("a", "b")]


class Ties:
    """Ties the features of two networks, with or without a gradient for the other one, from a step on."""

    def __init__(self, detach: bool = False, start: int = 0, side: str = "extractor") -> None:
        self.detach, self.start, self.side = detach, start, side

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        self.tasks = list(setup.tasks.values())

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        if step.number < self.start:
            return {}
        other = next(task for task in self.tasks if task.name != step.task.name)
        inputs = other.extract(step.batch.images, write_statistics=False)
        theirs = inputs if self.side == "extractor" else other.head(step.features)
        theirs = theirs.detach() if self.detach else theirs
        own = step.features if self.side == "extractor" else step.logits
        return {"tie": (own - theirs).square().mean()}  # type: ignore[operator]


class Plain:
    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        return {"size": step.features.square().mean()}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("side", ["extractor", "head"])
@pytest.mark.parametrize("start", [0, 3])
def test_a_loss_that_reaches_another_network_is_refused_in_any_step(
    start: int, side: str, accumulate: int
) -> None:
    """Step 3 is none of those in which the graph is followed."""
    made = {"ties": lambda: Ties(start=start, side=side), "plain": Plain}
    with pytest.raises(PluginError) as caught:
        quick(steps=5, accumulate=accumulate).fit(tasks(), ["ties", "plain"], factories=made)
    assert (caught.value.plugin, caught.value.hook) == ("ties", "compatkit_losses")
    assert "'a'" in str(caught.value) and "'b'" in str(caught.value) and f"step {start}" in str(caught.value)


def test_gradients_that_a_hook_sets_for_another_network_are_refused_too() -> None:
    class Sets:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.other = setup.tasks["b"].head

        @ck.hookimpl
        def compatkit_after_backward(self, step: ck.Step) -> None:
            for parameter in self.other.parameters():
                parameter.grad = torch.zeros_like(parameter)

    with pytest.raises(PluginError):
        quick(steps=2).fit(tasks(), ["sets"], factories={"sets": Sets})


class Keeps:
    """Compares features with those of an earlier step, of the other task or its own."""

    def __init__(self, detach: bool, own: bool = False) -> None:
        self.detach, self.own, self.last = detach, own, dict[str, Tensor]()

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        other = step.task.name if self.own else {"a": "b", "b": "a"}[step.task.name]
        theirs = self.last.get(other, step.features.detach())
        self.last[step.task.name] = step.features.detach() if self.detach else step.features
        return {"tie": (step.features.mean() - theirs.mean()).square()}


@pytest.mark.parametrize("own", [False, True])
def test_a_tensor_that_is_kept_with_its_graph_names_the_plugin(own: bool) -> None:
    def fit(detach: bool, uses: list[str]) -> ck.Fit:
        made = {"keeps": lambda: Keeps(detach, own), "plain": Plain}
        return quick(steps=3).fit(tasks(), uses, factories=made)

    with pytest.raises(PluginError, match=r"detach\(\)") as caught:
        fit(False, ["keeps"] if own else ["keeps", "plain"])
    assert (caught.value.plugin, caught.value.hook) == ("keeps", "compatkit_losses")
    assert fit(True, ["keeps", "plain"]).history["a/keeps/tie"].size


@pytest.mark.parametrize("task", ["a", "b"])
@pytest.mark.parametrize("hook", ["compatkit_after_step", "compatkit_after_epoch"])
def test_gradients_that_hooks_leave_after_a_step_are_refused(hook: str, task: str) -> None:
    class Leaves:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.parameters = list(setup.tasks[task].extractor.parameters())

    def leave(self: Any, step: ck.Step) -> None:
        sum(parameter.square().sum() for parameter in self.parameters).backward()  # type: ignore[union-attr]

    setattr(Leaves, hook, ck.hookimpl(leave))
    with pytest.raises(PluginError) as caught:
        quick(steps=8).fit(tasks(), ["leaves"], factories={"leaves": Leaves})
    assert (caught.value.plugin, caught.value.hook) == ("leaves", hook)


def test_gradients_from_before_the_first_step_change_nothing() -> None:
    class Sets:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            for parameter in setup.tasks["b"].extractor.parameters():
                parameter.grad = torch.ones_like(parameter)

    fit = quick(steps=2).fit(tasks(), ["sets"], factories={"sets": Sets})
    assert same_parts(fit, quick(steps=2).fit(tasks()))


def test_a_detached_tie_moves_each_network_in_its_own_steps() -> None:
    """By hand: with a weight, features come closer than without; weight 0 changes nothing."""

    def fit(weight: float) -> Any:
        use = ck.use("ties", weight=weight)
        return quick(steps=12).fit(tasks(), [use], factories={"ties": lambda: Ties(detach=True)})

    def apart(made: Any) -> float:
        images = torch.rand(16, 1, 12, 12, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            left, right = (made.tasks[name].extractor(images) for name in "ab")
        return float((left - right).square().mean())

    assert apart(fit(1.0)) < apart(fit(0.0))
    assert same_parts(fit(0.0), quick(steps=12).fit(tasks()))


def test_frozen_networks_of_other_tasks_may_be_looked_at() -> None:
    class Looks(Ties):
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.tasks = list(setup.tasks.values())
            self.tasks[1].head.requires_grad_(False)

        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
            return {"look": self.tasks[1].head(step.features).square().mean()}

    assert quick(steps=2).fit(tasks(), ["looks"], factories={"looks": Looks}).history["a/looks/look"].size
