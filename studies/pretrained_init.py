"""Pretrained initial weights: are networks that were pretrained separately harder to make compatible?

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", Sec. 4 (rotation prediction on ILSVRC-12 at 32x32; CIFAR-10 and STL-10, ResNet-56).
Here: rotation prediction on Fashion-MNIST, then MNIST and USPS; or on CIFAR-100, then two halves of CIFAR-10, or the
    paper's pair.

Without IIW, each network starts from its own pretrained one: same images, other seeds. With IIW both start from the
same. Pretraining uses only rotations as labels: a network classifies four rotations of every image. All its weights are
used except the class layer; auxiliary heads start from random weights, as the paper says nothing else. Arms
``random-...`` are the same methods from random weights, as in study 3.1.

    compatkit study run 3.2 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import attrs
import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._arms import accuracy
from ._pairs import (
    DATA,
    MEASURES,
    REFERENCE,
    SIZES,
    SMALLER,
    chance_of,
    outcome,
    reported,
    tasks_of,
    trainer_of,
    uses_of,
)
from ._rows import rows

METHODS = ("none", "rp", "dcc", "iiw", "iiw+dcc")
STARTS = ("pretrained", "random")
PRETRAINED: dict[str, dict[str, Any]] = {
    "cpu": {**SIZES["cpu"], "source": "fashion-mnist", "pretrain_steps": 500},
    "halves": {**SIZES["halves"], "source": "cifar100", "pretrain_steps": 500},
    "paper": {**SIZES["paper"], "source": "cifar100", "pretrain_steps": 20_000},
}
"""``source``: data set of the pretraining, as many images as of a task."""
PRETRAINED_SCALE = {
    "cpu": "500 steps of pretraining on Fashion-MNIST in place of ILSVRC-12, then MNIST and USPS at 16x16 in place "
    f"of CIFAR-10 and STL-10, {SMALLER}.",
    "halves": "500 steps of pretraining on CIFAR-100 in place of ILSVRC-12, then two halves of CIFAR-10, one of "
    f"them shifted, in place of CIFAR-10 and STL-10, {SMALLER}.",
    "paper": "pretrained on CIFAR-100 in place of ILSVRC-12, for as many steps as are trained; how many the paper "
    "takes is not in it.",
}
ANGLES = ("0 degrees", "90 degrees", "180 degrees", "270 degrees")


def turned(split: ck.Split, count: int) -> ck.Split:
    """Return some images of a split in four rotations each, with the rotation as class; labels are ignored.

    Args:
        split: Square images.
        count: Number of images, a fixed draw; 0 for all.
    """
    some = split.unlabeled().subset(count or len(split), seed=0)
    images = some.read(range(len(some)))
    views = np.concatenate([np.rot90(images, turns, (1, 2)) for turns in range(len(ANGLES))])
    return ck.Split(views, np.repeat(np.arange(len(ANGLES)), len(images)), ANGLES, split.name)


def pretrain(run: Run, index: int) -> ck.Fit:
    """Return a network pretrained by rotation prediction; each ``index`` gives other initial weights.

    Args:
        run: Settings and seed.
        index: Number of the network, from 0.
    """
    settings = run.settings
    source = run.load(settings["source"])
    data = ck.DataSet(
        source.name, turned(source.train, settings["train"]), turned(source.test, settings["test"])
    )
    # Not mirrored: a mirrored quarter turn is a quarter turn the other way.
    augment = () if source.train.channels == "L" else ("crop",)
    task = ck.Task(
        "turned", data, settings["model"], settings["cut"], size=settings["image"], augment=augment
    )
    trainer = attrs.evolve(trainer_of(run), steps=settings["pretrain_steps"], seed=2 * run.seed + index)
    return trainer.fit([task])


def started(run: Run, tasks: Sequence[ck.Task], *, same: bool) -> tuple[list[ck.Task], list[ck.Fit]]:
    """Return tasks that start from pretrained weights, and the pretrained networks: one for all, or one each.

    Args:
        run: Settings and seed.
        tasks: Without initial weights of their own.
        same: Whether all tasks start from one pretrained network.
    """
    before = [pretrain(run, index) for index in range(1 if same else len(tasks))]
    weights = [fit.weights("turned") for fit in before] * (len(tasks) if same else 1)
    return [attrs.evolve(task, weights=start) for task, start in zip(tasks, weights, strict=True)], before


def run(run: Run) -> Outcome:
    """Pretrain one network or two, start both tasks from them, train, exchange heads, measure."""
    start, _, methods = run.arm.partition("-")
    tasks, before = tasks_of(run), list[ck.Fit]()
    if start == "pretrained":
        tasks, before = started(run, tasks, same="iiw" in methods.split("+"))
    result = outcome(run, [trainer_of(run).fit(tasks, uses_of(run, methods))], tasks)
    accuracies = [accuracy(fit, fit.tasks["turned"].task.data.test) for fit in before]
    known = [value for value in accuracies if value is not None]
    return Outcome(
        values={**result.values, "turns": mean(known) if known else None}, figure_data=result.figure_data
    )


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw recombined accuracy from pretrained and from random weights, one row per method."""
    ways = {
        f"from {start} weights": {
            methods: results.known(f"{start}-{methods}", "recombined")
            for methods in METHODS
            if f"{start}-{methods}" in results.arms
        }
        for start in STARTS
    }
    return {"starts": rows(ways, "recombined accuracy, batch statistics", across=chance_of(results))}


_WHERE = "Sec. 4, starting from pre-trained models"
_RANDOM = "Fig. 2, Sec. 4"
STUDY = Study(
    title="pretrained initial weights",
    question="Networks start from weights pretrained by rotation prediction, different ones, or with IIW the same: "
    "does compatibility come as easily as from random weights?",
    reference=f"{REFERENCE}, Sec. 4",
    arms=tuple(f"{start}-{methods}" for start in STARTS for methods in METHODS),
    measures=(
        *MEASURES,
        Measure(name="turns", title="turns told by the pretrained networks", drawn=False),
    ),
    sizes=PRETRAINED,
    scale=PRETRAINED_SCALE,
    paper=(
        reported("pretrained-rp", 19.7, _WHERE),
        reported("pretrained-dcc", 52.3, _WHERE),
        reported("pretrained-iiw", 74.3, _WHERE),
        reported("pretrained-iiw+dcc", 82.7, _WHERE),
        reported("random-none", 10.6, _RANDOM),
        reported("random-rp", 50.1, _RANDOM),
        reported("random-dcc", 65.8, _RANDOM),
        reported("random-iiw", 25.1, _RANDOM),
    ),
    run=run,
    closed="an arm is also the start of the networks",
    draw=draw,
    data=(*DATA, "fashion-mnist", "cifar100"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.2."""
    register("3.2", lambda: STUDY)
