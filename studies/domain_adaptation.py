"""Unsupervised domain adaptation: does a frozen rotation head adapt an extractor to unlabeled images?

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible Representations",
    Sec. 5.1, Table 1 and App. E (CIFAR-10 and STL-10, wide ResNet-28; 70,000 steps of SGD, then 1,000 steps at 1e-5).
Here: small ResNets on MNIST and USPS in both directions, and from CIFAR-10 to a shifted CIFAR-10, where source and
    target have no image in common; or the paper's pair.

An arm is a pair of domains, a column of the paper's table; the table's rows are measures, since they share one source
network.

    compatkit study run 3.9 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Reported, Results, Run, Study
from compatkit.hooks import Register

from ._curves import along_measures
from ._pairs import common_indices, halves, temporary_registry

DIGITS = ("mnist-usps", "usps-mnist")
PAPERS = ("cifar10-stl10", "stl10-cifar10")
ROWS = {"source": "source, running", "source-bn": "source, batch", "adapted": "adapted, batch"}
"""Accuracy on the target's test images: source with stored statistics, with batch statistics, and adapted with them."""
MISSING = (
    "STL-10 is not there, so the paper's own pair is left out. Put stl10.npz, or torchvision's folder of it, into the "
    "folder that --data names, and run into another folder."
)


def pair(run: Run) -> tuple[ck.DataSet, ck.DataSet] | None:
    """Return source and target of a run's arm; None if the arm needs STL-10 and it is missing."""
    if run.arm == "cifar10-shifted":
        source, target = halves(run)
    else:
        if run.arm in PAPERS and run.find("stl10") is None:
            return None
        source, target = map(run.load, run.arm.split("-"))
        source, target = of_common_classes(source, target), of_common_classes(target, source)
    return _some(run, source), _some(run, target)


def _some(run: Run, data: ck.DataSet) -> ck.DataSet:
    """Return as many images as the settings request, 0 for all; STL-10 has fewer in nine classes."""
    sizes = {name: run.settings[name] or len(getattr(data, name)) for name in ("train", "test")}
    return data.subset(**{name: min(size, len(getattr(data, name))) for name, size in sizes.items()})


def of_common_classes(data: ck.DataSet, other: ck.DataSet) -> ck.DataSet:
    """Return the images of the classes that another data set has, too, by name; nine for CIFAR-10 and STL-10.

    Args:
        data: Images to choose from.
        other: Names the classes that stay.
    """
    indices = common_indices(data, other)
    if len(indices) == len(data.classes):
        return data
    names, splits = tuple(data.classes[index] for index in indices), []
    for split in (data.train, data.test):
        some = split.take(np.flatnonzero(np.isin(split.labels, indices)))
        splits.append(attrs.evolve(some, labels=np.searchsorted(indices, some.labels), classes=names))
    return ck.DataSet(data.name, *splits)


def run(run: Run) -> Outcome:
    """Train a source with a rotation head, adapt its extractor to the target, and measure."""
    settings, domains = run.settings, pair(run)
    if domains is None:
        return Outcome(values={}, notes=(MISSING,))
    source, target = domains
    digits = run.arm in DIGITS
    # A half turn makes a 9 of a 6: digits are flipped instead.
    turned = ck.use("rotation_prediction", half_turn="flip" if digits else "rotate", views=settings["views"])
    task = ck.Task(
        "source",
        source,
        settings["model"],
        settings["cut"],
        size=settings["digits" if digits else "image"],
        augment=() if digits else ("crop", "flip"),
    )
    trained = _trainer(run, ck.Schedule(every=settings["every"] or None)).fit([task], [turned])
    with temporary_registry({"parts": trained}) as registry:
        adapted = registry.adapt(
            "parts/source.extractor",
            "parts/source.head",
            "parts/shared.rotation",
            target.train,
            trainer=_trainer(run, ck.Schedule("constant"), "adapt_"),
            frozen_statistics=settings["frozen_statistics"],
            test=target.test,
        )
    (chance,) = {cell.chance for cell in adapted.cells.values()}
    values = {name: adapted.accuracy[which] for name, which in ROWS.items()}
    return Outcome(values={**values, "chance": chance})


