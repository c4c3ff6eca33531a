"""Choice of the pretraining task: other images with the same kind of labels, or the same images with other labels.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 5.1, Fig. 8: SVHN gains from
    MNIST, less from MNIST upside down, hardly from Fashion-MNIST (a); Webcam from Caltech-101, not from the colors
    of its images (b); birds from ImageNet, indoor scenes from Places (c, d). Bars and curves only.
Here: 4.9 and 4.10 give the gain over training from scratch on the same images, paired by seed; 4.11 trains on 18
    classes of animals or of things, and fine-tunes for 12 others of both kinds.
Controls: ``permuted-labels``, the source's images with labels in a random order, and ``random-weights``, Gaussian
    filters of the pretrained norms: what they gain is not the task's. In 4.11 kinds must not matter to them.

    compatkit study run 4.9 --seeds 5 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from statistics import mean
from typing import Any

import attrs
import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Run, Study
from compatkit.hooks import Register

from ._fine_tuning import (
    LENET,
    REFERENCE,
    TASK,
    Weights,
    deviation,
    few,
    moved,
    permuted,
    pretrain,
    random_weights,
    source,
    tested,
    tune,
)

CONTROLS = ("permuted-labels", "random-weights")
# Of LeNet, as in the paper.
LAYERS = {"conv1": ("conv1",), "conv2": ("conv2",), "dense": ("dense1", "dense2", "fc")}
KINDS = {
    "animals": (
        *("aquarium_fish", "flatfish", "ray", "shark", "trout"),
        *("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
        *("bear", "leopard", "lion", "tiger", "wolf"),
        *("fox", "porcupine", "possum", "raccoon", "skunk"),
        *("crocodile", "dinosaur", "lizard", "snake", "turtle"),
        *("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    ),
    "things": (
        *("bottle", "bowl", "can", "cup", "plate"),
        *("clock", "keyboard", "lamp", "telephone", "television"),
        *("bed", "chair", "couch", "table", "wardrobe"),
        *("bridge", "castle", "house", "road", "skyscraper"),
        *("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
        *("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
    ),
}
"""Six superclasses of CIFAR-100 of each kind, five classes in each: three to train on, two to transfer to."""


def upside_down(data: ck.DataSet) -> ck.DataSet:
    """Return a data set whose images stand on their heads."""
    turned = [
        attrs.evolve(split, images=split.read(range(len(split)))[:, ::-1].copy())
        for split in (data.train, data.test)
    ]
    return ck.DataSet("flipped", *turned)


def colors(data: ck.DataSet) -> ck.DataSet:
    """Return the images labeled by the hue of the mean color of their upper half, ten labels of equal frequency."""

    def hue(split: ck.Split) -> Any:
        red, green, blue = split.read(range(len(split)))[:, : split.size[0] // 2].mean((1, 2)).T  # type: ignore[index]
        return np.arctan2(np.sqrt(3) * (green - blue), 2 * red - green - blue)

    ends = np.quantile(hue(data.train), np.arange(1, 10) / 10)
    names = tuple(f"hue {index}" for index in range(10))
    splits = [
        attrs.evolve(split, labels=np.digitize(hue(split), ends), classes=names)
        for split in (data.train, data.test)
    ]
    return ck.DataSet("colours", *splits)


def of_inputs(run: Run) -> tuple[dict[str, ck.DataSet], ck.DataSet]:
    """Return the sources of 4.9 and its target."""
    settings = run.settings
    mnist = run.load("mnist")
    sources = {"mnist": mnist, "flipped": upside_down(mnist), "fashion": run.load("fashion_mnist")}
    return sources, run.load(settings["target"]).converted(settings["channels"])


def of_labels(run: Run) -> tuple[dict[str, ck.DataSet], ck.DataSet]:
    """Return the sources of 4.10 and its target: halves of CIFAR-10."""
    first, second = run.load("cifar10").halves()
    return {"classes": first, "colours": colors(first)}, second


def started(run: Run, data: ck.DataSet, control: str) -> Weights:
    """Return the weights of a network trained on a source, or those of a control."""
    settings, some = run.settings, source(run.settings, data, run.seed)
    if control == "permuted-labels":
        some = permuted(some, run.seed)
    weights = pretrain(run, settings, some)
    return random_weights(run, settings, some, weights, run.seed) if control == "random-weights" else weights


def gain(read: Callable[[Run], tuple[dict[str, ck.DataSet], ck.DataSet]]) -> Callable[[Run], Outcome]:
    """Return the run of 4.9 and 4.10."""

    def run_of(run: Run) -> Outcome:
        sources, whole = read(run)
        target = few(run.settings, whole, run.seed)
        first = next(iter(sources.values()))
        weights = None if run.arm == "scratch" else started(run, sources.get(run.arm, first), run.arm)
        fit, plain = tune(run, run.settings, target, weights), tune(run, run.settings, target, None)
        table = moved(fit.tasks[TASK], tune(run, run.settings, target, weights, steps=0), len(target.train))
        values: dict[str, float | None] = {"accuracy": tested(fit), "deviation": deviation(table)}
        values["gain"] = tested(fit) - tested(plain)
        if set(table.axes["layer"]) > {layer for layers in LAYERS.values() for layer in layers}:
            for name, layers in LAYERS.items():
                values[f"deviation-{name}"] = sum(deviation(table, layer) for layer in layers)
        return Outcome(values=values)

    return run_of


def of_kinds(run: Run) -> Outcome:
    """Train on each kind of classes, fine-tune for each, and compare a kind with its own."""
    settings, data = run.settings, run.load(run.settings["data"])
    values: dict[str, float | None] = {}
    parts = {
        kind: (
            [name for at, name in enumerate(names) if at % 5 < 3],
            [name for at, name in enumerate(names) if at % 5 > 2],
        )
        for kind, names in KINDS.items()
    }
    targets = {kind: few(settings, data.of_classes(new), run.seed) for kind, (_, new) in parts.items()}
    if run.arm == "scratch":
        from_scratch = {
            f"scratch-on-{kind}": tested(tune(run, settings, target, None))
            for kind, target in targets.items()
        }
        return Outcome(values=from_scratch)
    accuracies: dict[tuple[str, str], float] = {}
    for kind, (old, _) in parts.items():
        weights = started(run, data.of_classes(old), run.arm)
        for other, target in targets.items():
            accuracies[kind, other] = tested(tune(run, settings, target, weights))
    values |= {f"{kind}-on-{other}": value for (kind, other), value in accuracies.items()}
    own, across = (
        [value for (a, b), value in accuracies.items() if (a == b) == same] for same in (True, False)
    )
    values["own-kind"] = mean(own) - mean(across)
    return Outcome(values=values)


GAINED = (
    Measure(name="accuracy", title="accuracy on the target"),
    Measure(name="gain", title="accuracy less that from scratch"),
    Measure(name="deviation", title="weight deviation", better="none"),
    *(
        Measure(name=f"deviation-{name}", title=f"weight deviation: {name}", better="none", drawn=False)
        for name in LAYERS
    ),
)
PAPER: dict[str, Any] = {**LENET, "batch_size": 64, "source_train": 54_000, "source_steps": 84_375}
COLORED: dict[str, Any] = {**LENET, "channels": "RGB", "image": 32}
LARGE: dict[str, Any] = {
    **COLORED,
    **{"model": "resnet56_cifar", "cut": "layer3", "source_train": 25_000, "source_steps": 20_000},
    **{"few": 1000, "test": 5000, "steps": 5000},
}
STUDIES = {
    "4.9": Study(
        title="pretraining on other images",
        question="Is pretraining on digits better for few digits of another set than on digits upside down, and these "
        "than on clothes, with as many images of each class?",
        reference=f"{REFERENCE} Sec. 5.1, Fig. 8(a)",
        arms=("scratch", "mnist", "flipped", "fashion", *CONTROLS),
        measures=GAINED,
        sizes={
            "cpu": {**LENET, "target": "usps"},
            "paper": {**PAPER, "target": "svhn", "few": 600, "test": 26_032, "steps": 938},
        },
        scale={
            "cpu": "300 images of USPS for 600 of SVHN; 6,000 source images for 1,000 steps of 32.",
            "paper": "5,400 source images of each class, as many as MNIST has of all.",
        },
        paper=(),
        run=gain(of_inputs),
        data=("mnist", "fashion_mnist", "usps"),
    ),
    "4.10": Study(
        title="pretraining on other labels",
        question="Does it help to have learned the colors of images to tell their classes apart?",
        reference=f"{REFERENCE} Sec. 5.1, Fig. 8(b)",
        arms=("scratch", "classes", "colours", *CONTROLS),
        measures=GAINED,
        sizes={
            "cpu": {**COLORED, "source_train": 10_000, "source_steps": 1500, "few": 500, "steps": 400},
            "paper": LARGE,
        },
        scale={
            "cpu": "LeNet and two halves of CIFAR-10 for ResNet-50, Caltech-101 and Webcam: the target has the "
            "source's classes; 10,000 and 500 images, 1,500 and 400 steps of 32.",
            "paper": "ResNet-56 and two halves of CIFAR-10 for ResNet-50, Caltech-101 and Webcam.",
        },
        paper=(),
        run=gain(of_labels),
        data=("cifar10",),
    ),
    "4.11": Study(
        title="pretraining on other kinds of classes",
        question="Does a kind of classes, animals or things, help its own kind more than the other?",
        reference=f"{REFERENCE} Sec. 5.1, Fig. 8(c), (d)",
        arms=("scratch", "trained", *CONTROLS),
        measures=(
            *(
                Measure(name=f"scratch-on-{kind}", title=f"accuracy on {kind}, from scratch", drawn=False)
                for kind in KINDS
            ),
            *(
                Measure(name=f"{kind}-on-{other}", title=f"accuracy on {other}, from {kind}")
                for kind, other in product(KINDS, KINDS)
            ),
            Measure(name="own-kind", title="accuracy on the own kind less that on the other"),
        ),
        sizes={
            "cpu": {
                **COLORED,
                "data": "cifar100",
                "source_train": 2700,
                "source_steps": 1000,
                "few": 360,
                "steps": 300,
            },
            "paper": {**LARGE, "data": "cifar100", "source_train": 9000, "few": 600, "test": 1200},
        },
        scale={
            "cpu": "LeNet, 18 and 12 classes of CIFAR-100 for ResNet-50, ImageNet, Places, CUB-200 and MIT-indoors; "
            "2,700 and 360 images, 1,000 and 300 steps of 32.",
            "paper": "ResNet-56, 18 and 12 classes of CIFAR-100 for ResNet-50, ImageNet, Places, CUB-200 and "
            "MIT-indoors.",
        },
        paper=(),
        run=of_kinds,
        data=("cifar100",),
    ),
}


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer studies 4.9 to 4.11."""
    for number, study in STUDIES.items():
        register(number, lambda study=study: study)
