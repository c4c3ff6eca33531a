"""Unsupervised domain adaptation: does a frozen rotation head bring an extractor to images without labels?

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible Representations",
    Sec. 5.1, Table 1 and App. E (CIFAR-10 and STL-10, wide ResNet-28; 70,000 steps of SGD, then 1,000 steps at 1e-5).
Here: small ResNets on MNIST and USPS in both directions, and from CIFAR-10 to a shifted CIFAR-10, where source and
    target have no image in common. The order of the three measures is comparable with the paper's, not the figures.

An arm is a pair of domains; each of its runs gives all three measures on the same source network.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import compatkit as ck

ARMS = ("mnist-usps", "usps-mnist", "cifar10-shifted")
MEASURES = {"source": "source, running", "source-bn": "source, batch", "adapted": "adapted, batch"}
"""Accuracy on the target's test images: the source as it is, under batch statistics, and adapted, under them too."""
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "backbone": "resnet20_cifar",
        "split": "layer2",
        "digits": 16,
        "colour": 32,
        "train": 5000,
        "test": 2000,
        "steps": 300,
        "batch_size": 64,
        "lr": 0.01,
        "adapt_steps": 1000,
        "adapt_lr": 1e-5,
        "adapt_optimiser": "sgd",
    },
    "paper": {
        "backbone": "resnet56_cifar",
        "split": "layer2",
        "digits": 32,
        "colour": 32,
        "train": None,
        "test": None,
        "steps": 20000,
        "batch_size": 64,
        "lr": 0.01,
        "adapt_steps": 1000,
        "adapt_lr": 1e-5,
        "adapt_optimiser": "sgd",
    },
}
PAPER = {
    ("cifar10-stl10", "source"): 77.2,
    ("cifar10-stl10", "source-bn"): 82.0,
    ("cifar10-stl10", "adapted"): 82.6,
    ("stl10-cifar10", "source"): 52.9,
    ("stl10-cifar10", "source-bn"): 71.3,
    ("stl10-cifar10", "adapted"): 73.1,
}
"""Per cent, Table 1."""
Load = Callable[[str], ck.DataSet]


def pair(arm: str, load: Load, settings: Mapping[str, Any]) -> tuple[ck.DataSet, ck.DataSet]:
    """Return the source and the target of an arm."""
    if arm == "cifar10-shifted":
        plain, other = load("cifar10").halves()
        source, target = plain.renamed("plain"), other.shifted(hue=0.3, blur=0.8).renamed("shifted")
    else:
        source, target = map(load, arm.split("-"))
    kept = {"train": settings["train"], "test": settings["test"]}
    return source.subset(**kept), target.subset(**kept)


def run(arm: str, seed: int, settings: Mapping[str, Any], load: Load) -> dict[str, float | None]:
    """Train a source with a rotation head, adapt its extractor to the target, and measure.

    Args:
        arm: One of ``ARMS``.
        seed: Of both runs.
        settings: See ``SIZES``.
        load: Gives a data set by name.

    Returns:
        Accuracy by measure.
    """
    source, target = pair(arm, load, settings)
    digits = arm != "cifar10-shifted"
    # A half turn makes a 9 of a 6: digits are turned upside down instead.
    rotation = ck.use("rotation_prediction", half_turn="flip" if digits else "rotate")
    task = ck.Task(
        "source",
        source,
        settings["backbone"],
        settings["split"],
        size=settings["digits" if digits else "colour"],
        augment=() if digits else ("crop", "flip"),
    )
    batch = {"batch_size": settings["batch_size"], "seed": seed, "progress": False}
    trained = ck.Trainer(steps=settings["steps"], lr=settings["lr"], **batch).fit([task], [rotation])
    with tempfile.TemporaryDirectory() as folder:
        registry = ck.Registry.init(Path(folder) / "parts")
        registry.publish(trained, prefix="parts")
        adapted = registry.adapt(
            "parts/source.extractor",
            "parts/source.head",
            "parts/shared.rotation",
            target.train,
            trainer=ck.Trainer(
                steps=settings["adapt_steps"],
                lr=settings["adapt_lr"],
                optimiser=settings["adapt_optimiser"],
                weight_decay=0.0,
                schedule="constant",
                **batch,
            ),
            test=target.test,
        )
        return {name: adapted.accuracy[arm] for name, arm in MEASURES.items()}
