"""Label smoothing, mixup and CutMix: timm's formulas, drawn for each step, and regularizers that see no mixed image."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import data_set, grouped, quick, same_parts
from timm.data.mixup import Mixup
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.training.batches.sampler import Sampler
from compatkit.training.networks import prepare_task
from compatkit.training.precision import Precision
from compatkit.training.randomness import seed_of

ASKED = {
    "mixup": {"mixup": 0.8},
    "cutmix": {"cutmix": 1.0},
    "all": {"mixup": 0.8, "cutmix": 1.0, "smoothing": 0.1},
}


def first_batch(task: ck.Task, step: int = 0) -> tuple[torch.nn.Module, Tensor, Tensor]:
    """A task's network before its first step, images and labels of a step."""
    state = prepare_task(task, 0, Precision("cpu", "float32", False))
    index = Sampler(48, 8, 0, task.name).at(step)
    ready = prepare(task.data.train, state.data)
    network = torch.nn.Sequential(state.extractor, state.head).train()
    return network, normalize(ready.batch(index), state.data), ready.labels[index]


def mixed(inputs: dict[str, float], images: Tensor, labels: Tensor, step: int = 0) -> tuple[Tensor, Tensor]:
    """Timm's own mixture under the seed of a step."""
    np.random.seed(seed_of(0, "mix", "a", step) % 2**32)
    names = {"mixup": "mixup_alpha", "cutmix": "cutmix_alpha", "smoothing": "label_smoothing"}
    settings = {
        "mixup_alpha": 0.0,
        "label_smoothing": 0.0,
        **{names[key]: value for key, value in inputs.items()},
    }
    return Mixup(num_classes=3, **settings)(images.clone(), labels)


@pytest.mark.parametrize("value", ASKED.values(), ids=ASKED)
def test_the_loss_is_timms_of_timms_images(value: dict[str, float]) -> None:
    task = grouped(**value)
    network, images, labels = first_batch(task)
    pixels, targets = mixed(value, images, labels)
    expected = SoftTargetCrossEntropy()(network(pixels), targets)
    fit = quick(steps=1).fit([task])
    assert fit.history[0]["losses"]["task"] == pytest.approx(float(expected.detach()), abs=1e-5)


def test_smoothing_alone_is_timms(monkeypatch: pytest.MonkeyPatch) -> None:
    task = grouped(smoothing=0.1)
    network, images, labels = first_batch(task)
    expected = LabelSmoothingCrossEntropy(0.1)(network(images), labels)
    assert quick(steps=1).fit([task]).history[0]["losses"]["task"] == pytest.approx(
        float(expected.detach()), abs=1e-5
    )


class Sees:
    """A regularizer that notes what it is given."""

    batches: ClassVar[list[tuple[Tensor, Tensor]]] = []

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> dict[str, Tensor]:
        self.batches.append((step.batch.images.clone(), step.features.detach().clone()))
        return {"loss": step.features.square().mean() * 0}


def test_regularizers_get_the_images_themselves_and_the_head_learns_from_mixed_ones() -> None:
    inputs = ASKED["all"]
    task = grouped(**inputs)
    network, images, labels = first_batch(task)
    Sees.batches = []
    fit = quick(steps=1).fit([task], ["sees"], factories={"sees": Sees})
    pixels, targets = mixed(inputs, images, labels)
    expected = F.cross_entropy(network(pixels), targets)
    assert fit.history[0]["losses"]["task"] == pytest.approx(float(expected.detach()), abs=1e-5)
    seen, features = Sees.batches[0]
    assert torch.equal(seen, images)
    torch.testing.assert_close(features, network[0](images))


def test_without_normalization_by_batches_weights_are_those_without_the_regularizer() -> None:
    """One pass of mixed images, or one beside that of the images themselves."""
    task = grouped(**ASKED["all"])
    alone = quick(steps=3, optimizer="sgd").fit([task])
    beside = quick(steps=3, optimizer="sgd").fit([task], ["sees"], factories={"sees": Sees})
    for parameter, other in zip(
        alone.tasks["a"].head.parameters(), beside.tasks["a"].head.parameters(), strict=True
    ):
        torch.testing.assert_close(parameter, other, rtol=1e-4, atol=1e-5)


def test_running_statistics_beside_regularizers_are_those_of_the_images_themselves() -> None:
    """As in evaluation; what moves them is the momentum times the statistics of one unmixed batch."""
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16, mixup=0.8)
    plain = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)
    fits = [quick(steps=1, lr=1e-9).fit([each], ["sees"], factories={"sees": Sees}) for each in (task, plain)]
    buffers = [dict(fit.tasks["a"].extractor.named_buffers()) for fit in fits]
    assert buffers[0].keys() and all(
        torch.equal(value, buffers[1][name]) for name, value in buffers[0].items()
    )


@pytest.mark.parametrize(
    "uses", [[], ["identical_init", "dcc", "rotation_prediction"]], ids=["alone", "beside"]
)
def test_a_run_goes_on_with_the_same_draws(
    tmp_path: Path, killed: Callable[..., None], uses: list[str]
) -> None:
    tasks = [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=16, **ASKED["all"])
        for seed, name in enumerate(("a", "b"))
    ]
    whole = quick(steps=5, accumulate=2).fit(tasks, uses)
    trainer = quick(steps=5, accumulate=2, checkpoint=tmp_path / "run", checkpoint_every=1)
    killed(trainer, tasks, uses, after=3)
    resumed = trainer.fit(tasks, uses)
    assert same_parts(whole, resumed) and whole.history == resumed.history


def test_generators_are_as_before_and_weight_nothing_is_no_regularizer() -> None:
    np.random.seed(5), random.seed(5)
    expected = np.random.rand(), random.random()
    np.random.seed(5), random.seed(5)
    task = grouped(**ASKED["all"])
    alone = quick(steps=2).fit([task])
    assert (np.random.rand(), random.random()) == expected
    nothing = quick(steps=2).fit([task], [ck.use("rotation_prediction", weight=0)])
    assert same_parts(alone, nothing)


def test_a_plan_states_what_is_on_and_no_other_plan_changes() -> None:
    plain, on = quick(steps=1).fit([grouped()]), quick(steps=1).fit([grouped(**ASKED["all"])])
    stated = {"smoothing", "mixup", "cutmix"}
    assert not stated & plain.run["tasks"][0].keys() and stated <= on.run["tasks"][0].keys()
    assert plain.plan != on.plan
    assert on.run["environment"]["execution"]["mode"] == "eager"


@pytest.mark.parametrize(
    "settings",
    [{"smoothing": 1.0}, {"smoothing": -0.1}, {"mixup": -1}, {"cutmix": float("nan")}, {"mixup": "much"}],
)
def test_values_that_are_none_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        grouped(**settings)


def test_what_mixes_nothing_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        grouped(own_head=False, mixup=0.8)
    assert caught.value.subject == "mixup"
    with pytest.raises(UsageError) as caught:
        quick(steps=1, batch_size=6, accumulate=2).fit([grouped(mixup=0.8)])
    assert caught.value.subject == "a"


def test_compilation_is_asked_for_in_vain() -> None:
    explained = quick(steps=1, execution="compile").explain([grouped(mixup=0.8)])
    assert explained.execution["mode"] == "eager" and "mixed" in explained.execution["reason"]
    assert attrs.asdict(explained)
