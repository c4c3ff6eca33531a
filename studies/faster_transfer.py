"""Faster transfer: does a source's extractor help with the target's head before and soon after fine-tuning starts?

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible Representations",
    Sec. 5.3, Fig. 4 (a rotation head from CIFAR-100; ImageNet to CIFAR-10, STL-10 and CIFAR-100, ResNet-56).
Here: a rotation head from Fashion-MNIST, MNIST to USPS or back; or one from CIFAR-100, and one half of CIFAR-10 to the
    other, shifted, or CIFAR-10 to STL-10.

All networks are trained with rotation prediction. In the first two arms its head was trained before on other images and
is frozen; in the others each network has its own.

    compatkit study run 3.11 --data DIR --out OUT
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import nn

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.experiments.studies import Measure, Outcome, Reported, Results, Run, Study
from compatkit.hooks import Register

from ._curves import along_measures
from ._pairs import halves, ordered, rotation, temporary_registry

ARMS = ("rp", "iiw+rp", "independent", "re-initialised")
"""``rp``: source extractor with the target's head, both trained with one frozen rotation head; ``iiw+rp``: also from
the same initial weights; ``independent``: both with their own rotation heads; ``re-initialized``: the same source
extractor with a new random head."""
STEPS = (0, 10, 100, 1000)
ROLES = ("rotation", "source", "target")


@attrs.define(eq=False)
class Keep:
    """Keeps copies of a network during training, beginning before the first step."""

    steps: tuple[int, ...]
    networks: dict[int, nn.Module] = attrs.field(factory=dict)

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        """Copy the initial network."""
        (state,) = setup.tasks.values()
        self._keep(0, state)

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Copy the network after the requested steps."""
        self._keep(step.number + 1, step.task)

    def _keep(self, done: int, state: ck.TaskState) -> None:
        if done in self.steps:
            self.networks[done] = copy.deepcopy(nn.Sequential(state.extractor, state.head))


