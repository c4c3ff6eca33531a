"""Places of weights: do fine-tuned networks lie near their start, whatever their target?

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 3, Fig. 4: t-SNE of the
    weights of ResNet-50 on several targets, from ImageNet, Places, and random weights; networks of one pretraining
    lie together.
Here: distances themselves (``weight_map``). Three targets, each from two starts; a network's group are those
    from the same start. ``ratio`` is the mean distance within a group over that between groups.
Arms: ``pretrained`` starts are pretrained on digits and on clothes, from random weights of their own; ``shared-
    random`` ones are random weights that the targets share: what lies together there lies so because training moves
    weights little, not because of pretraining.
Control: ``own-random``, random weights of its own for every network: its groups are names alone, and the ratio must
    be 1.

    compatkit study run 4.6 --seeds 3 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from statistics import mean
from typing import Any

import attrs
import numpy as np

import compatkit as ck
from compatkit.evaluation.metrics import make_metric
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import COLORS, MARKS, png

from ._fine_tuning import LENET, PAPER, REFERENCE, TASK, few, pretrain, source, tune
from .weight_deviations import changed

ARMS = ("pretrained", "shared-random", "own-random")
SMALL: dict[str, Any] = {
    **LENET,
    "sources": ["mnist", "fashion_mnist"],
    "targets": ["usps", "inverted", "cifar10"],
}
LARGE: dict[str, Any] = {
    **PAPER,
    "sources": ["cifar100", "svhn"],
    "targets": ["cifar10", "stl10", "fashion_mnist"],
}
LAYERS = {"lenet": ["conv1", "conv2", "dense1", "dense2"]}
"""Layers to compare, for networks with layers of other names than ``conv``."""


def tuned(run: Run) -> dict[tuple[int, str], ck.Fit]:
    """Return the trained networks by start and target."""
    settings = run.settings
    fits = {}
    for start, name in enumerate(settings["sources"]):
        # Another seed for every start: networks of equal initial weights lie together whatever they learn.
        begun = attrs.evolve(run, seed=1000 * (start + 1) + run.seed)
        for at, target in enumerate(settings["targets"]):
            whole = run.load("mnist" if target == "inverted" else target)
            data = few(settings, whole, run.seed).converted(settings["channels"])
            data = changed(data, target) if target == "inverted" else data
            seed, weights = begun, None
            if run.arm == "pretrained":
                weights = pretrain(begun, settings, source(settings, run.load(name), run.seed))
            elif run.arm == "own-random":
                seed = attrs.evolve(begun, seed=begun.seed + 100 * (at + 1))
            fits[source, target] = tune(seed, settings, data, weights)
    return fits


def run(run: Run) -> Outcome:
    """Compare the weights of all networks."""
    fits = tuned(run)
    names = list(fits)
    weights = {f"{start}-{target}": fits[start, target].weights(TASK) for start, target in names[1:]}
    metric = make_metric("weight_map", networks=weights)
    layers = LAYERS.get(run.settings["model"], ["*conv*"])
    measured = ck.measure(fits[names[0]].tasks[TASK], None, [metric], layers=layers)
    distances = np.array(measured.table("weight_map/distance").values)
    pairs = {
        same: [
            float(distances[a, b])
            for a, b in combinations(range(len(names)), 2)
            if (names[a][0] == names[b][0]) == same
        ]
        for same in (True, False)
    }
    nearest = np.where(np.eye(len(names)) > 0, np.inf, distances).argmin(1)
    own = mean(float(names[at][0] == names[int(other)][0]) for at, other in enumerate(nearest))
    within, between = mean(pairs[True]), mean(pairs[False])
    values = {"within": within, "between": between, "ratio": within / between, "nearest": own}
    points = np.array(measured.table("weight_map").values)[0]
    record = {
        "points": points.tolist(),
        "starts": [start for start, _ in names],
        "targets": [target for _, target in names],
    }
    return Outcome(values=values, figure_data=record)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw classical scaling of the first seed: a color for each start, a mark for each target."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(results.arms), 3.8), dpi=130, layout="constrained")
    for index, arm in enumerate(results.arms, 1):
        axes = figure.add_subplot(1, len(results.arms), index)
        run = results.figure_data(arm)[0]
        targets = list(dict.fromkeys(run["targets"]))
        for (across, up), start, target in zip(run["points"], run["starts"], run["targets"], strict=True):
            mark = MARKS[targets.index(target) % len(MARKS)]
            label = f"start {start + 1}, {target}"
            axes.plot(across, up, mark, color=COLORS[start], markersize=8, alpha=0.8, label=label)
        axes.set_title(arm, fontsize=9)
        axes.set_aspect("equal", "datalim")
        if index == 1:
            figure.legend(
                *axes.get_legend_handles_labels(),
                fontsize=8,
                frameon=False,
                loc="outside upper left",
                ncols=3,
            )
    return {"map": png(figure)}


STUDY = Study(
    title="places of weights",
    question="Do fine-tuned networks of one start lie nearer to each other than to those of another start, and is that "
    "so because of pretraining?",
    reference=f"{REFERENCE} Sec. 3, Fig. 4",
    arms=ARMS,
    measures=(
        Measure(name="within", title="distance within a start", better="none"),
        Measure(name="between", title="distance between starts", better="none"),
        Measure(name="ratio", title="within over between", better="none"),
        Measure(name="nearest", title="share whose nearest network has the same start", better="none"),
    ),
    sizes={"cpu": SMALL, "paper": LARGE},
    scale={
        "cpu": "LeNet; six networks of 300 images and 300 steps of 32.",
        "paper": "ResNet-56 from CIFAR-100 and SVHN for ResNet-50 from ImageNet and Places.",
    },
    paper=(),
    run=run,
    draw=draw,
    data=("mnist", "fashion_mnist", "usps", "cifar10"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 4.6."""
    register("4.6", lambda: STUDY)
