"""Texture against shape: trained on shapes with other classes' textures, tested on these, on edges and silhouettes.

Paper: "Reviving Autoencoder Pretraining", Sec. 4, Fig. 6 and 17, C.1: the stimuli of Geirhos et al. (2019), 16 classes;
    1,120 stylized images for training, 160 for testing, 160 edges and 160 silhouettes; full reverse pass; 10 runs.
Here: the same stimuli at 64 x 64 pixels and a chain of convolutions; the paper does not give the network, the weight of
    the loss, or the split.

    compatkit study run 0.6 --data DIR --out OUT
"""

from __future__ import annotations

from typing import Any

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Run, Study
from compatkit.hooks import Register

from ._arms import GRADIENT, REFERENCE, SECONDS, accuracy, regularizers, reported, timed, trainer

TESTS = {
    "stylised": "cue-conflict",
    "edges": "cue-conflict-edges",
    "silhouettes": "cue-conflict-silhouettes",
}


def run(run: Run) -> Outcome:
    """Train on the stylized images by shape, and test on all three sets."""
    data, settings = run.load("cue-conflict"), run.settings
    task = ck.Task(
        data.name,
        data,
        "conv_chain",
        "forward_features",
        size=settings["image"],
        kwargs={"channels": list(settings["channels"]), "norm": "batch", "top": "mean"},
        augment=("flip",),
    )
    plan = trainer(
        run, settings["steps"], settings["lr"], settings["batch_size"], schedule="cosine", precision="auto"
    )
    fit, values = timed(plan, task, [*regularizers(run.arm, settings), *run.added])
    tests = {name: accuracy(fit, run.load(source).test) for name, source in TESTS.items()}
    return Outcome(values=tests | values)


_GAIN = "gain of RR over this arm, relative: Sec. 4"
_CPU: dict[str, Any] = {
    "image": 64,
    "channels": [16, 32, 64, 64],
    "batch_size": 64,
    "lr": 1e-3,
    "ort": 0.1,
    "rr": 0.01,
    "pre_lr": 1e-3,
}
STUDY = Study(
    title="texture against shape",
    question="Does a reverse pass help a network that learned shapes beside misleading textures, on new ones of these, "
    "on edges and on silhouettes?",
    reference=f"{REFERENCE}, Sec. 4, Fig. 6 and 17, C.1",
    arms=("std", "ort", "pre", "rr"),
    measures=(
        Measure(name="stylised", title="accuracy, stylized"),
        Measure(name="edges", title="accuracy, edges"),
        Measure(name="silhouettes", title="accuracy, silhouettes"),
        SECONDS,
        GRADIENT,
    ),
    sizes={
        "cpu": {**_CPU, "steps": 300, "pre_steps": 60},
        "paper": {**_CPU, "channels": [64, 128, 256, 512], "steps": 6000, "pre_steps": 1500},
    },
    scale={
        "cpu": "four convolutions of 16 to 64 filters on 64 x 64 pixels and 300 steps; the paper does not give "
        "network, weights of the losses, image size or split.",
        "paper": "64 x 64 pixels; the paper does not give network, weights of the losses, image size or split.",
    },
    paper=(
        reported("pre", "stylised", 20.8, "Sec. 4"),
        reported("std", "stylised", 44.2, "Sec. 4"),
        reported("ort", "stylised", 47.0, "Sec. 4"),
        reported("rr", "stylised", 54.7, "Sec. 4"),
        reported("pre", "edges", 178.82, _GAIN),
        reported("std", "edges", 50.0, _GAIN),
        reported("ort", "edges", 16.75, _GAIN),
        reported("rr", "seconds", 41.86, "more time per epoch than std: Sec. 4, C.1"),
    ),
    run=run,
    extends="std",
    data=tuple(TESTS.values()),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 0.6."""
    register("0.6", lambda: STUDY)
