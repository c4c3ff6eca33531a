"""Digits in the weights: does a layer trained on two or ten images contain them?

Paper: "Reviving Autoencoder Pretraining", A.4 and Fig. 11: one dense layer without normalization or activation, trained
    on two random digits; its right singular vectors are compared with the images by LPIPS. Pictures only, no numbers.
Here: the energy of the images in the span of as many right singular vectors as there are images, and in that of all
    ten: directions without images get no gradient and keep the singular values of the random start, about 1.4, so
    learned ones, which tend to 1, need not be the first.

Layer-wise pretraining is omitted: the only layer is the class layer, which it does not train.

    compatkit study run 0.2 --data DIR --out OUT
"""

from __future__ import annotations

from typing import Any

import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._arms import REFERENCE, half_sum, regularizers, trainer
from ._features import energies, rows, singular, to_pixels

SIDE, OUTPUTS = 28, 10
COUNTS = (2, 10)


def chosen(data: ck.DataSet, count: int, seed: int) -> ck.DataSet:
    """Return ``count`` random training images, each of another digit, with all test images.

    Args:
        data: Images of all digits.
        count: Training images, at most one a digit.
        seed: Seed of the draw.
    """
    draw = np.random.default_rng((seed, count))
    digits = draw.permutation(len(data.classes))[:count]
    indices = [draw.choice(np.flatnonzero(data.train.labels == digit)) for digit in digits]
    return ck.DataSet(data.name, data.train.take(indices), data.test)


def run(run: Run) -> Outcome:
    """Train one dense layer on two images, and another on ten."""
    whole, settings = run.load("mnist"), run.settings
    values: dict[str, float | None] = {}
    pictures: dict[str, Any] = {}
    for count in COUNTS:
        data = chosen(whole, count, run.seed)
        task = ck.Task(
            data.name,
            data,
            "fully_connected",
            "forward_features",
            size=SIDE,
            kwargs={"widths": [], "initial": "glorot"},
            normalize={"mean": 0, "std": 1 / 255},
        )
        weights = half_sum(settings["half_sum_weight"], count, {"fc": SIDE * SIDE})
        used = regularizers(run.arm, {**settings, "rr": 1.0}, layer_weights=weights)
        fit = trainer(run, settings["steps"], settings["lr"], count).fit([task], [*used, *run.added])
        shares = energies(fit, data.train, "fc", count)
        whole_span = energies(fit, data.train, "fc", count, subspace="active")
        values |= {
            f"energy-{count}": sum(shares) / count,
            f"energy-least-{count}": min(shares),
            f"energy-{count}-span": sum(whole_span) / count,
        }
        _, vectors = singular(fit.weights(data.name)["fc.weight"], OUTPUTS)
        pictures[f"images-{count}"] = [
            to_pixels(image, (SIDE, SIDE)) for image in data.train.read(range(len(data.train)))
        ]
        pictures[f"vectors-{count}"] = [to_pixels(image, (SIDE, SIDE)) for image in vectors]
    return Outcome(values=values, figure_data=pictures)


def draw(results: Results) -> dict[str, bytes]:
    """Draw the images and all right singular vectors of the first seed, by descending singular value."""
    return {"two-digits": _drawn(results, 2), "ten-digits": _drawn(results, 10)}


def _drawn(results: Results, count: int) -> bytes:
    pictures = {"images": results.figure_data(results.arms[0])[0][f"images-{count}"]}
    pictures |= {arm: results.figure_data(arm)[0][f"vectors-{count}"] for arm in results.arms}
    return rows(pictures, [f"v{number}" for number in range(1, OUTPUTS + 1)])


_AUTHORS = {"half_sum_weight": 1e-5, "ort": 0.1, "steps": 1000, "lr": 1e-4}
STUDY = Study(
    title="digits in the weights",
    question="Does one dense layer, trained on two images or on ten, hold these images in its first right singular "
    "vectors?",
    reference=f"{REFERENCE}, A.4 and Fig. 11",
    arms=("std", "ort", "rr"),
    measures=(
        Measure(name="energy-2", title="energy of two images in the first two right singular vectors"),
        Measure(name="energy-2-span", title="energy of two images in all ten right singular vectors"),
        Measure(name="energy-least-2", title="of the image with less of two", drawn=False),
        Measure(name="energy-10", title="energy of ten images in the ten right singular vectors"),
        Measure(name="energy-10-span", title="the same, of vectors with a singular value", drawn=False),
        Measure(name="energy-least-10", title="of the image with the least of ten", drawn=False),
    ),
    sizes={"cpu": _AUTHORS, "paper": _AUTHORS},
    scale=dict.fromkeys(
        ("cpu", "paper"),
        "energy of the images is measured in place of LPIPS, of which the paper shows no numbers.",
    ),
    paper=(),
    run=run,
    extends="std",
    draw=draw,
    data=("mnist",),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 0.2."""
    register("0.2", lambda: STUDY)
