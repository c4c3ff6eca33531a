"""Many configurations: how often does pretraining on random labels make learning faster?

Paper: Maennel et al. 2020, App. B, Fig. 12 to 15: groups of runs with random initial scales, rates, networks and
    lengths; learning speed from scratch against that after pretraining. Scatter plots only: most groups gain in
    training accuracy.
Here: each seed is one configuration, drawn from the ranges of the paper's experiments A (sizes shrunk at ``cpu``), so
    that ``--seeds 24`` are 24 configurations. Control: the permuted network, as in study 1.1.

    compatkit study run 1.9 --seeds 24 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import COLORS, png

from ._random_labels import DATA, PAPER, REFERENCE, SIMPLE, STARTS, compare

KINDS = ("real", "random")
RANGES: dict[str, Any] = {
    "scales": [0.5, 1.35],
    "rates": [0.008, 0.0125],
    "ups": [250, 500, 750, 1000],
    "classes": [2, 5, 10, 25, 50, 100],
    "lengths": [10, 20, 30],
    "convolutions": [1, 2, 3],
    "units": [64, 128, 256],
    "filters": [8, 16],
}
"""Ends of log-uniform ranges, and values with equal chances."""
AUTHORS: dict[str, Any] = {
    **RANGES,
    "ups": [5000, 10_000, 15_000, 20_000, 25_000],
    "lengths": [20, 40, 80, 100, 120, 150, 200],
    "convolutions": [1, 2, 3, 4, 5],
    "units": [64, 128, 256, 512, 1024],
    "filters": [16, 32],
}


def configuration(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the settings that a seed draws."""
    draw = np.random.default_rng(seed)

    def between(low: float, high: float) -> float:
        return float(np.exp(draw.uniform(np.log(low), np.log(high))))

    def among(name: str) -> int:
        return int(draw.choice(settings[name]))

    return {
        "init_scale": between(*settings["scales"]),
        "lr": between(*settings["rates"]),
        "up": among("ups"),
        "classes_up": among("classes"),
        "epochs_up": among("lengths"),
        "kwargs": {name: among(name) for name in ("convolutions", "filters", "units")},
    }


def run(run: Run) -> Outcome:
    """Compare the three starts in one configuration, on one kind of labels."""
    drawn = configuration(run.settings, run.seed)
    measured, _ = compare(run, {**run.settings, **drawn}, kinds=(run.arm,))
    own = {name: value for name, value in measured.items() if not name.startswith("test-")}
    values = {name.removeprefix(f"{run.arm}-"): value for name, value in own.items()}
    for start, name in (("pretrained", "faster"), ("permuted", "faster-permuted")):
        values[name] = float((measured[f"{run.arm}-{start}"] or 0) > (measured[f"{run.arm}-scratch"] or 0))
    if run.arm == "real":
        values["test-gain"] = (measured["test-pretrained"] or 0) - (measured["test-scratch"] or 0)
    return Outcome(values=values, figure_data=drawn)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw learning speed from scratch against that after pretraining; below the line, pretraining is faster."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(results.arms), 4.4), dpi=130, layout="constrained")
    for index, arm in enumerate(results.arms, 1):
        axes = figure.add_subplot(1, len(results.arms), index)
        for number, start in enumerate(("pretrained", "permuted")):
            axes.plot(
                np.array(results.values(arm, start), dtype=np.float64),
                np.array(results.values(arm, "scratch"), dtype=np.float64),
                "os"[number],
                color=COLORS[number + 1],
                alpha=0.7,
                markersize=5,
                label=start,
            )
        ends = (0, 1)
        axes.plot(ends, ends, color="#222222", linewidth=1)
        shown = [value for start in STARTS for value in results.known(arm, start)]
        axes.set_xlim(min(shown) - 0.03, max(shown) + 0.03)
        axes.set_ylim(min(shown) - 0.03, max(shown) + 0.03)
        axes.set_xlabel("learning speed from a pretrained or permuted network")
        axes.set_ylabel("learning speed from scratch")
        axes.set_title(f"{arm} labels downstream", fontsize=9)
        if index == 1:
            axes.legend(fontsize=8, frameon=False)
    return {"scatter": png(figure)}


STUDY = Study(
    title="pretraining on random labels in many configurations",
    question="In how many random configurations does pretraining on random labels make learning faster?",
    reference=f"{REFERENCE} App. B, Fig. 12",
    arms=KINDS,
    measures=(
        Measure(name="upstream", title="accuracy on the random labels upstream", better="none", drawn=False),
        *(Measure(name=start, title=f"learning speed: {start}") for start in STARTS),
        Measure(name="gain", title="pretrained less scratch"),
        Measure(name="control", title="permuted less scratch", better="none"),
        Measure(name="faster", title="share of configurations in which pretrained is faster", drawn=False),
        Measure(name="faster-permuted", title="the same of permuted", better="none", drawn=False),
        Measure(name="test-gain", title="test accuracy, pretrained less scratch", drawn=False),
    ),
    sizes={"cpu": {**SIMPLE, **RANGES, "down": 500}, "paper": {**PAPER, **AUTHORS, "up": 25_000}},
    scale={
        "cpu": "SimpleCNN alone, on up to 1,000 images of 16x16 pixels upstream and 500 downstream, 10 to 30 and 20 "
        "epochs; one seed a configuration, where the paper has two, and all layers transferred.",
        "paper": "SimpleCNN alone, where the paper has VGG16 and ResNet18 too.",
    },
    paper=(),
    run=run,
    draw=draw,
    data=(DATA,),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 1.9."""
    register("1.9", lambda: STUDY)
