"""Transfer curves: how strongly filters that learned random labels use each principal direction of their data.

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", Sec. 2.3, Fig. 4 (left),
    App. E, Fig. 20 to 22.

Gaussian arms are dense networks: ``left``, ``middle`` and ``right`` of Fig. 20, and ``figure-4``. The ladder of App.
E.2 goes from the ideal case to images, with 3x3 convolutions on 27x27 pixels: ``patches-normal`` are images of
independent normal patches with one covariance, ``patches-position`` with that of each position, ``patches-permuted``
are real patches, each position permuted over the images; ``stride-3``, ``stride-2`` and ``stride-1`` are the images.
The control ``white`` has one eigenvalue: nothing can rise or fall with sigma.

    compatkit study run 1.4 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import COLORS, png
from compatkit_plugins.gaussian import gaussian, gaussian_normalization  # pyright: ignore[reportMissingImports]
from compatkit_plugins.metrics.transfer_function import transfer_curve  # pyright: ignore[reportMissingImports]
from compatkit_plugins.patch_covariance import filter_covariance  # pyright: ignore[reportMissingImports]

from ._alignment import REFERENCE, learned, misaligned, seen_by, sgd

THIRTY = [index / 10 for index in range(1, 31)]
GAUSSIAN: dict[str, tuple[list[float], str, int]] = {
    "left": ([1 + index / 10 for index in range(10)], "wide", 10_000),
    "middle": (THIRTY, "wide", 10_000),
    "right": (THIRTY, "narrow", 2000),
    "figure-4": (THIRTY, "narrow", 10_000),
    "white": ([1.0] * 30, "narrow", 10_000),
}
"""Variances, widths of the two layers, and vectors (App. E.1; Fig. 4 does not state how many)."""
STRIDES = {"stride-2": 2, "stride-1": 1}
SIDE, PATCH = 27, 3
REACH = 3.0
"""Pixels of the ladder are from -3 to 3, so that normal ones are not cut off: deviations are about .5."""


def laddered(images: NDArray[np.uint8], arm: str, draw: np.random.Generator) -> NDArray[np.uint8]:
    """Return images ``(n, 27, 27, 3)`` of one rung; 0 to 255 stand for -3 to 3.

    Args:
        images: ``(n, height, width, 3)`` of at least 27x27 pixels, 0 to 255 for -1 to 1.
        arm: Rung of the ladder.
        draw: Draws patches and permutations.
    """
    top, left = ((side - SIDE) // 2 for side in images.shape[1:3])
    pixels = images[:, top : top + SIDE, left : left + SIDE].astype(np.float64) / 127.5 - 1
    if arm.startswith("patches"):
        grid = SIDE // PATCH
        # (n, row, column, patch)
        patches = (
            pixels.reshape(-1, grid, PATCH, grid, PATCH, 3)
            .transpose(0, 1, 3, 2, 4, 5)
            .reshape(-1, grid, grid, PATCH * PATCH * 3)
        )
        whole = np.cov(patches.reshape(-1, patches.shape[-1]).T)
        for row, column in np.ndindex(grid, grid):
            patch = patches[:, row, column].copy()
            if arm == "patches-permuted":
                patches[:, row, column] = patch[draw.permutation(len(patch))]
            else:
                matrix = whole if arm == "patches-normal" else np.cov(patch.T)
                patches[:, row, column] = draw.multivariate_normal(
                    np.zeros(len(matrix)), matrix, len(patch), method="eigh"
                )
        pixels = (
            patches.reshape(-1, grid, grid, PATCH, PATCH, 3).transpose(0, 1, 3, 2, 4, 5).reshape(pixels.shape)
        )
    return np.clip(np.rint((pixels / REACH + 1) * 127.5), 0, 255).astype(np.uint8)


def task_of(run: Run) -> tuple[ck.Task, str]:
    """Return the task of an arm and its first layer."""
    settings = run.settings
    if run.arm in GAUSSIAN:
        variances, widths, vectors = GAUSSIAN[run.arm]
        data = gaussian(
            variances, train=min(vectors, settings["vectors"]), test=200, seed=run.seed, name=run.arm
        )
        kwargs: dict[str, Any] = {"widths": settings[widths], "img_size": [1, len(variances)]}
        normalize = gaussian_normalization(variances)
        task = ck.Task("first", data, "fully_connected", "blocks.0", kwargs=kwargs, normalize=normalize)
        return task, "blocks.0.linear"
    some = run.load("cifar10").train.subset(settings["images"], seed=run.seed)
    pixels = laddered(some.read(range(len(some))), run.arm, np.random.default_rng(run.seed))
    split = ck.Split(pixels, some.labels, some.classes, run.arm)
    strides = [STRIDES.get(run.arm, 3), 3]
    kwargs = {"channels": settings["filters"], "reduce": "none", "padding": False, "strides": strides}
    normalize = {"mean": 0.5, "std": 0.5 / REACH}
    data = ck.DataSet(run.arm, split, split)
    task = ck.Task("first", data, "conv_chain", "layer1", size=SIDE, kwargs=kwargs, normalize=normalize)
    return task, "layer1.linear"


def run(run: Run) -> Outcome:
    """Train the networks of an arm and measure the curve of their pooled filters."""
    settings = run.settings
    task, layer = task_of(run)
    dense = run.arm in GAUSSIAN
    epochs, lr = (
        (settings["epochs"], settings["lr"]) if dense else (settings["image_epochs"], settings["image_lr"])
    )
    steps = epochs * -(-len(task.data.train) // settings["batch_size"])
    drawn = ck.use("scaled_init", layers={layer: settings["first_scale"]})
    seeds = range(1000 * run.seed, 1000 * run.seed + settings["networks"])
    trained = [
        learned(
            sgd(run, steps, seed=seed, lr=lr), task, layer, [ck.use("random_labels", seed=seed), drawn], 1
        )
        for seed in seeds
    ]
    covariance = seen_by(trained[0][0], layer)
    accuracy = mean(float(fit.history["first/accuracy"][-1]) for fit, _ in trained)
    pooled = torch.cat([filters[steps] for _, filters in trained])
    sigma, tau = (values.flip(0).numpy() for values in transfer_curve(covariance, filter_covariance(pooled)))
    data, random = misaligned(covariance, pooled)
    values = {**shape_of(sigma, tau), "misalignment": data / random, "learned": accuracy}
    return Outcome(values=values, figure_data={"sigma": sigma.tolist(), "tau": tau.tolist()})


def shape_of(sigma: NDArray[np.float64], tau: NDArray[np.float64]) -> dict[str, float | None]:
    """Return measures of a curve.

    Args:
        sigma: Increasing, ``(d,)``.
        tau: ``(d,)``.

    Returns:
        ``rise`` and ``fall``: rank correlation of tau with sigma in the lower and the upper half; ``peak``: place of
        the largest tau, 0 for the smallest sigma to 1; ``ratio``: largest over least tau; ``detour``: how much longer
        the curve's way up and down is than that of one that rises to the same peak and then falls.
    """
    half = len(tau) // 2
    way = np.abs(np.diff(tau)).sum()
    direct = 2 * tau.max() - tau[0] - tau[-1]
    return {
        "rise": _rank_correlation(sigma[:half], tau[:half]),
        "fall": _rank_correlation(sigma[half:], tau[half:]),
        "peak": float(tau.argmax() / (len(tau) - 1)),
        "ratio": float(tau.max() / tau.min()),
        "detour": float(way / direct - 1),
    }


def _rank_correlation(this: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return Spearman's correlation of values without ties."""
    return float(np.corrcoef(this.argsort().argsort(), other.argsort().argsort())[0, 1])


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw the curves of the Gaussian arms, and those of the ladder."""
    groups = {
        "gaussian": tuple(GAUSSIAN),
        "ladder": tuple(arm for arm in results.arms if arm not in GAUSSIAN),
    }
    return {
        name: _curves(results, [arm for arm in arms if arm in results.arms])
        for name, arms in groups.items()
        if any("tau" in run for arm in arms if arm in results.arms for run in results.figure_data(arm))
    }


def _curves(results: Results, arms: list[str]) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.0 * len(arms), 3.2), dpi=130, layout="constrained")
    for axes, arm in zip(figure.subplots(1, len(arms), squeeze=False)[0], arms, strict=True):
        for index, run in enumerate(results.figure_data(arm)):
            if "tau" in run:
                axes.plot(run["sigma"], run["tau"], ".-", color=COLORS[index % len(COLORS)], linewidth=1)
        axes.set_title(arm, fontsize=9)
        axes.set_xlabel("sigma")
        axes.set_ylim(bottom=0)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.axes[0].set_ylabel("tau = f(sigma)")
    return png(figure)


_CPU: dict[str, Any] = {"networks": 2, "first_scale": 0.1, "batch_size": 64, "lr": 0.05, "image_lr": 0.05}
STUDY = Study(
    title="transfer curves f(sigma)",
    question="Does the strength with which filters use a principal direction rise and then fall with the deviation of "
    "the data along it, and what takes the curve of images away from that of Gaussian patches?",
    reference=f"{REFERENCE}, Sec. 2.3, App. E, Fig. 4, 20, 21, 22",
    arms=(
        *GAUSSIAN,
        "patches-normal",
        "patches-position",
        "patches-permuted",
        "stride-3",
        "stride-2",
        "stride-1",
    ),
    measures=(
        Measure(name="rise", title="rank correlation of tau and sigma, lower half"),
        Measure(name="fall", title="the same, upper half", better="none"),
        Measure(name="peak", title="place of the largest tau, 0 to 1", better="none"),
        Measure(name="ratio", title="largest over smallest tau", better="none"),
        Measure(name="detour", title="way beyond one rise and one fall", better="none"),
        Measure(name="misalignment", title="misalignment, data over random", better="lower"),
        Measure(name="learned", title="training accuracy, last batches", drawn=False),
    ),
    sizes={
        "cpu": {
            **_CPU,
            **{"vectors": 4000, "wide": [1024, 128], "narrow": [256, 256], "epochs": 20},
            **{"images": 2000, "filters": [64, 64], "image_epochs": 15},
        },
        "paper": {
            **_CPU,
            **{"networks": 5, "first_scale": 1.0, "batch_size": 256, "lr": 0.1, "image_lr": 0.01},
            **{"vectors": 10_000, "wide": [2048, 256], "narrow": [256, 256], "epochs": 500},
            **{"images": 50_000, "filters": [256, 256], "image_epochs": 40},
        },
    },
    scale={
        "cpu": "4,000 vectors (right: 2,000, as in the paper) or 2,000 images; stochastic steps in place of gradient "
        "descent to convergence; first layers start at a tenth of He's deviation; wide networks of 1,024 and 128 units "
        "(2,048 and 256 in the paper).",
        "paper": "stochastic steps in place of gradient descent; the ladder's filters and epochs are not in the paper.",
    },
    paper=(),  # the curves are figures; no value is printed
    run=run,
    draw=draw,
    data=("cifar10",),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 1.4."""
    register("1.4", lambda: STUDY)
