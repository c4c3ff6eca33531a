"""The trainer against a hand-written loop, and the promises it makes: exactness, isolation, one owner each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import data_set, quick, same_parts

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.training.batches.sampler import Sampler
from compatkit.training.networks import prepare_task
from compatkit.training.precision import Precision


def pair(**settings: Any) -> list[ck.Task]:
    """Two small tasks with the same classes and other images."""
    return [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16), **settings)
        for seed, name in enumerate(("left", "right"))
    ]


def test_alternating_two_tasks_equals_a_hand_written_loop() -> None:
    tasks = pair()
    trained = quick(steps=3, schedule="constant", weight_decay=1e-3).fit(tasks)
    for task in tasks:
        state = prepare_task(task, 0, Precision("cpu", "float32", True))
        network = torch.nn.Sequential(state.extractor, state.head).train()
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-3, fused=True)
        examples, order = prepare(task.data.train, state.data), Sampler(48, 8, 0, task.name)
        for step in range(3):
            index = order.at(step)
            images = normalize(examples.images[index], state.data).contiguous(
                memory_format=torch.channels_last
            )
            F.cross_entropy(network(images), examples.labels[index]).backward()
            optimizer.step()
            optimizer.zero_grad()
        expected, got = network.state_dict(), trained.network(task.name).state_dict()
        assert all(torch.equal(expected[key], got[key]) for key in expected)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    first, again, other = (quick(steps=2, seed=seed).fit(pair(), ["dcc"]) for seed in (0, 0, 1))
    assert same_parts(first, again)
    assert first.plan == again.plan and first.history == again.history
    assert not same_parts(first, other) and first.plan != other.plan


def test_weight_zero_is_bitwise_the_run_without_the_plugin() -> None:
    without = quick(steps=3).fit(pair(), ["identical_init"])
    silent = quick(steps=3).fit(
        pair(), ["identical_init", ck.use("dcc", weight=0), ck.use("rotation_prediction", weight=0)]
    )
    assert same_parts(without, silent)
    assert not silent.auxiliary


def test_a_plugin_does_not_disturb_the_random_numbers_of_another_task() -> None:
    """Auxiliary heads draw their initial weights from streams of their own."""
    seen: list[dict[str, torch.Tensor]] = []

    class Record:
        @ck.hookimpl
        def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
            network = torch.nn.Sequential(step.task.extractor, step.task.head)
            seen.append(
                {key: value.clone() for key, value in network.state_dict().items()} | {"index": batch.index}
            )
            return batch

    quick(steps=1).fit(pair(), ["record"], factories={"record": Record})
    quick(steps=1).fit(pair(), ["dcc", "record"], factories={"record": Record})
    for alone, with_head in zip(seen[:2], seen[2:], strict=True):
        assert all(torch.equal(value, with_head[key]) for key, value in alone.items())


def test_the_global_random_state_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    quick(steps=1).fit(pair()[:1])
    assert torch.equal(torch.rand(2), expected)


ALL = ["identical_init", "dcc", "rotation_prediction"]


@pytest.fixture(scope="module")
def whole() -> ck.Fit:
    """Five steps in one go."""
    return quick(steps=5).fit(pair(augment=("crop", "flip")), ALL)


@pytest.mark.parametrize("stopped_after", [1, 3, 4])
def test_resume_is_bitwise_whatever_the_step(tmp_path: Path, whole: ck.Fit, stopped_after: int) -> None:
    class Kill:
        """Stops the run right after a checkpoint, as a kill would."""

        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if step.number == stopped_after and step.task.name == "left":
                raise KeyboardInterrupt

    trainer = quick(steps=5, checkpoint=tmp_path / "run.safetensors", checkpoint_every=1)
    uses = [*ALL, "kill"]
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(pair(augment=("crop", "flip")), uses, factories={"kill": Kill})

    class Live:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            self.first = getattr(self, "first", step.number)
            assert self.first == stopped_after

    resumed = trainer.fit(pair(augment=("crop", "flip")), uses, factories={"kill": Live})
    assert same_parts(whole, resumed)
    assert resumed.history == whole.history


def test_losses_are_weighted_and_active_in_their_phase_only() -> None:
    class Pull:
        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
            return {"pull": step.features.square().mean()}  # type: ignore[union-attr]

    fit = quick(steps=3).fit(pair()[:1], [ck.use("pull", start=1, stop=2)], factories={"pull": Pull})
    assert ["pull/pull" in row["losses"] for row in fit.history] == [False, True, False]


def test_phases_that_overlap_begin_and_end_at_their_own_steps() -> None:
    class Pull:
        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
            return {"pull": step.features.square().mean()}  # type: ignore[union-attr]

    uses = [
        ck.use("pull", as_="a", start=1, stop=4),
        ck.use("pull", as_="b", start=3),
        ck.use("pull", as_="c", stop=2),
    ]
    fit = quick(steps=5).fit(pair()[:1], uses, factories={"pull": Pull})
    active = ["".join(name for name in "abc" if f"{name}/pull" in row["losses"]) for row in fit.history]
    assert active == ["c", "ac", "a", "ab", "b"]


def test_views_are_replaced_not_changed() -> None:
    seen: list[torch.Tensor] = []

    class Dark:
        @ck.hookimpl
        def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
            import attrs

            return attrs.evolve(batch, images=torch.zeros_like(batch.images))

        @ck.hookimpl
        def compatkit_after_backward(self, step: ck.Step) -> None:
            seen.append(step.batch.images)

    quick(steps=1).fit(pair()[:1], ["dark"], factories={"dark": Dark})
    assert float(seen[0].abs().sum()) == 0.0


@pytest.fixture(scope="module")
def first() -> ck.Fit:
    """One network and the heads that it was trained against."""
    return quick(steps=3).fit(pair()[:1], ALL)


@pytest.mark.parametrize("statistics", ["stored", "batch"])
def test_frozen_heads_are_bitwise_equal_after_a_fit(first: ck.Fit, statistics: Any) -> None:
    before = {
        name: {k: v.clone() for k, v in h.module.state_dict().items()} for name, h in first.auxiliary.items()
    }
    second = quick(steps=3).fit(pair()[1:], ALL, frozen=first, frozen_statistics=statistics)
    for name, head in second.auxiliary.items():
        assert all(torch.equal(value, before[name][key]) for key, value in head.module.state_dict().items())
        assert head.digest == first.auxiliary[name].digest
    anchors = [
        {(a.kind, a.digest) for a in fit.tasks[n].anchors} for fit, n in ((first, "left"), (second, "right"))
    ]
    assert anchors[0] == anchors[1]  # same initial weights, same heads: what makes the parts fit


def test_frozen_heads_that_nobody_uses_and_double_names_are_refused() -> None:
    left, right = pair()
    first = quick(steps=1).fit([left], ["dcc"])
    with pytest.raises(UsageError, match="No regularizer of this run uses the frozen auxiliary head 'dcc'"):
        quick(steps=1).fit([right], [], frozen=first)
    with pytest.raises(UsageError, match="Task names must differ"):
        quick(steps=1).fit([left, left])
    with pytest.raises(UsageError, match="at least one task"):
        quick(steps=1).fit([])


def test_warm_start_takes_the_weights_but_not_the_class_layer() -> None:
    left, right = pair()
    first = quick(steps=2).fit([left])
    warm = ck.Task(
        "warm", right.data, "resnet8_cifar", "layer2", size=(16, 16), weights=first.weights("left")
    )
    state = prepare_task(warm, 0, Precision("cpu", "float32", True))
    inputs = first.weights("left")
    taken = {**state.extractor.state_dict(), **state.head.state_dict()}
    for key, value in taken.items():
        assert torch.equal(value, inputs[key]) == (not key.startswith(state.class_layer)), key


def test_weights_of_another_network_are_refused() -> None:
    left, _ = pair()
    task = ck.Task(
        "x", left.data, "resnet8_cifar", "layer2", size=(16, 16), weights={"conv.weight": torch.zeros(1)}
    )
    with pytest.raises(
        UsageError,
        match=r"weights do not fit resnet8_cifar: .* missing: .* not known to it: conv.weight",
    ):
        quick(steps=1).fit([task])
