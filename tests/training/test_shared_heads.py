"""Two tasks that share an auxiliary head, against a loop written by hand: weight, schedule, names, owners."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from small import data_set, quick

import compatkit as ck
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.training.batches.sampler import Sampler
from compatkit.training.networks import prepare_task
from compatkit.training.precision import Precision

STEPS, RATE, DECAY, WEIGHT = 4, 0.01, 1e-3, 0.5
CLASSES = {"left": ("0", "1", "2"), "right": ("2", "0", "1")}


def tasks() -> list[ck.Task]:
    """The same class names in another order, so that indices mislead."""
    return [
        ck.Task(name, data_set(name, classes=classes, seed=seed), "resnet8_cifar", "layer2", size=16)
        for seed, (name, classes) in enumerate(CLASSES.items())
    ]


def test_joint_training_equals_a_hand_written_loop() -> None:
    start: list[torch.nn.Module] = []

    class Copy:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            start.append(copy.deepcopy(setup.auxiliary["dcc"].module))

    uses = [ck.use("dcc", weight=WEIGHT), ck.use("copy", after=("dcc",))]
    fit = quick(steps=STEPS, lr=RATE, weight_decay=DECAY).fit(tasks(), uses, factories={"copy": Copy})

    shared = start[0].train()
    states = {task.name: prepare_task(task, 0, Precision("cpu", "float32", True)) for task in tasks()}
    owners = {"shared": shared}
    for name, state in states.items():
        owners |= {f"{name}.extractor": state.extractor.train(), f"{name}.head": state.head.train()}
    optimizers = {
        name: torch.optim.Adam(module.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
        for name, module in owners.items()
    }
    examples = {task.name: prepare(task.data.train, states[task.name].data) for task in tasks()}
    for step in range(STEPS):
        for name, state in states.items():
            index = Sampler(48, 8, 0, name).at(step)
            images = normalize(examples[name].images[index], state.data)
            images = images.contiguous(memory_format=torch.channels_last)
            labels = examples[name].labels[index]
            features = state.extractor(images)
            common = torch.tensor([CLASSES["left"].index(CLASSES[name][int(label)]) for label in labels])
            loss = F.cross_entropy(state.head(features), labels)
            (loss + WEIGHT * F.cross_entropy(shared(features), common)).backward()
            for owner in (f"{name}.extractor", f"{name}.head", "shared"):
                optimizers[owner].param_groups[0]["lr"] = RATE * 0.1**step  # a quarter of four steps is one
                optimizers[owner].step()
                optimizers[owner].zero_grad()

    trained = {"shared": fit.auxiliary["dcc"].module}
    for name, state in fit.tasks.items():
        trained |= {f"{name}.extractor": state.extractor, f"{name}.head": state.head}
    for owner, module in owners.items():
        for key, value in module.state_dict().items():
            torch.testing.assert_close(trained[owner].state_dict()[key], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("views", "updates"), [("per_view", 1), ("mixed", 1), ("separate", 4)])
def test_running_statistics_move_as_the_views_say(views: str, updates: int) -> None:
    def buffers(uses: list[ck.RegularizerConfig]) -> dict[str, torch.Tensor]:
        extractor = quick(steps=1).fit(tasks()[:1], uses).tasks["left"].extractor
        return {key: value for key, value in extractor.named_buffers() if "running" in key or "num" in key}

    alone, together = buffers([]), buffers([ck.use("rotation_prediction", views=views)])
    counts = {int(value) for key, value in together.items() if key.endswith("num_batches_tracked")}
    assert counts == {updates}
    same = all(torch.equal(value, together[key]) for key, value in alone.items())
    assert same == (views != "separate")  # only the upright view's statistics, bit by bit
