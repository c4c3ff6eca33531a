"""Runs that cannot go on, each with one clear error: not finite, another plan, nothing to learn, nothing that moves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.errors import DataError, FormatError, PluginError, TrainingError, UsageError
from compatkit.registry.weights.tensorfile import deserialize


def task(name: str = "left", **settings: Any) -> ck.Task:
    return ck.Task(name, data_set(name), "resnet8_cifar", **{"cut": "layer2", "size": 16, **settings})


class Burst:
    """A loss that is no number from one step of one task on."""

    at, where = 5, "right"

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
        broken = step.number >= self.at and step.task.name == self.where
        return {"burst": step.features.mean() * (float("inf") if broken else 1.0)}  # type: ignore[union-attr]


class TestNotFinite:
    def test_the_first_loss_is_named_with_task_and_step(self) -> None:
        """The step after it every loss is none; what is read at step 8 says where it began."""
        with pytest.raises(
            TrainingError,
            match=r"'burst/burst' of task 'right' is -?inf in step 5, counted from 0",
        ) as caught:
            quick(steps=9, log_every=8).fit(
                [task(), task("right")], ["dcc", "burst"], factories={"burst": Burst}
            )
        assert "checkpoint" not in str(caught.value)

    def test_the_last_good_checkpoint_is_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "run.safetensors"
        trainer = quick(steps=9, log_every=2, checkpoint=path, checkpoint_every=2)
        with pytest.raises(
            TrainingError,
            match=r"in step 5,.*The last good checkpoint, after 4 steps, is kept: .*run.safetensors\.$",
        ):
            trainer.fit([task(), task("right")], ["burst"], factories={"burst": Burst})
        state = deserialize(path.read_bytes())
        assert all(bool(torch.isfinite(value).all()) for value in state.values() if value.is_floating_point())

    def test_weights_that_are_not_finite_are_never_written(self, tmp_path: Path) -> None:
        """Finite losses up to the end of a row, and a last move that is none."""
        path = tmp_path / "run.safetensors"

        class Break:
            @ck.hookimpl
            def compatkit_after_step(self, step: ck.Step) -> None:
                if step.number == 3:
                    with torch.no_grad():
                        step.task.head.get_parameter("fc.weight")[0, 0] = float("nan")

        trainer = quick(steps=6, log_every=2, checkpoint=path, checkpoint_every=2)
        with pytest.raises(
            TrainingError,
            match=r"After 4 steps left.head: fc.weight holds values.*after 2 steps, is kept",
        ):
            trainer.fit([task()], ["x"], factories={"x": Break})
        state = deserialize(path.read_bytes())
        assert all(bool(torch.isfinite(value).all()) for value in state.values() if value.is_floating_point())

    def test_a_gradient_norm_is_named_too(self) -> None:
        class Steep:
            @ck.hookimpl
            def compatkit_after_backward(self, step: ck.Step) -> None:
                if step.number == 1:
                    step.task.head.get_parameter("fc.weight").grad.fill_(float("inf"))  # type: ignore[union-attr]

        with pytest.raises(TrainingError, match="gradient norm of task 'left' is inf in step 1"):
            quick(steps=2, log_every=2, clip_norm=1.0).fit([task()], ["x"], factories={"x": Steep})


class TestAnotherPlan:
    def test_what_differs_is_said_with_both_values(self, tmp_path: Path) -> None:
        path = tmp_path / "run.safetensors"
        quick(steps=1, checkpoint=path).fit([task()])
        with pytest.raises(TrainingError) as caught:
            quick(steps=2, checkpoint=path, clip_norm=0.5).fit([task(augment=["flip"])], ["dcc"])
        text = str(caught.value)
        assert "belongs to another plan: trainer.steps: 1 there, 2 here; " in text
        assert "tasks[0].augment: [] there, ['flip'] here" in text
        assert "trainer.clip_norm: nothing there, 0.5 here" in text
        assert text.endswith("Name another checkpoint file, or remove this one to start again.")

    def test_many_differences_are_counted(self, tmp_path: Path) -> None:
        path = tmp_path / "run.safetensors"
        quick(steps=1, checkpoint=path).fit([task()])
        with pytest.raises(TrainingError, match=r"'left' there, 'b' here.*; and \d+ more\. Name another"):
            quick(steps=1, checkpoint=path, seed=1).fit([task("b")], ["dcc"])

    def test_settings_that_change_no_result_are_no_other_plan(self, tmp_path: Path) -> None:
        path = tmp_path / "run.safetensors"
        quick(steps=2, checkpoint=path, evaluate_every=1, evaluate_on="test").fit([task()])
        again = quick(steps=2, checkpoint=path, progress=True).fit([task()])
        assert len(again.evaluations) == 2

    def test_a_note_without_its_plan_is_damaged(self, tmp_path: Path) -> None:
        from compatkit.registry.weights.tensorfile import serialize

        path = tmp_path / "run.safetensors"
        path.write_bytes(serialize({"x": torch.zeros(1)}, metadata='{"plan": "x", "tensors": "y"}'))
        with pytest.raises(FormatError, match="is not a checkpoint"):
            quick(steps=1, checkpoint=path).fit([task()])


class TestData:
    def test_no_images(self) -> None:
        nothing = np.zeros((0, 12, 12, 1), dtype=np.uint8), np.zeros(0, dtype=np.int64)
        with pytest.raises(DataError, match=r"none/train: expected at least one image of at least one pixel"):
            ck.DataSet.of("none", nothing, nothing, ("0", "1"))

    def test_one_class(self) -> None:
        data = data_set("left")
        same = data.train.take(np.flatnonzero(data.train.labels == 1))
        task = ck.Task("left", ck.DataSet("left", same, data.test), "resnet8_cifar", "layer2", size=16)
        with pytest.raises(
            DataError, match=r"Task 'left': the 16 training images of left/train are all of the class '1'"
        ):
            quick(steps=1).fit([task])

    def test_one_class_in_the_share_held_out(self) -> None:
        data = data_set("left")
        few = data.train.take([0, 3, 6, 9, 1])
        task = ck.Task("left", ck.DataSet("left", few, data.test), "resnet8_cifar", "layer2", size=16)
        with pytest.raises(
            DataError, match=r"the 2 images of validation=0.5 of left/train are all of the class '0'"
        ):
            quick(steps=1, batch_size=2, validation=0.5).fit([task])

    def test_nothing_that_could_be_held_out(self) -> None:
        data = data_set("left")
        task = ck.Task(
            "left", ck.DataSet("left", data.train.take([0, 1]), data.test), "resnet8_cifar", "layer2", size=16
        )
        with pytest.raises(DataError, match="no class of left/train has two images"):
            quick(steps=1, batch_size=2, validation=0.5).fit([task])

    def test_a_batch_larger_than_what_the_share_leaves(self) -> None:
        with pytest.raises(DataError, match="has 36 training images, fewer than a batch of 40"):
            quick(steps=1, batch_size=40, validation=0.25).fit([task()])


class TestNothingMoves:
    """Frozen networks: a loss without a gradient is right there, and no run has nothing to move."""

    @staticmethod
    def freezing(*sides: str) -> type:
        class Freeze:
            @ck.hookimpl
            def compatkit_set_up(self, setup: ck.SetUp) -> None:
                for side in sides:
                    getattr(setup.tasks["left"], side).requires_grad_(False)

            @ck.hookimpl
            def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
                return {"energy": step.features.square().mean()}  # type: ignore[union-attr]

        return Freeze

    def test_everything_frozen_is_told_before_the_first_step(self) -> None:
        with pytest.raises(
            UsageError, match="Task 'left' has nothing to train: all parameters of its network"
        ):
            quick(steps=1).fit([task()], ["x"], factories={"x": self.freezing("extractor", "head")})

    def test_a_loss_of_frozen_features_is_logged_and_moves_nothing(self) -> None:
        fit = quick(steps=2).fit([task()], ["x"], factories={"x": self.freezing("extractor")})
        assert fit.history[0]["losses"]["x/energy"] > 0

    def test_a_network_that_no_loss_of_a_step_moves(self) -> None:
        """A shared head could move, but its regularizer is not active yet."""
        with pytest.raises(UsageError, match="In step 0 task 'left' has a loss without any gradient"):
            quick(steps=2).fit(
                [task()],
                [ck.use("dcc", start=1), "x"],
                factories={"x": self.freezing("extractor", "head")},
            )

    def test_a_detached_loss_of_a_network_that_moves(self) -> None:
        class Detached:
            @ck.hookimpl
            def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
                return {"a": step.features.detach().mean()}  # type: ignore[union-attr]

        with pytest.raises(PluginError, match="'x': compatkit_losses gave 'a' without a gradient"):
            quick(steps=1).fit([task()], ["x"], factories={"x": Detached})


def test_two_owners_of_one_parameter_are_both_named() -> None:
    class Steal:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            setup.owners["mine.layer"] = setup.tasks["left"].head.get_submodule("fc")

    with pytest.raises(
        UsageError,
        match=r"'weight' belongs to 'mine.layer' and to 'left.head'; it needs exactly one",
    ):
        quick(steps=1).fit([task()], ["x"], factories={"x": Steal})


def test_an_error_of_our_own_that_a_hook_raises_is_not_its_own_cause() -> None:
    class Refuses:
        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> None:
            raise PluginError("no", plugin="refuses")

    with pytest.raises(PluginError) as caught:
        quick(steps=1).fit(
            [ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)],
            ["refuses"],
            factories={"refuses": Refuses},
        )
    assert caught.value.__cause__ is not caught.value
