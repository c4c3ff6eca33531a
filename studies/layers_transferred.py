"""Layers transferred: does a network learn faster the more of its layers come from pretraining on random labels?

Paper: Maennel et al. 2020, Fig. 6 and 9, A.10: the first L layers are transferred, the others drawn anew; SimpleCNN,
    VGG16 and ResNet18. Curves only.
Control: the permuted network, as in study 1.1, whose layers must not help, however many are transferred.

    compatkit study run 1.7 --seeds 5 --data DIR --out OUT
    compatkit study run 1.7 --size resnet18 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._curves import along_measures
from ._random_labels import (
    DATA,
    PAPER,
    REFERENCE,
    SIMPLE,
    TASK,
    VGG,
    finetune,
    permuted,
    pretrain,
    scale,
    subsets,
)

KINDS = ("real", "random")
MOST = 20
"""Convolutions before the class layer of the deepest network, ResNet18, with those of its three shortcuts."""
CNN: dict[str, Any] = {
    "init_scale": 0.518,
    "lr": 0.01,
    "classes_up": 25,
    "kwargs": {"convolutions": 3, "filters": 16, "units": 256},
    "layers": [0, 1, 2, 3, 4],
}


def run(run: Run) -> Outcome:
    """Pretrain once, and train downstream from each count of transferred layers."""
    settings = run.settings
    up, down = subsets(run, settings)
    before = pretrain(run, settings, up)
    start = permuted(before, run.seed) if run.arm == "permuted" else before
    values: dict[str, float | None] = {"upstream": before.accuracy}
    for labels in KINDS:
        speeds = [
            finetune(run, settings, down, labels, start, first=first).learning_speed(TASK)
            for first in settings["layers"]
        ]
        values |= {
            f"{labels}-{first}": speed for first, speed in zip(settings["layers"], speeds, strict=True)
        }
        values[f"{labels}-gain"] = speeds[-1] - speeds[0]
        values[f"{labels}-least"] = min(after - previous for previous, after in pairwise(speeds))
    return Outcome(values=values)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw learning speed by the count of transferred layers."""
    layers = results.settings["layers"]
    return {
        labels: along_measures(
            results,
            [f"{labels}-{first}" for first in layers],
            [str(first) for first in layers],
            f"layers transferred, {labels} labels downstream",
            "learning speed",
        )
        for labels in KINDS
    }


def _measures() -> tuple[Measure, ...]:
    measures = [
        Measure(name="upstream", title="accuracy on the random labels upstream", better="none", drawn=False)
    ]
    for labels in KINDS:
        measures += [
            Measure(
                name=f"{labels}-{first}",
                title=f"learning speed, {labels} labels, {first} layers",
                drawn=False,
            )
            for first in range(MOST + 1)
        ]
        measures += [
            Measure(name=f"{labels}-gain", title=f"all layers less none, {labels} labels"),
            Measure(
                name=f"{labels}-least", title=f"least gain of a further layer, {labels} labels", drawn=False
            ),
        ]
    return tuple(measures)


STUDY = Study(
    title="layers transferred",
    question="Does learning speed rise with every layer that is transferred from pretraining on random labels?",
    reference=f"{REFERENCE} Fig. 6 and 9",
    arms=("pretrained", "permuted"),
    measures=_measures(),
    sizes={
        "cpu": {**SIMPLE, **CNN},
        "paper": {
            **PAPER,
            **CNN,
            "up": 15_000,
            "epochs_up": 40,
            "kwargs": {"convolutions": 3, "filters": 16, "units": 1024},
        },
        "vgg16": {
            **PAPER,
            **VGG,
            "init_scale": 0.526,
            "classes_up": 5,
            "layers": list(range(14)),
        },
        "resnet18": {
            **PAPER,
            **VGG,
            "model": "resnet18_v2_cifar",
            "cut": "layer3",
            "init_scale": 0.671,
            "up": 25_000,
            "classes_up": 50,
            "epochs_up": 80,
            "rescale": False,
            "layers": [0, 1, 5, 10, 15, 20],
        },
    },
    scale={
        "cpu": scale({**SIMPLE, **CNN}, "a dense layer of 256 units in place of 1,024"),
        "paper": "",
        "vgg16": "",
        "resnet18": "layers are counted to the end of the first convolution and of each stage; norms are left alone, "
        "as in the paper, so that part of a gain may be a larger effective learning rate.",
    },
    paper=(),
    run=run,
    draw=draw,
    data=(DATA,),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 1.7."""
    register("1.7", lambda: STUDY)