def _trainer(run: Run, schedule: ck.Schedule, of: str = "") -> ck.Trainer:
    settings = run.settings
    return ck.Trainer(
        **{name: settings[of + name] for name in ("steps", "lr", "optimizer", "weight_decay")},
        schedule=schedule,
        batch_size=settings["batch_size"],
        seed=run.seed,
        progress=False,
    )


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw the three accuracies of each pair."""
    ticks = ("source", "source,\nbatch statistics", "adapted,\nbatch statistics")
    return {"adaptation": along_measures(results, list(ROWS), ticks, "", apart=True)}


def _reported(arm: str, *row: float) -> tuple[Reported, ...]:
    where = "Gygli et al. 2021, Table 1"
    return tuple(Reported(arm, name, value, where, "%") for name, value in zip(ROWS, row, strict=True))


_ADAPTING: dict[str, Any] = {
    "adapt_steps": 1000,
    "adapt_lr": 1e-5,
    "adapt_optimizer": "sgd",
    "adapt_weight_decay": 0.0,
}
STUDY = Study(
    title="unsupervised domain adaptation",
    question="Does a frozen rotation head, on images of another domain without labels, bring an extractor to them "
    "such that the source's head goes on fitting, and further than batch statistics alone do?",
    reference="Gygli, Uijlings, Ferrari (2021), Towards Reusable Network Components by Learning Compatible "
    "Representations, Sec. 5.1, Table 1, App. E",
    arms=(*DIGITS, "cifar10-shifted", *PAPERS),
    measures=(
        Measure(name="source", title="source as it is"),
        Measure(name="source-bn", title="source, batch statistics"),
        Measure(name="adapted", title="adapted, batch statistics"),
        Measure(name="chance", title="chance", better="none", drawn=False),
    ),
    sizes={
        "cpu": {
            "model": "resnet20_cifar",
            "cut": "layer2",
            "digits": 16,
            "image": 32,
            "train": 5000,
            "test": 2000,
            "steps": 300,
            "every": 0,  # a quarter of the steps
            "batch_size": 64,
            "lr": 0.01,
            "optimizer": "adam",
            "weight_decay": 1e-7,
            "frozen_statistics": "stored",
            "views": "mixed",
            **_ADAPTING,
            "adapt_optimizer": "adam",  # the source's own, at its last rate
        },
        "paper": {
            "model": "wide_resnet28_16_cifar",
            "cut": "layer2",
            "digits": 32,
            "image": 32,
            "train": 0,  # all
            "test": 0,
            "steps": 70_000,
            "every": 20_000,
            "batch_size": 64,
            "lr": 0.01,
            "optimizer": "sgd",
            "weight_decay": 5e-4,
            "frozen_statistics": "batch",
            "views": "mixed",
            **_ADAPTING,
        },
    },
    scale={
        "cpu": "MNIST and USPS at 16x16, and two halves of CIFAR-10, one of them shifted, in place of CIFAR-10 and "
        "STL-10; ResNet-20, 5,000 images and 300 steps of Adam in place of WRN-28-16 and 70,000 of SGD; the rotation "
        "head starts anew, not from ImageNet, and adapts with stored statistics, not the batch's; digits are "
        "turned upside down in place of a half turn; accuracy over images, not the mean over classes.",
        "paper": "the rotation head starts anew, not from ImageNet; the first learning rate and the cut are "
        "not in the paper; only the arms of CIFAR-10 and STL-10 are the paper's.",
    },
    paper=(
        *_reported("cifar10-stl10", 77.2, 82.0, 82.6),
        *_reported("stl10-cifar10", 52.9, 71.3, 73.1),
        *_reported("mean-of-both", 65.1, 76.7, 77.9),
    ),
    run=run,
    draw=draw,
    data=("mnist", "usps", "cifar10", "stl10"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.9."""
    register("3.9", lambda: STUDY)
