"""Recombination accuracy by method: which regularizers make parts of two networks fit.

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", Fig. 2 and Sec. 4 (CIFAR-10 and STL-10, ResNet-56, 10 runs).
Here: MNIST and USPS, or two halves of CIFAR-10, at a size for two CPU cores; or the paper's pair.

    compatkit study run 3.1 --data DIR --out OUT
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import compatkit as ck
from compatkit.errors import TrainingError
from compatkit.hooks import Register
from compatkit.studies import Measure, Outcome, Reported, Run, Study

METHODS = {"iiw": "identical_init", "rp": "rotation_prediction", "dcc": "dcc"}
ARMS = ("none", "iiw", "rp", "dcc", "iiw+rp", "iiw+dcc", "rp+dcc", "iiw+rp+dcc")
INCREMENTAL = ("incremental", "incremental-back", "incremental-batch")
"""One task after the other against frozen heads, all three methods: first then second, second then first, and the
paper's regime, in which frozen heads use batch statistics; the paper averages both orders."""
POLICIES = {"batch": "recombined", "reestimate": "reestimated", "running": "running"}
"""Normalisation at recombination, and the measure that it gives."""
SMALL = {"backbone": "resnet20_cifar", "split": "layer2", "test": 2000, "steps": 300, "batch_size": 64}
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {"pair": "digits", "image": 16, "train": 5000, **SMALL},
    "halves": {"pair": "halves", "image": 32, "train": 8000, **SMALL},
    # 0 images: all that there are.
    "paper": {
        "pair": "objects",
        "image": 32,
        "train": 0,
        "backbone": "resnet56_cifar",
        "split": "layer2",
        "test": 0,
        "steps": 20_000,
        "batch_size": 512,
    },
}
_SMALLER = "ResNet-20 and 300 steps of 64 in place of ResNet-56 and 20,000 steps of 512"


def tasks_of(run: Run) -> list[ck.Task]:
    """Return the two tasks of a pair of domains."""
    settings = run.settings
    if settings["pair"] == "halves":
        plain, other = run.load("cifar10").halves()
        sets = [plain.renamed("plain"), other.shifted(hue=0.3, blur=0.8).renamed("shifted")]
    else:
        names = {"digits": ("mnist", "usps"), "objects": ("cifar10", "stl10")}[settings["pair"]]
        sets = [run.load(one) for one in names]
    return [
        ck.Task(
            data.name,
            data.subset(train=settings["train"] or None, test=settings["test"] or None),
            settings["backbone"],
            settings["split"],
            size=settings["image"],
            augment=() if settings["pair"] == "digits" else ("crop", "flip"),
        )
        for data in sets
    ]


def regularizers(arm: str) -> list[str]:
    """Return the plugins of an arm; incremental arms use those of ``iiw+rp+dcc``."""
    wanted = "iiw+rp+dcc" if arm in INCREMENTAL else arm
    return [METHODS[one] for one in wanted.split("+") if one in METHODS]


def train(arm: str, tasks: Sequence[ck.Task], trainer: ck.Trainer) -> list[ck.Fit]:
    """Train an arm: both tasks in turn, or one after the other against the first one's frozen heads."""
    if arm not in INCREMENTAL:
        return [trainer.fit(tasks, regularizers(arm))]
    one, other = reversed(tasks) if arm == "incremental-back" else tasks
    first = trainer.fit([one], regularizers(arm))
    statistics = "batch" if arm == "incremental-batch" else "stored"
    return [first, trainer.fit([other], regularizers(arm), frozen=first, frozen_statistics=statistics)]


def measure(fits: Sequence[ck.Fit], tasks: Sequence[ck.Task]) -> list[dict[str, Any]]:
    """Publish the fits into a registry of their own and measure all four combinations under each policy."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        registry = ck.Registry.init(Path(folder) / "parts")
        for fit in fits:
            registry.publish(fit, prefix="parts")
        for policy in POLICIES:
            matrix = registry.matrix(
                "parts/*.extractor", "parts/*.head", [task.data.test for task in tasks], normalisation=policy
            )
            for cell in matrix.cells:
                if cell.restricted is None:
                    raise TrainingError(
                        f"{cell.extractor} with {cell.head} could not be measured: {cell.reason}"
                    )
                rows.append(
                    {
                        "extractor": cell.extractor.split("/")[1].split(".")[0],
                        "head": cell.head.split("/")[1].split(".")[0],
                        "policy": policy,
                        "accuracy": cell.restricted.accuracy,
                        "chance": cell.chance,
                        "grade": cell.grade,
                    }
                )
    return rows


def values_of(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the measures of one run from its cells; figures of two directions are their mean."""

    def accuracies(policy: str, own: bool) -> list[float]:
        mine = [one for one in cells if one["policy"] == policy]
        return [one["accuracy"] for one in mine if (one["extractor"] == one["head"]) == own]

    one_way, other_way = accuracies("batch", own=False)
    return {
        "own": mean(accuracies("batch", own=True)),
        **{name: mean(accuracies(policy, own=False)) for policy, name in POLICIES.items()},
        "one-way": one_way,
        "other-way": other_way,
        "chance": mean(one["chance"] for one in cells),
    }


def run(run: Run) -> Outcome:
    """Train both networks of an arm, exchange their heads, measure."""
    tasks = tasks_of(run)
    settings = run.settings
    trainer = ck.Trainer(
        steps=settings["steps"], seed=run.seed, batch_size=settings["batch_size"], progress=False
    )
    cells = measure(train(run.arm, tasks, trainer), tasks)
    return Outcome(values=values_of(cells), kept={"cells": cells})


def _reported(arm: str, value: float, where: str = "Fig. 2, Sec. 4", metric: str = "recombined") -> Reported:
    return Reported(arm, metric, value, f"Gygli et al. 2021, {where}", "%")


STUDY = Study(
    title="recombination accuracy by method",
    question="Parts of independent networks do not fit although every shape matches; which regularizers make them "
    "fit, and do networks as trained suffer from it?",
    reference="Gygli, Uijlings, Ferrari (2021), Towards Reusable Network Components by Learning Compatible "
    "Representations, Fig. 2 and Sec. 4",
    arms=(*ARMS, *INCREMENTAL),
    measures=(
        Measure(name="own", title="own task, as trained"),
        Measure(name="recombined", title="recombined, batch statistics"),
        Measure(name="one-way", title="one way", drawn=False),
        Measure(name="other-way", title="other way", drawn=False),
        Measure(name="reestimated", title="recombined, re-estimated statistics", drawn=False),
        Measure(name="running", title="recombined, running statistics"),
        Measure(name="chance", title="chance", better="none", drawn=False),
    ),
    sizes=SIZES,
    scale={
        "cpu": f"MNIST and USPS at 16x16 in place of CIFAR-10 and STL-10, {_SMALLER}.",
        "halves": f"two halves of CIFAR-10, one of them shifted, in place of CIFAR-10 and STL-10, {_SMALLER}.",
        "paper": "",
    },
    paper=(
        _reported("none", 10.6),
        _reported("iiw", 25.1),
        _reported("rp", 50.1),
        _reported("dcc", 65.8),
        _reported("iiw+rp+dcc", 76.7),
        _reported("iiw+rp+dcc", 86.3, metric="own"),
        _reported("incremental", 72.7, "Sec. 4, mean of both orders"),
        _reported("upper-bound", 85.6, "Sec. 4, networks as trained, each with a rotation head of its own"),
    ),
    run=run,
    data=("mnist", "usps", "cifar10", "stl10"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.1."""
    register("3.1", lambda: STUDY)
