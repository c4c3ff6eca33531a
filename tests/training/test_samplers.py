"""Samplers of plugins: what they get, which images steps see then, resumption, refusals; and self-paced learning."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from pictured import photos
from published import factories, module
from small import data_set, quick, same_parts
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import compatkit as ck
from compatkit.errors import PluginError, UsageError
from compatkit.training.testing import assert_regularizer

COUNT, BATCH, EPOCH = 50, 8, 6
TASK = ck.Task("a", data_set("a", count=COUNT), "resnet8_cifar", "layer2", size=16, augment=("crop", "flip"))
CURRICULUM = factories("curriculum")
STORED: dict[str, dict[str, Any]] = {
    "resident": {"image_storage": "resident"},
    "prefetched": {"image_storage": "prefetched"},
}


def choosing(choose: Callable[[int, Tensor], Any], seen: list[list[int]] | None = None) -> dict[str, Any]:
    """A plugin that chooses so, and keeps which images each step sees."""

    class Chooses:
        @ck.hookimpl
        def compatkit_sampler(self, task: ck.TaskState, epoch: int, order: Tensor) -> Any:
            assert task.name == "a" and len(order) == len(task.examples)
            return choose(epoch, order)

        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if seen is not None:
                seen.append(step.batch.index.tolist())

    return {"chooses": Chooses}


def decoded(folder: Path) -> ck.Task:
    """A task of images of files."""
    return ck.Task(
        "a", photos(folder / "pets"), "resnet8_cifar", "layer2", size=16, augment="imagenet-strong"
    )


@pytest.mark.parametrize("storage", STORED)
def test_the_order_itself_changes_nothing(storage: str) -> None:
    trainer = quick(steps=8, **STORED[storage])
    fit = trainer.fit([TASK], ["chooses"], factories=choosing(lambda epoch, order: order))
    plain = trainer.fit([TASK])
    assert same_parts(fit, plain) and fit.history == plain.history


@pytest.mark.parametrize("storage", STORED)
def test_steps_see_what_was_chosen_and_further_positions_are_left_out(storage: str) -> None:
    seen: list[list[int]] = []
    epochs: list[int] = []

    def choose(epoch: int, order: Tensor) -> Tensor:
        epochs.append(epoch)
        assert sorted(order.tolist()) == list(range(COUNT))
        order[:] = -1  # a copy
        return torch.cat([torch.arange(COUNT) % 5 + 10 * epoch, torch.tensor([COUNT - 1])]).int()

    quick(steps=2 * EPOCH, **STORED[storage]).fit([TASK], ["chooses"], factories=choosing(choose, seen))
    expected = [[(epoch * 10 + position % 5) for position in range(BATCH * EPOCH)] for epoch in range(2)]
    assert [[*chain(*steps)] for steps in (seen[:EPOCH], seen[EPOCH:])] == expected and epochs == [0, 1]


def test_plugins_choose_one_after_the_other_in_their_steps() -> None:
    calls: list[tuple[str, int, int]] = []

    def make(name: str) -> type:
        class Tells:
            @ck.hookimpl
            def compatkit_sampler(self, epoch: int, order: Tensor) -> Tensor:
                calls.append((name, epoch, int(order[0])))
                return torch.full_like(order, 3)

        return Tells

    uses = ["one", ck.use("two", start=EPOCH)]
    quick(steps=2 * EPOCH).fit([TASK], uses, factories={"one": make("one"), "two": make("two")})
    assert [call[:2] for call in calls] == [("one", 0), ("one", 1), ("two", 1)] and calls[2][2] == 3


def test_random_numbers_of_a_sampler_follow_from_the_seed() -> None:
    seen: list[list[int]] = []
    drawing = choosing(lambda epoch, order: order[torch.randperm(len(order))], seen)
    fits = [quick(steps=8, seed=seed).fit([TASK], ["chooses"], factories=drawing) for seed in (0, 0, 1)]
    assert seen[:8] == seen[8:16] != seen[16:] and same_parts(*fits[:2])


def test_decoded_images_are_those_that_were_chosen(tmp_path: Path) -> None:
    task, seen = decoded(tmp_path), list[list[int]]()
    trainer = quick(steps=6, batch_size=4, workers=0)
    same = trainer.fit([task], ["chooses"], factories=choosing(lambda epoch, order: order, seen))
    assert same_parts(same, trainer.fit([task]))
    seen.clear()
    length = len(task.data.train) // 4
    told: list[int] = []

    def choose(epoch: int, order: Tensor) -> Tensor:
        told.append(len(seen))  # steps that are done: nothing was fetched ahead
        return torch.full_like(order, epoch)

    quick(steps=length + 1, batch_size=4, workers=1).fit(
        [task], ["chooses"], factories=choosing(choose, seen)
    )
    assert seen == [[0] * 4] * length + [[1] * 4] and told == [0, length]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (None, "nothing"),
        ([1, 2], "not a tensor"),
        (torch.zeros(COUNT), "whole numbers"),
        (torch.zeros(COUNT, dtype=torch.bool), "whole numbers"),
        (torch.zeros(1, COUNT, dtype=torch.int64), "whole numbers"),
        (torch.arange(BATCH * EPOCH - 1), "Repeat positions"),
        (torch.full((COUNT,), COUNT), "images 0 to 49"),
        (torch.full((COUNT,), -1), "images 0 to 49"),
    ],
    ids=["none", "list", "floats", "mask", "matrix", "few", "high", "low"],
)
def test_what_cannot_be_an_order_is_refused(chosen: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message) as caught:
        quick(steps=1).fit([TASK], ["chooses"], factories=choosing(lambda epoch, order: chosen))
    assert caught.value.subject == "chooses"


def test_a_task_with_a_loader_is_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compatkit.training.prepare.prepare_task", lambda *_: pytest.fail("built in vain"))
    images = torch.from_numpy(TASK.data.train.images).permute(0, 3, 1, 2)
    loader = DataLoader(TensorDataset(images, torch.from_numpy(TASK.data.train.labels)), BATCH)
    loaded = attrs.evolve(TASK, loader=loader, augment=(), size=12)
    with pytest.raises(UsageError, match="has a loader") as caught:
        quick(steps=1).fit([loaded], ["chooses"], factories=choosing(lambda epoch, order: order))
    assert caught.value.subject == "a"


def test_the_easiest_by_hand() -> None:
    easiest = module("curriculum").easiest
    losses = torch.tensor([4.0, 1.0, 3.0, 2.0])
    order = torch.tensor([2, 3, 0, 1])
    assert easiest(order, losses, 0.5).tolist() == [3, 1, 3, 1]
    assert easiest(order, losses, 0.75).tolist() == [2, 3, 1, 2]
    assert easiest(order, losses, 1.0).tolist() == [2, 3, 0, 1]
    assert easiest(order, losses, 0.01).tolist() == [1] * 4


def test_a_curriculum_conforms_and_with_all_images_is_none() -> None:
    assert_regularizer(CURRICULUM["curriculum"])
    trainer = quick(steps=2 * EPOCH)
    fit = trainer.fit([TASK], [ck.use("curriculum", share=1.0)], factories=CURRICULUM)
    assert same_parts(fit, trainer.fit([TASK]))
    assert not same_parts(trainer.fit([TASK], ["curriculum"], factories=CURRICULUM), fit)


@pytest.mark.parametrize("storage", STORED)
@pytest.mark.parametrize("stop", [EPOCH - 1, EPOCH + 2])
def test_a_curriculum_resumes_bit_by_bit(storage: str, stop: int, tmp_path: Path) -> None:
    class Interrupts(CURRICULUM["curriculum"]):  # type: ignore[misc]
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if step.number == stop + 1:
                raise KeyboardInterrupt

    settings: dict[str, Any] = {"steps": 3 * EPOCH, **STORED[storage]}
    whole = quick(**settings).fit([TASK], ["curriculum"], factories=CURRICULUM)
    kept = quick(**settings, checkpoint=tmp_path / "state.safetensors", checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        kept.fit([TASK], ["curriculum"], factories={"curriculum": Interrupts})
    resumed = kept.fit([TASK], ["curriculum"], factories=CURRICULUM)
    assert same_parts(resumed, whole) and resumed.history == whole.history
