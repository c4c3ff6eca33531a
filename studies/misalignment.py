"""Misalignment over training: do the filters of the first layer take over the eigenvectors of their data?

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", Sec. 2.2, Fig. 2: the
    misalignment with the data stays small, that with a random orthonormal basis grows, for random and for real labels.

Each run trains several networks from other weights and with other random labels on the same images. Figures are those
of the first network alone, as in the paper, and of the filters of all networks pooled. Arms: ``gaussian`` are dense
networks on N(0, diag(.1, .2, ..., 3)) whose first layer starts at a tenth of He's deviation; ``gaussian-he`` starts
from He's: filters hide what they learned under their isotropic start. The control ``white`` has data of one eigenvalue,
where the eigenvectors of a sample say nothing: data and random bases must not differ. ``cifar-random`` and
``cifar-real`` are convolutional networks on CIFAR-10.

    compatkit study run 1.2 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

import torch
from torch import Tensor

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register
from compatkit_plugins.gaussian import gaussian, gaussian_normalization  # pyright: ignore[reportMissingImports]

from ._alignment import CENTERED, REFERENCE, learned, misaligned, seen_by, sgd
from ._curves import panels

GAUSSIAN = ("gaussian", "gaussian-he", "white")
EIGENVALUES = [index / 10 for index in range(1, 31)]
POINTS = 8
"""Points of the curves after the start."""


def task_of(run: Run) -> tuple[ck.Task, str]:
    """Return the task of an arm and its first layer."""
    settings = run.settings
    if run.arm in GAUSSIAN:
        variances = [1.0] * len(EIGENVALUES) if run.arm == "white" else EIGENVALUES
        data = gaussian(variances, train=settings["vectors"], test=200, seed=run.seed)
        kwargs = {"widths": settings["widths"], "img_size": [1, len(variances)]}
        normalize = gaussian_normalization(variances)
        task = ck.Task("first", data, "fully_connected", "blocks.0", kwargs=kwargs, normalize=normalize)
        return task, "blocks.0.linear"
    data = run.load("cifar10").subset(train=settings["images"])
    kwargs = {"convolutions": 1, "filters": settings["filters"], "units": settings["units"]}
    image = settings["image"]
    task = ck.Task("first", data, "simple_cnn", "blocks.0", size=image, kwargs=kwargs, normalize=CENTERED)
    return task, "blocks.0.conv"


def run(run: Run) -> Outcome:
    """Train the networks of an arm; measure alignment along the way."""
    settings = run.settings
    task, layer = task_of(run)
    scale = 1.0 if run.arm == "gaussian-he" else settings["first_scale"]
    drawn = ck.use("scaled_init", layers={layer: scale})
    batches = -(-len(task.data.train) // settings["batch_size"])
    steps = batches * settings["epochs" if run.arm in GAUSSIAN else "image_epochs"]
    trained: list[tuple[ck.Fit, dict[int, Tensor]]] = []
    for seed in range(1000 * run.seed, 1000 * run.seed + settings["networks"]):
        labels = [] if run.arm == "cifar-real" else [ck.use("random_labels", seed=seed)]
        trained.append(learned(sgd(run, steps, seed=seed), task, layer, [*labels, drawn], POINTS))
    covariance, filters = seen_by(trained[0][0], layer), [by_step for _, by_step in trained]
    accuracies = [float(fit.history["first/accuracy"][-1]) for fit, _ in trained]
    curves = {
        "single": [misaligned(covariance, filters[0][step]) for step in filters[0]],
        "pooled": [
            misaligned(covariance, torch.cat([sample[step] for sample in filters])) for step in filters[0]
        ],
    }
    values: dict[str, float | None] = {"learned": mean(accuracies)}
    for name, curve in curves.items():
        (start, _), (data, random) = curve[0], curve[-1]
        values |= {f"{name}-start": start, f"{name}-data": data, f"{name}-random": random}
        values[f"{name}-ratio"] = data / random
    return Outcome(values=values, figure_data={"steps": list(filters[0]), **curves})


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw misalignment with the data and with random bases along training, as the paper's Fig. 2, by arm."""
    pictures: dict[str, bytes] = {}
    for arm in results.arms:
        rows = [run for run in results.figure_data(arm) if "single" in run]
        if rows:
            drawn = {
                name: {
                    basis: [[pair[index] for pair in run[name]] for run in rows]
                    for index, basis in enumerate(("data", "random basis"))
                }
                for name in ("single", "pooled")
            }
            pictures[f"curve-{arm}"] = panels(drawn, rows[0]["steps"], f"{arm}: step")
    return pictures


def _measures(name: str, title: str) -> tuple[Measure, ...]:
    return (
        Measure(name=f"{name}-data", title=f"{title}: misalignment with the data", better="lower"),
        Measure(name=f"{name}-random", title=f"{title}: with random bases", better="none"),
        Measure(name=f"{name}-ratio", title=f"{title}: data over random", better="lower"),
        Measure(
            name=f"{name}-start",
            title=f"{title}: with the data, before the first step",
            better="none",
            drawn=False,
        ),
    )


_DENSE: dict[str, Any] = {"lr": 0.05, "first_scale": 0.1}
STUDY = Study(
    title="misalignment of the first layer",
    question="After training on random labels, are the filters of the first layer aligned with their data more than "
    "with random bases, for Gaussian data and for patches of images?",
    reference=f"{REFERENCE}, Sec. 2.2, Fig. 2",
    arms=("gaussian", "gaussian-he", "white", "cifar-random", "cifar-real"),
    measures=(
        *_measures("pooled", "networks pooled"),
        *_measures("single", "one network"),
        Measure(name="learned", title="training accuracy, last batches", drawn=False),
    ),
    sizes={
        "cpu": {
            **_DENSE,
            **{"networks": 3, "vectors": 2000, "widths": [256, 256], "epochs": 40, "batch_size": 64},
            **{"images": 2000, "image": 16, "filters": 64, "units": 32, "image_epochs": 8},
        },
        "paper": {
            **{"lr": 0.01, "first_scale": 1.0, "batch_size": 256},
            **{"networks": 10, "vectors": 10_000, "widths": [256, 256], "epochs": 150},
            **{"images": 50_000, "image": 32, "filters": 256, "units": 64, "image_epochs": 40},
        },
    },
    scale={
        "cpu": "2,000 images of 16x16 pixels and 64 filters, where the paper has 50,000 of 32x32 and 256; 8 epochs "
        "in place of 40; first layers start at a tenth of He's deviation, but for gaussian-he, so that few steps "
        "show what is learned; the paper has no Gaussian arm here.",
        "paper": "the paper has no Gaussian arm here.",
    },
    paper=(),  # Fig. 2 shows curves; no value is printed
    run=run,
    draw=draw,
    data=("cifar10",),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 1.2."""
    register("1.2", lambda: STUDY)
