"""Training of plugins before the first step: its images, what is kept of it, resuming, moving averages, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from small import data_set, quick, same_parts
from torch import Tensor

import compatkit as ck
from compatkit.errors import PluginError
from compatkit.plugins import RunPlugins


class Pretrains:
    """Adds the mean of its images to all weights of the extractor, and notes what it saw."""

    calls = 0
    start: ClassVar[dict[str, Tensor]] = {}
    seen: ClassVar[list[Tensor]] = []

    @ck.hookimpl
    def compatkit_pretrain(self, setup: ck.SetUp, pretraining: ck.Pretraining) -> Mapping[str, Any]:
        Pretrains.calls += 1
        task = setup.tasks["a"]
        Pretrains.seen = [
            batch.images for batch in pretraining.batches(task, "pretrains", "a", steps=3, batch_size=16)
        ]
        task.head.eval()
        loss = sum(parameter.square().sum() for parameter in task.extractor.parameters())
        loss.backward()  # leaves gradients behind
        with torch.no_grad():
            for parameter in task.extractor.parameters():
                parameter.add_(1.0)
        Pretrains.start = {key: value.clone() for key, value in task.extractor.state_dict().items()}
        return {"mean": float(Pretrains.seen[0].mean())}


FACTORIES = {"pretrains": Pretrains}


class Knowing:
    """A trainer whose fits know the plugin."""

    def __init__(self, trainer: ck.Trainer) -> None:
        self.trainer = trainer

    def fit(self, tasks: Any, uses: Any) -> ck.Fit:
        return self.trainer.fit(tasks, uses, factories=FACTORIES)


def task(**settings: Any) -> ck.Task:
    kwargs = {"widths": [6], "img_size": [12, 12]}
    return ck.Task("a", data_set("a"), "fully_connected", "blocks.0", kwargs=kwargs, **settings)


def fit(**settings: Any) -> ck.Fit:
    return quick(**{"steps": 2, **settings}).fit([task()], ["pretrains"], factories=FACTORIES)


def test_the_first_step_begins_from_what_came_of_it():
    pretrained = fit(steps=1, optimizer="sgd", lr=1e-8)
    for key, value in pretrained.tasks["a"].extractor.state_dict().items():
        torch.testing.assert_close(value, Pretrains.start[key])
    plain = quick(steps=1).fit([task()])
    assert pretrained.tasks["a"].initial != plain.tasks["a"].initial
    assert pretrained.run["pretraining"]["initial"] == {"a": pretrained.tasks["a"].initial}
    assert pretrained.run["pretraining"]["plugins"] == {
        "pretrains": {"mean": float(Pretrains.seen[0].mean())}
    }
    assert "pretraining" not in plain.run


def test_batches_are_preprocessed_training_images_in_an_order_of_their_own():
    fit()
    first, again = list(Pretrains.seen), fit() and Pretrains.seen
    assert all(torch.equal(tensor, other) for tensor, other in zip(first, again, strict=True))
    whole = torch.cat(first)  # 48 images: each once
    assert len({tuple(tensor.flatten().tolist()) for tensor in whole}) == 48
    assert abs(float(whole.mean())) < 1e-5
    assert float(whole.std(correction=0)) == pytest.approx(1, abs=1e-4)
    quick(steps=1, seed=1).fit([task()], ["pretrains"], factories=FACTORIES)
    assert not torch.equal(first[0], Pretrains.seen[0])
    quick(steps=1).fit([task(augment=("crop",))], ["pretrains"], factories=FACTORIES)
    assert not torch.equal(first[0], Pretrains.seen[0])


def test_modes_and_gradients_of_a_plugin_do_not_reach_the_run():
    seen: list[bool] = []

    class Look:
        @ck.hookimpl
        def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
            network = (step.task.extractor, step.task.head)
            seen.append(all(module.training for module in network))
            seen.append(all(value.grad is None for part in network for value in part.parameters()))
            return batch

    quick(steps=1).fit([task()], ["pretrains", "look"], factories={**FACTORIES, "look": Look})
    assert seen == [True, True]


def test_a_resumed_run_is_the_same_bit_by_bit_and_does_not_pretrain_again(
    tmp_path: Path, killed: Any
) -> None:
    whole = fit(steps=4, ema=0.5)
    trainer = Knowing(quick(steps=4, ema=0.5, checkpoint=tmp_path / "run", checkpoint_every=1))
    for after in (0, 2):
        killed(trainer, [task()], ["pretrains"], after=after)
        Pretrains.calls = 0
        resumed = trainer.fit([task()], ["pretrains"])
        assert Pretrains.calls == 0
        assert same_parts(whole, resumed)
        assert whole.run == resumed.run
        assert whole.tasks["a"].initial == resumed.tasks["a"].initial
        (tmp_path / "run").unlink()


def test_moving_averages_begin_there():
    averages = fit(steps=1, ema=0.999, optimizer="sgd", lr=1e-8).averages
    assert averages is not None
    for key, value in averages["a.extractor"].items():
        torch.testing.assert_close(value, Pretrains.start[key])


def test_explaining_and_profiling_do_not_pretrain():
    Pretrains.calls = 0
    explanation = quick(steps=1).explain([task()], ["pretrains"], factories=FACTORIES)
    quick(steps=1).profile([task()], ["pretrains"], steps=1, factories=FACTORIES)
    assert Pretrains.calls == 0
    assert "pretrains" in str(explanation)
    table = RunPlugins.create(["pretrains"], factories=FACTORIES).explain()
    assert "pretrain  1      pretrains  1       once" in table


def test_published_parts_say_it(tmp_path: Path):
    pretrained = fit()
    registry = ck.Registry.init(tmp_path / "registry")
    registry.publish(pretrained, prefix="x")
    training = registry.store.manifest("x/a.extractor").training
    assert training["pretraining"] == pretrained.run["pretraining"]
    assert training["initial"] == [pretrained.tasks["a"].initial]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "it is a NoneType, not a mapping"),
        ({"loss": float("nan")}, "cannot be stored in a manifest.*nan"),
        ({"loss": torch.zeros(1)}, "cannot be stored in a manifest.*Tensor"),
    ],
)
def test_what_no_manifest_can_hold_is_refused(text: Any, message: str) -> None:
    class Says:
        @ck.hookimpl
        def compatkit_pretrain(self) -> Any:
            return text

    with pytest.raises(PluginError, match=f"(?is)Plugin 'says': compatkit_pretrain.*{message}"):
        quick(steps=1).fit([task()], ["says"], factories={"says": Says})


def test_more_images_in_a_batch_than_there_are():
    class Wants:
        @ck.hookimpl
        def compatkit_pretrain(self, setup: ck.SetUp, pretraining: ck.Pretraining) -> Mapping[str, Any]:
            return {"count": len(list(pretraining.batches(setup.tasks["a"], "w", steps=1, batch_size=49)))}

    with pytest.raises(PluginError, match="48 training images, fewer than a batch of 49"):
        quick(steps=1).fit([task()], ["wants"], factories={"wants": Wants})