def accuracy(
    network: nn.Module,
    split: ck.Split,
    state: ck.TaskState,
    run: Run,
    outputs: Sequence[int] | None = None,
) -> float:
    """Return the accuracy of a copy of a network under batch statistics, which change its buffers.

    Args:
        network: Takes images prepared as for ``state``, on any device.
        split: Labeled images, with classes in the order of the outputs, or mapped by ``outputs``.
        state: Task that defines the preparation of images.
        run: The run, whose seed and settings define order and batch size.
        outputs: Output for each class of the split, -1 if there is none: images of such classes contribute to batch
            statistics but are not counted.
    """
    means = torch.tensor(range(len(split.classes)) if outputs is None else outputs)
    known = (means >= 0).nonzero().flatten()
    data, device = state.data, next(network.parameters()).device
    shown = split.converted(data.channels).resized(data.size)
    pixels = torch.from_numpy(shown.images).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    order = torch.randperm(len(shown), generator=torch.Generator().manual_seed(run.seed))
    labels, right = torch.from_numpy(shown.labels), 0
    counted = means[labels] >= 0
    with torch.no_grad():
        for index in torch.tensor_split(order, -(-len(order) // run.settings["test_batch"])):
            logits = network.train()(((pixels[index] - mean) / std).to(device)).cpu()
            answers = known[logits[:, means[known]].argmax(1)]
            right += int(((answers == labels[index]) & counted[index]).sum())
    return right / int(counted.sum())


def tasks_of(run: Run) -> list[ck.Task]:
    """Return the tasks of the rotation head, of the source and of the target.

    Raises:
        UsageError: The setting does not name three data sets.
    """
    settings, tasks = run.settings, []
    if len(settings["data"]) != len(ROLES):
        raise UsageError(
            f"The setting 'data' must name three data sets, for {', '.join(ROLES)}; got {settings['data']!r}.",
            subject="data",
        )
    counts = {"train": settings["train"] or None, "test": settings["test"] or None}
    for name, known in zip(ROLES, settings["data"], strict=True):
        if known in ("plain", "shifted"):
            data = halves(run)[known == "shifted"]
        else:
            data = run.load(known)
        augment = ("crop", "flip") if data.train.channels == "RGB" else ()
        data = data.subset(**counts)
        if name == "target":
            data = ordered(data, settings["classes"])
        tasks.append(
            ck.Task(name, data, settings["model"], settings["cut"], size=settings["image"], augment=augment)
        )
    return tasks


def train(run: Run, tasks: list[ck.Task]) -> list[ck.Fit]:
    """Return source and target, trained with one frozen rotation head, or with their own heads.

    Each network has its own seed: with the same seed rotation heads would start equal, and the controls would be partly
    compatible.

    Args:
        run: Settings, arm and seed.
        tasks: Source and target.
    """
    settings, shared = run.settings, "rp" in run.arm.split("+")
    uses = [rotation(run)]
    if run.arm == "iiw+rp":
        uses.append(ck.use("identical_init", seed=run.seed, class_layer=settings["class_layer"]))
    first, *trainers = (
        ck.Trainer(
            steps=settings["steps"],
            lr=settings["lr"],
            batch_size=settings["batch_size"],
            seed=len(tasks) * run.seed + index,
            progress=False,
        )
        for index in range(len(tasks))
    )
    head = first.fit(tasks[:1], uses) if shared else None
    return [
        trainer.fit([task], uses, frozen=head, frozen_statistics=settings["frozen_statistics"])
        for trainer, task in zip(trainers, tasks[1:], strict=True)
    ]


def run(run: Run) -> Outcome:
    """Train source and target, swap the extractor, fine-tune, and measure on the target's test images meanwhile.

    ``own`` is the accuracy of the target's own network, ``steps-10`` that of the swapped one after ten steps.
    """
    settings, tasks, done = run.settings, tasks_of(run), done_by(run.settings["tune"])
    source, target = train(run, tasks)
    test = tasks[-1].data.test
    own = accuracy(copy.deepcopy(target.network("target")), test, target.tasks["target"], run)
    keep = Keep(done)
    with temporary_registry({"source": source, "target": target}) as registry:
        swapped = registry.task(
            "swapped",
            tasks[-1].data,
            extractor="source/source.extractor",
            head=None if run.arm == "re-initialised" else "target/target.head",
            augment=tasks[-1].augment,
        )
        tuned = ck.Trainer(
            steps=max(settings["tune"], 1),
            lr=settings["tune_lr"],
            weight_decay=0.0,
            schedule="constant",
            batch_size=settings["batch_size"],
            seed=run.seed,
            progress=False,
        ).fit([swapped], ["keep"], factories={"keep": lambda: keep})
    state = tuned.tasks["swapped"]
    figures = {
        f"steps-{step}": accuracy(network, test, state, run) for step, network in keep.networks.items()
    }
    chance = float(np.bincount(test.labels).max() / len(test))
    return Outcome(values={"own": own, **figures, "chance": chance})


def done_by(tune: int) -> tuple[int, ...]:
    """Return the steps of fine-tuning after which to measure, up to ``tune``.

    Raises:
        UsageError: There would be no measurement at the end.
    """
    if tune not in STEPS:
        raise UsageError(
            f"The setting 'tune' must be one of {', '.join(map(str, STEPS))}, the measured steps; got {tune}.",
            subject="tune",
        )
    return tuple(done for done in STEPS if done <= tune)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw accuracy over steps of fine-tuning, as the paper's Fig. 4."""
    done = done_by(results.settings["tune"])
    ticks = [f"{step:,}" for step in done]
    return {
        "transfer": along_measures(results, [f"steps-{step}" for step in done], ticks, "steps of fine-tuning")
    }


def _reported(value: float, which: str) -> Reported:
    where = f"Gygli et al. 2021, Sec. 5.3, Fig. 4: {which} of three targets, with IIW or without"
    return Reported("rp", "steps-0", value, where, "%")


_CPU: dict[str, Any] = {
    "data": ["fashion-mnist", "mnist", "usps"],
    "model": "resnet20_cifar",
    "cut": "layer2",
    "image": 16,
    "train": 5000,
    "test": 2000,
    "steps": 300,
    "batch_size": 64,
    "test_batch": 500,
    "half_turn": "flip",  # a half turn makes a 9 of a 6
    "views": "mixed",
    "rp_weight": 1.0,
    "classes": "rolled",
    "class_layer": "identical",
    "lr": 0.01,
    "frozen_statistics": "stored",
    "tune": STEPS[-1],
    "tune_lr": 0.01,
}
_SMALLER = (
    "ResNet-20, 5,000 images and 300 steps of 64 in place of ResNet-56 and 20,000 of 512; frozen heads with stored "
    "statistics, not the batch's; accuracy over images, where the paper's figure has the mean over classes"
)
_UPSIDE_DOWN = "turned upside down in place of a half turn"
_HALVES = ["cifar100", "plain", "shifted"]
STUDY = Study(
    title="faster transfer",
    question="A source's extractor under the target's head, trained apart against one frozen rotation head: is it "
    "ahead of independent parts and of a head drawn anew, before and soon after fine-tuning starts?",
    reference="Gygli, Uijlings, Ferrari (2021), Towards Reusable Network Components by Learning Compatible "
    "Representations, Sec. 5.3, Fig. 4, App. E",
    arms=ARMS,
    measures=(
        Measure(name="own", title="target's own network"),
        *(Measure(name=f"steps-{step}", title=f"swapped, after {step:,} steps") for step in STEPS),
        Measure(name="chance", title="chance", better="none", drawn=False),
    ),
    # ``data``: data sets of the rotation head, the source and the target.
    sizes={
        "cpu": _CPU,
        "back": {**_CPU, "data": ["fashion-mnist", "usps", "mnist"]},
        "halves": {**_CPU, "data": _HALVES, "image": 32, "half_turn": "rotate"},
        "paper": {
            **_CPU,
            "data": ["cifar100", "cifar10", "stl10"],
            "model": "resnet56_cifar",
            "image": 32,
            "train": 0,  # all
            "test": 0,
            "steps": 20_000,
            "batch_size": 512,
            "test_batch": 512,
            "half_turn": "rotate",
            "classes": "own",
            "frozen_statistics": "batch",
        },
    },
    scale={
        "cpu": f"a rotation head from Fashion-MNIST, MNIST to USPS at 16x16, {_UPSIDE_DOWN}, in place of "
        f"CIFAR-100, ImageNet and three targets; {_SMALLER}.",
        "back": f"a rotation head from Fashion-MNIST, USPS to MNIST at 16x16, {_UPSIDE_DOWN}, in place of "
        f"CIFAR-100, ImageNet and three targets; {_SMALLER}.",
        "halves": "a rotation head from CIFAR-100, one half of CIFAR-10 to the other, which is shifted, in place of "
        f"ImageNet and three targets; {_SMALLER}.",
        "paper": "CIFAR-10 in place of ImageNet, and STL-10 alone of three targets; fine-tuned for 1,000 steps, where "
        "the paper stops after 5 epochs and does not say the learning rate; accuracy over images, where the paper's "
        "figure has the mean over classes.",
    },
    paper=(_reported(40.0, "lowest"), _reported(66.4, "highest")),
    run=run,
    draw=draw,
    data=("fashion-mnist", "mnist", "usps", "cifar100", "cifar10", "stl10"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.11."""
    register("3.11", lambda: STUDY)
