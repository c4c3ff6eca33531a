"""CIFAR-10 with residual networks: the local reverse pass, compared with orthogonality and plain training.

Paper: "Reviving Autoencoder Pretraining", Sec. 4, Fig. 7: ResNet-110, 5 runs, tested on CIFAR-10 and on CIFAR-10.1; the
    text gives only differences, and no weight of the loss.
Here: ResNet-20 on a subset by default; ``--set model=resnet56_cifar`` or ``resnet110_cifar`` for the others.

    compatkit study run 0.7 --data DIR --out OUT
"""

from __future__ import annotations

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Run, Study
from compatkit.hooks import Register

from ._arms import GRADIENT, REFERENCE, SECONDS, accuracy, regularizers, reported, timed, trainer

RECOLLECTED = "cifar10.1"
MISSING = (
    "CIFAR-10.1 is not there, so nothing is said of it. Put cifar10.1_v6_data.npy and cifar10.1_v6_labels.npy into a "
    "folder with CIFAR-10, name it by --data, and run into another folder."
)


def run(run: Run) -> Outcome:
    """Train on CIFAR-10, and test on its test images and, if available, on CIFAR-10.1."""
    settings = run.settings
    whole = run.load("cifar10")
    data = whole.subset(train=settings["train"] or None, test=settings["test"] or None)
    task = ck.Task(data.name, data, settings["model"], "layer2", size=32, augment=("crop", "flip"))
    plan = trainer(
        run,
        settings["steps"],
        settings["lr"],
        settings["batch_size"],
        weight_decay=settings["weight_decay"],
        schedule="cosine",
        precision="auto",
    )
    fit, values = timed(plan, task, [*regularizers(run.arm, settings), *run.added])
    recollected = run.find(RECOLLECTED)
    tests = {
        "cifar10": accuracy(fit, data.test),
        "cifar10.1": None if recollected is None else accuracy(fit, recollected.test),
    }
    return Outcome(values=tests | values, notes=(MISSING,) if recollected is None else ())


_WHERE = "Sec. 4, ResNet-110, 5 runs"
# Adam for all arms, with rate and decay of Keras' ResNet-110 example: the local loss is of fourth order in the weights,
# and with SGD at .1 it diverges within four steps.
_ADAM = {"lr": 1e-3, "weight_decay": 1e-4, "ort": 0.1, "rr": 0.01}
STUDY = Study(
    title="CIFAR-10 with residual networks",
    question="Does reversing each layer of a residual network by itself, beside orthogonality and plain training, "
    "raise accuracy on CIFAR-10 and on CIFAR-10.1?",
    reference=f"{REFERENCE}, Sec. 4, Fig. 7",
    arms=("std", "ort", "rr-local"),
    measures=(
        Measure(name="cifar10", title="accuracy on CIFAR-10"),
        Measure(name="cifar10.1", title="accuracy on CIFAR-10.1"),
        SECONDS,
        GRADIENT,
    ),
    sizes={
        "cpu": {
            **_ADAM,
            "model": "resnet20_cifar",
            "train": 5000,
            "test": 2000,
            "steps": 200,
            "batch_size": 64,
        },
        # 164 epochs of 50,000 images in batches of 128, as He et al. (2016) train it.
        "paper": {
            **_ADAM,
            "model": "resnet110_cifar",
            "train": 0,
            "test": 0,
            "steps": 64_000,
            "batch_size": 128,
        },
    },
    scale={
        "cpu": "ResNet-20 on 5,000 images for 200 steps of 64 in place of ResNet-110; differences of tenths of a point "
        "are far below the noise of 2,000 test images.",
        "paper": "the paper does not give the weights of its losses, nor steps and rates.",
    },
    paper=(
        reported("ort", "cifar10", 0.39, f"points above std: {_WHERE}"),
        reported("rr-local", "cifar10", 0.28, f"points above ort: {_WHERE}"),
        reported("rr-local", "cifar10.1", 0.22, f"points above ort: {_WHERE}"),
        reported("rr-local", "cifar10.1", 0.95, f"points above std, as we read it: {_WHERE}"),
    ),
    run=run,
    extends="std",
    data=("cifar10", "cifar10.1"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 0.7."""
    register("0.7", lambda: STUDY)
