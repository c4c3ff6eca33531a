"""Eigenvectors that can be measured: of patches of two halves of a data set, and of filters of two groups of networks.

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", App. D.1 and Fig. 3:
    eigenvectors of 5x5 patches of two halves of CIFAR-10 agree to .975 at least, the first to .9999; of those of the
    filters of two groups of 30 networks only the first ones agree.

Arms ``patches`` compare two halves of the images, ``patches-sampled`` a sample of patches of one half with all of the
other. The control ``shuffled`` moves every pixel of an image to another place: what is left is a spectrum of nearly
equal eigenvalues, whose eigenvectors must not agree beyond those of color. ``filters`` trains two groups of networks
on random labels of the same images and compares the eigenvectors of their pooled first-layer filters; ``match-...`` say
how well those of both groups together match the data's.

    compatkit study run 1.3 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Reported, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import COLORS, png, signed
from compatkit_plugins.metrics.eigenvector_match import MatchedDirections, match_pictures  # pyright: ignore[reportMissingImports]
from compatkit_plugins.patch_covariance import (  # pyright: ignore[reportMissingImports]
    PatchMoments,
    filter_covariance,
    patches_of,
    principal_directions,
)

from ._alignment import CENTERED, REFERENCE, learned, seen_by, sgd

KERNEL = 5
DIRECTIONS = KERNEL * KERNEL * 3
SHOWN = 12
"""Eigenvectors that the paper's tables list."""
LAYER = "layer1.linear"


