"""Peaks: does a reverse pass embed common features of images into the first layer's weights?

Paper: "Reviving Autoencoder Pretraining", Sec. 2, Fig. 3 and 13, A.4: two classes of images, a disc in one of two
    corners beside a random scribble; the right singular vectors of the first layer are compared with them by LPIPS.
Here: the energy of the classes' mean images in the span of the first two right singular vectors, ``|V m|^2 / |m|^2``,
    which is independent of rotations within equal singular values, and needs no other network.

    compatkit study run 0.1 --out OUT        the three methods beside plain training
    compatkit study run 0.1b --out OUT       the theory: a linear network whose active singular values become 1
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Reported, Results, Run, Study
from compatkit.hooks import Register

from ._arms import REFERENCE, accuracy, half_sum, regularizers, trainer
from ._features import energies, rows, singular, to_pixels

SIDE = 28
NO_PRE = (
    "pre has no figures in a network of one layer: that is the class layer, which layer-wise pretraining leaves as it "
    "was drawn."
)
ACTIVE = 2
"""Number of directions measured: one per class."""


def class_means(split: ck.Split) -> list[NDArray[np.float64]]:
    """Return the mean image of each class, ``(height, width, 1)``, from 0 to 255.

    Returns:
        float64, one array a class.
    """
    return [split.read(np.flatnonzero(split.labels == label)).mean(0) for label in range(len(split.classes))]


def _measured(fit: ck.Fit, data: ck.DataSet) -> Outcome:
    weights = fit.weights(data.name)
    layer = "blocks.0.linear" if "blocks.0.linear.weight" in weights else "fc"
    shares = energies(fit, data.train, layer, ACTIVE)
    values, vectors = singular(weights[f"{layer}.weight"], ACTIVE)
    return Outcome(
        values={
            "energy": sum(shares) / len(shares),
            "energy-least": min(shares),
            "sigma-1": values[0],
            "sigma-2": values[1],
            "accuracy": accuracy(fit, data.test),
        },
        figure_data={
            "vectors": [to_pixels(image, (SIDE, SIDE)) for image in vectors],
            "means": [to_pixels(image, (SIDE, SIDE)) for image in class_means(data.train)],
            "sigmas": values[:8],
        },
    )


def run(run: Run) -> Outcome:
    """Train on images from 0 to 255, as the authors do, because their loss weight assumes it."""
    data, settings = run.load("peaks"), run.settings
    widths, batch = list(settings["widths"]), settings["batch_size"]
    if run.arm == "pre" and not widths:
        return Outcome(values={}, notes=(NO_PRE,))
    layers = [f"blocks.{index}.linear" for index in range(len(widths))] + ["fc"]
    elements = dict(zip(layers, [SIDE * SIDE, *widths], strict=True))
    task = ck.Task(
        data.name,
        data,
        "fully_connected",
        "forward_features",
        size=SIDE,
        kwargs={
            "widths": widths,
            "norm": "batch",
            "last_norm": True,
            "last_activation": True,
            "initial": "glorot",
            "norm_eps": 1e-3,
        },
        normalize={"mean": 0, "std": 1 / 255},
    )
    # The authors' lambda weights half a sum; convert it to weights of the layers' means.
    used = regularizers(
        run.arm,
        {**settings, "rr": 1.0},
        layer_weights=half_sum(settings["half_sum_weight"], batch, elements),
    )
    return _measured(
        trainer(run, settings["steps"], settings["lr"], batch).fit([task], [*used, *run.added]), data
    )


def run_theory(run: Run) -> Outcome:
    """Train a linear network from small weights: no normalization, no activation, local reverse pass."""
    data, settings = run.load("peaks"), run.settings
    hidden, batch = settings["hidden"], settings["batch_size"]
    task = ck.Task(
        data.name,
        data,
        "fully_connected",
        "forward_features",
        size=SIDE,
        kwargs={"widths": [hidden], "activation": "none"},
        normalize={"mean": 0, "std": 1},
        weights=_drawn(
            run.seed, {"blocks.0.linear": (hidden, SIDE * SIDE), "fc": (2, hidden)}, settings["initial"]
        ),
        keep_class_layer=True,
    )
    # lambda weights the mean over images of the sum over elements: n times the mean over both.
    weights = {"blocks.0.linear": settings["sum_weight"] * SIDE * SIDE, "fc": settings["sum_weight"] * hidden}
    # Includes the class layer, which the local variant omits unless it is named.
    used = regularizers(run.arm, {**settings, "rr": 1.0}, layers=list(weights), layer_weights=weights)
    outcome = _measured(
        trainer(run, settings["steps"], settings["lr"], batch).fit([task], [*used, *run.added]), data
    )
    sigmas = outcome.figure_data["sigmas"]
    return Outcome(
        values={**outcome.values, "sigma-3": sigmas[2], "sigma-4": sigmas[3]}, figure_data=outcome.figure_data
    )


def _drawn(seed: int, shapes: Mapping[str, tuple[int, int]], scale: float) -> dict[str, Tensor]:
    """Return He-normal weights times ``scale``, and zero biases."""
    draw = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, (outputs, inputs) in shapes.items():
        weights[f"{name}.weight"] = (
            torch.randn(outputs, inputs, generator=draw) * math.sqrt(2 / inputs) * scale
        )
        weights[f"{name}.bias"] = torch.zeros(outputs)
    return weights


def draw(results: Results) -> dict[str, bytes]:
    """Draw the mean images, and the first two right singular vectors of up to five seeds."""
    seeds = results.seeds[:5]
    means = next(
        (run["means"] for arm in results.arms for run in results.figure_data(arm) if "means" in run), []
    )
    if not means:
        return {}
    pictures: dict[str, Any] = {"class means": means * len(seeds)}
    for arm in results.arms:
        if results.known(arm, "energy"):
            pictures[arm] = [
                picture
                for run in results.figure_data(arm)[: len(seeds)]
                for picture in run.get("vectors", ())
            ]
    titles = [f"seed {seed}, v{number}" for seed in seeds for number in range(1, ACTIVE + 1)]
    return {"singular-vectors": rows(pictures, titles)}


_ENERGY = (
    Measure(name="energy", title="energy of the class means in the first two right singular vectors"),
    Measure(name="energy-least", title="of the class with less", drawn=False),
    Measure(name="sigma-1", title="first singular value", better="none", drawn=False),
    Measure(name="sigma-2", title="second singular value", better="none", drawn=False),
)
_ACCURACY = Measure(name="accuracy", title="test accuracy (10 images)")
_LPIPS = "LPIPS of right singular vectors to training images, lower is better: "


def _lpips(arm: str, first: tuple[float, float], five: tuple[float, float]) -> tuple[Reported, ...]:
    """Return mean and deviation over the two vectors of the first test, and over the five tests."""
    return (
        Reported(arm, "lpips", first[0], f"{_LPIPS}Sec. 2 and Fig. 13, first test", spread=first[1]),
        Reported(arm, "lpips-five-tests", five[0], f"{_LPIPS}Fig. 13, all tests", spread=five[1]),
    )


_AUTHORS = {"batch_size": 100, "half_sum_weight": 1e-6, "ort": 0.1, "steps": 5000, "lr": 1e-4}
PEAK = Study(
    title="peaks in the weights",
    question="Does the reverse pass embed what images have in common, two discs, into the first layer, where plain "
    "training, orthogonality and layer-wise pretraining do not?",
    reference=f"{REFERENCE}, Sec. 2, Fig. 3 and 13, A.4",
    arms=("std", "ort", "pre", "rr", "rr-sampled"),
    measures=(*_ENERGY, _ACCURACY),
    sizes={
        "cpu": {**_AUTHORS, "widths": [128], "pre_steps": 5000, "pre_lr": 1e-4},
        "paper": {**_AUTHORS, "widths": [], "pre_steps": 5000, "pre_lr": 1e-4},
    },
    scale={
        "cpu": "the network of the authors' code, 784-128-2, where the text has one layer; the images are drawn anew "
        "from their description; energy of class means in place of LPIPS.",
        "paper": "the images are drawn anew from their description; energy of class means in place of LPIPS.",
    },
    paper=(
        *_lpips("std", (0.500, 0.002), (0.462, 0.046)),
        *_lpips("ort", (0.495, 0.006), (0.432, 0.039)),
        *_lpips("pre", (0.319, 0.114), (0.332, 0.031)),
        *_lpips("rr", (0.217, 0.022), (0.221, 0.038)),
    ),
    run=run,
    extends="std",
    draw=draw,
)
_LINEAR = {"hidden": 128, "batch_size": 100, "sum_weight": 1.0, "initial": 0.05, "steps": 1000, "lr": 1e-3}
THEORY = Study(
    title="active singular values become 1",
    question="A linear network from small weights, each layer reversed by itself: do its first right singular vectors "
    "span the principal directions of the images, with singular values of 1?",
    reference=f"{REFERENCE}, Sec. 2 and A.2",
    arms=("std", "rr-local"),
    measures=(
        *_ENERGY[:2],
        *(attrs.evolve(measure, drawn=True) for measure in _ENERGY[2:]),  # what this study is about
        Measure(name="sigma-3", title="third singular value", better="none"),
        Measure(name="sigma-4", title="fourth singular value", better="none"),
        _ACCURACY,
    ),
    sizes={"cpu": _LINEAR, "paper": _LINEAR},
    scale={"cpu": "", "paper": ""},
    paper=(
        Reported("rr-local", "sigma-1", 1.0, "A.2: every active singular value, at the minimum"),
        Reported("rr-local", "sigma-2", 1.0, "A.2: every active singular value, at the minimum"),
    ),
    run=run_theory,
    extends="std",
    draw=draw,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer studies 0.1 and 0.1b."""
    register("0.1", lambda: PEAK)
    register("0.1b", lambda: THEORY)