def patch_moments(images: NDArray[np.uint8], patches: int = 0) -> PatchMoments:
    """Return the moments of 5x5 patches of images ``(n, height, width, 3)``, scaled to -1 to 1.

    Args:
        images: 0 to 255.
        patches: Positions sampled of each image; 0 takes all.
    """
    window = nn.Conv2d(3, 1, KERNEL)

    def moments(indices: NDArray[np.int64]) -> PatchMoments:
        batch = torch.from_numpy(images[indices]).movedim(3, 1).float() / 127.5 - 1
        return PatchMoments.of(patches_of(window, batch, torch.from_numpy(indices), patches))

    pieces = np.array_split(np.arange(len(images)), max(1, len(images) // 250))
    return PatchMoments.over(map(moments, pieces))


def agreement(this: Tensor, other: Tensor) -> dict[str, Any]:
    """Compare the eigenvectors of two covariances ``(d, d)``.

    Returns:
        ``values``: eigenvalues of the first; ``cosines``: |cos| of eigenvectors of one rank; ``spaces``: for each rank
        k, the least cosine of the principal angles of the first k eigenvectors, whatever their order.
    """
    values, left = principal_directions(this)
    _, right = principal_directions(other)
    products = left @ right.T
    spaces = [float(torch.linalg.svdvals(products[:k, :k])[-1]) for k in range(1, SHOWN + 1)]
    return {"values": values.tolist(), "cosines": products.diagonal().abs().tolist(), "spaces": spaces}


def run(run: Run) -> Outcome:
    """Compare eigenvectors of the arm's two covariances."""
    settings = run.settings
    if run.arm == "filters":
        return _filters(run)
    halves = run.load("cifar10").train.divide(settings["half"], settings["half"], seed=run.seed)
    images = [half.read(range(len(half))) for half in halves]
    if run.arm == "shuffled":
        draw = np.random.default_rng(run.seed)
        flat = [half.reshape(len(half), -1, 3) for half in images]
        orders = [draw.permuted(np.tile(np.arange(half.shape[1]), (len(half), 1)), axis=1) for half in flat]
        images = [
            np.take_along_axis(pixels, order[..., None], 1).reshape(whole.shape)
            for pixels, order, whole in zip(flat, orders, images, strict=True)
        ]
    sampled = max(1, settings["sampled"] // settings["half"]) if run.arm == "patches-sampled" else 0
    moments = [patch_moments(images[0]), patch_moments(images[1], sampled)]
    agreed = agreement(moments[0].covariance, moments[1].covariance)
    return Outcome(
        values={**_summary(agreed), "count": float(moments[1].count)},
        figure_data={
            "values": agreed["values"][:SHOWN],
            "cosines": agreed["cosines"],
            "spaces": agreed["spaces"],
        },
    )


def _summary(agreed: Mapping[str, Any]) -> dict[str, float | None]:
    cosines = agreed["cosines"]
    return {
        "first-4": min(cosines[:4]),
        "first-8": min(cosines[:8]),
        "first-12": min(cosines[:SHOWN]),
        "all": min(cosines),
        "space-12": agreed["spaces"][SHOWN - 1],
    }


def _filters(run: Run) -> Outcome:
    settings = run.settings
    data = run.load("cifar10").subset(train=settings["images"])
    kwargs = {
        "channels": [settings["filters"]],
        "reduce": "none",
        "kernel": KERNEL,
        "strides": [settings["stride"]],
    }
    task = ck.Task(
        "first", data, "conv_chain", "layer1", size=settings["image"], kwargs=kwargs, normalize=CENTERED
    )
    steps = settings["epochs"] * -(-settings["images"] // settings["batch_size"])
    drawn = ck.use("scaled_init", layers={LAYER: settings["first_scale"]})
    seeds = range(1000 * run.seed, 1000 * run.seed + 2 * settings["networks"])
    trained = [
        learned(sgd(run, steps, seed=seed), task, LAYER, [ck.use("random_labels", seed=seed), drawn], 1)
        for seed in seeds
    ]
    filters = [by_step[steps] for _, by_step in trained]
    this, other = (filter_covariance(torch.cat(filters[start::2])) for start in (0, 1))
    whole = filter_covariance(torch.cat(filters))
    matched = MatchedDirections.of(seen_by(trained[0][0], LAYER), whole, 10)
    images, titles = match_pictures(matched, (3, KERNEL, KERNEL))
    both = agreement(this, other)
    values = _summary(both) | {
        "match-best": float(matched.cosines.abs().amax(1).mean()),
        "match-combined": float(matched.combined.norm(dim=1).mean()),
        "count": float(sum(map(len, filters))),
    }
    record = {"pictures": np.round(images, 4).tolist(), "titles": titles}
    return Outcome(
        values=values,
        figure_data={
            **record,
            "values": both["values"][:SHOWN],
            "cosines": both["cosines"],
            "spaces": both["spaces"],
        },
    )


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw |cos| by rank, and the filters' eigenvectors beside those of the data that they match (Fig. 3)."""
    charts = {"cosines": _cosines(results)}
    if "filters" in results.arms:
        record = next((run for run in results.figure_data("filters") if "pictures" in run), None)
        if record is not None:
            charts["match"] = signed(np.array(record["pictures"]), record["titles"], columns=4)
    return charts


def _cosines(results: Results) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for index, arm in enumerate(results.arms):
        for number, run in enumerate(run for run in results.figure_data(arm) if "cosines" in run):
            color = COLORS[index % len(COLORS)]
            ranks = range(1, len(run["cosines"]) + 1)
            axes.plot(ranks, run["cosines"], color=color, linewidth=1, label=None if number else arm)
    axes.set_xlabel("rank of the eigenvector")
    axes.set_ylabel("|cos| between both halves")
    axes.set_ylim(0, 1.02)
    figure.legend(loc="outside upper left", ncols=4, fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return png(figure)


_PATCHES, _WEIGHTS = "App. D.1, first table", "App. D.1, second table"
STUDY = Study(
    title="eigenvectors of patches and of filters",
    question="How well do the eigenvectors of patch covariances of two halves of the images agree, and those of the "
    "filters of two groups of networks that learned random labels?",
    reference=f"{REFERENCE}, Fig. 3, App. D.1",
    arms=("patches", "patches-sampled", "shuffled", "filters"),
    measures=(
        Measure(name="first-4", title="least |cos| of the first 4 eigenvectors"),
        Measure(name="first-8", title="of the first 8"),
        Measure(name="first-12", title="of the first 12"),
        Measure(name="all", title="of all 75", drawn=False),
        Measure(name="space-12", title="least principal cosine of the first 12 together"),
        Measure(name="match-best", title="first 10 of the filters: best |cos| with the data's", drawn=False),
        Measure(name="match-combined", title="with the combination of those above .4", drawn=False),
        Measure(name="count", title="patches or filters compared", better="none", drawn=False),
    ),
    sizes={
        "cpu": {
            **{"half": 5000, "sampled": 200_000, "images": 2000, "image": 16, "filters": 64, "stride": 1},
            **{"networks": 3, "epochs": 6, "batch_size": 64, "lr": 0.02, "first_scale": 0.1},
        },
        "paper": {
            **{"half": 25_000, "sampled": 200_000, "images": 50_000, "image": 32, "filters": 64, "stride": 1},
            **{"networks": 30, "epochs": 40, "batch_size": 256, "lr": 0.005, "first_scale": 0.01},
        },
    },
    scale={
        "cpu": "halves of 5,000 images (30,000 in the paper); networks of one convolution and a class layer on 2,000 "
        "images of 16x16 pixels, 3 a group, in place of 30 WRN-28-4 a group.",
        "paper": "networks of one convolution and a class layer in place of WRN-28-4; halves of the 50,000 training "
        "images, 25,000 each (30,000 in the paper).",
    },
    paper=(
        Reported("patches", "first-4", 0.9999, f"{_PATCHES}, third eigenvector .99992"),
        Reported("patches", "first-12", 0.9901, f"{_PATCHES}, ninth eigenvector"),
        Reported("patches", "all", 0.975, "App. D.1: all above"),
        Reported("filters", "first-4", 0.916, f"{_WEIGHTS}, third eigenvector"),
        Reported("filters", "first-8", 0.861, f"{_WEIGHTS}, fifth and sixth"),
        Reported("filters", "first-12", 0.598, f"{_WEIGHTS}, eleventh"),
    ),
    run=run,
    draw=draw,
    data=("cifar10",),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 1.3."""
    register("1.3", lambda: STUDY)
