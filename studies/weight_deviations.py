"""Weight deviation: do weights move less for targets that are learned well?

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 3, Tables 1 and 2, Fig. 2: a
    ResNet-50 from ImageNet on five targets, features fixed or fine-tuned, 3 runs; deviation grows with the steps,
    levels off, and is about proportional to the test error.
Here: 4.1 one source, five targets of equal size, by test error; 4.2 the same from scratch; 4.3 along training.
Controls: ``random-weights`` start from Gaussian filters of the pretrained norms: an order that it shows too is that
    of the targets, not of what was transferred; ``permuted`` targets have nothing to generalize.

    compatkit study run 4.1 --seeds 3 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import attrs
import numpy as np
from scipy import ndimage

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Reported, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import COLORS, MARKS, png

from ._curves import panels
from ._fine_tuning import (
    IMAGENET,
    LENET,
    OWN_SOURCE,
    PAPER,
    REFERENCE,
    TASK,
    deviation,
    few,
    moved,
    permuted,
    pretrain,
    random_weights,
    rank_correlation,
    source,
    tested,
    tune,
)

TARGETS = ("rotated", "usps", "inverted", "fashion_mnist", "cifar10")
"""Nearest first, as one would guess; the first and the third are the other half of MNIST."""
TURN = 30
"""Degrees."""
SMALL: dict[str, Any] = {**LENET, "steps": 400, "targets": list(TARGETS), "points": 15}
LARGE: dict[str, Any] = {**PAPER, "targets": ["cifar10", "stl10", "svhn", "fashion_mnist"], "points": 40}
PHOTOS: dict[str, Any] = {
    **LARGE,
    **IMAGENET,
    "targets": ["webcam/", "cars/", "caltech101/", "synthetic/", "cub/"],
}
ALL = tuple(dict.fromkeys((*SMALL["targets"], *LARGE["targets"])))
STARTS = ("tuned", "scratch", "random-weights")
PERMUTED = "-permuted"


def called(target: str) -> str:
    """Return the name of a target, which may be a folder."""
    return Path(target).name


def changed(data: ck.DataSet, how: str) -> ck.DataSet:
    """Return the images rotated or inverted."""

    def change(split: ck.Split) -> ck.Split:
        images = split.read(range(len(split)))
        transformed = (
            255 - images
            if how == "inverted"
            else ndimage.rotate(images, TURN, (1, 2), reshape=False, order=1)
        )
        return attrs.evolve(split, images=transformed)

    return ck.DataSet(how, change(data.train), change(data.test))


def read(run: Run) -> tuple[ck.DataSet, dict[str, ck.DataSet]]:
    """Return the source's training images, and few images of each target that there is."""
    settings, own = run.settings, run.load(run.settings["source"])
    first, second = own.halves() if {"rotated", "inverted"} & set(settings["targets"]) else (own, own)
    targets = {}
    for name in settings["targets"]:
        data = second if name in ("rotated", "inverted") else run.find(name)
        if data is None:
            continue
        some = few(settings, data, run.seed).converted(settings["channels"])
        targets[called(name)] = changed(some, name) if data is second else some
    return source(settings, first, run.seed), targets


def start_of(run: Run, begun: ck.DataSet, arm: str) -> Mapping[str, Any] | None:
    """Return the weights that an arm starts from."""
    if arm == "scratch":
        return None
    weights = pretrain(run, run.settings, begun)
    if arm == "random-weights":
        return random_weights(run, run.settings, begun, weights, run.seed)
    return weights


def compare(run: Run) -> Outcome:
    """Fine-tune for every target from the start of the arm; relate deviation and test error."""
    begun, targets = read(run)
    weights = start_of(run, begun, run.arm)
    values: dict[str, float | None] = {}
    left = []
    for name, target in targets.items():
        data = permuted(target, run.seed) if run.arm == "permuted" else target
        fit = tune(run, run.settings, data, weights, fixed=run.arm == "fixed")
        start = tune(run, run.settings, data, weights, steps=0)
        values[f"error-{name}"] = 1 - tested(fit)
        left.append(1 - tested(fit, data.train))
        values[f"deviation-{name}"] = deviation(moved(fit.tasks[TASK], start, len(data.train)))
    errors, deviations = (
        [values[f"{what}-{name}"] or 0.0 for name in targets] for what in ("error", "deviation")
    )
    if len(targets) > 2:
        values["correlation"] = rank_correlation(errors, deviations)
    values["mean-error"], values["mean-deviation"] = mean(errors), mean(deviations)
    values["left"] = max(left)
    missing = [name for name in run.settings["targets"] if called(name) not in targets]
    return Outcome(values=values, notes=(f"Left out, not found: {', '.join(missing)}.",) if missing else ())


@attrs.define(eq=False)
class Watch:
    """Measures the deviation every few steps.

    Attributes:
        start: The network before training.
        count: Training images.
        every: Steps between measurements.
        rows: Pairs of step and deviation.
    """

    start: ck.Fit
    count: int
    every: int
    rows: list[tuple[int, float]]

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Measure every few steps."""
        if (step.number + 1) % self.every == 0:
            self.rows.append((step.number + 1, deviation(moved(step.task, self.start, self.count))))


def along(run: Run) -> Outcome:
    """Fine-tune for one target, and follow the deviation."""
    begun, targets = read(run)
    name = run.arm.removesuffix(PERMUTED)
    if name not in targets:
        return Outcome(values={}, notes=(f"Left out, not found: {name}.",))
    data = permuted(targets[name], run.seed) if run.arm.endswith(PERMUTED) else targets[name]
    weights = start_of(run, begun, "tuned")
    start = tune(run, run.settings, data, weights, steps=0)
    deviations: list[tuple[int, float]] = []
    every = max(1, run.settings["steps"] // run.settings["points"])
    watch = {"watch": lambda: Watch(start, len(data.train), every, deviations)}
    fit = tune(run, run.settings, data, weights, ["watch"], factories=watch)
    line = [value for _, value in deviations]
    half = line[len(line) // 2 - 1]
    values: dict[str, float | None] = {
        "rising": float(np.mean(np.diff([0.0, *line]) > 0)),
        "correlation": rank_correlation([step for step, _ in deviations], line),
        "second-half": (line[-1] - half) / line[-1],
        "deviation": line[-1],
        "error": 1 - tested(fit),
    }
    return Outcome(values=values, figure_data={"steps": [step for step, _ in deviations], "deviation": line})


def scatter(results: Results) -> Mapping[str, bytes]:
    """Draw deviation against test error, a panel for each start and a mark for each target."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.3 * len(results.arms), 3.6), dpi=130, layout="constrained")
    panels = figure.subplots(1, len(results.arms), sharey=True, squeeze=False)[0]
    for index, (arm, axes) in enumerate(zip(results.arms, panels, strict=True), 1):
        for number, name in enumerate(map(called, results.settings["targets"])):
            across, up = (results.known(arm, f"{what}-{name}") for what in ("error", "deviation"))
            color, mark = COLORS[number % len(COLORS)], MARKS[number % len(MARKS)]
            axes.plot(across, up, mark, color=color, label=name, alpha=0.8)
        axes.set_title(arm, fontsize=9)
        axes.set_xlabel("test error")
        axes.set_xlim(0, 1)
        if index == 1:
            axes.set_ylabel("weight deviation")
            figure.legend(
                *axes.get_legend_handles_labels(),
                fontsize=8,
                frameon=False,
                loc="outside upper left",
                ncols=5,
            )
    panels[0].set_ylim(bottom=0)
    return {"scatter": png(figure)}


def curves(results: Results) -> Mapping[str, bytes]:
    """Draw deviation along training: targets, and those with permuted labels."""
    drawn: dict[str, dict[str, Any]] = {"own labels": {}, "permuted labels": {}}
    steps: list[int] = []
    scale: dict[str, Any] = {"height": "weight deviation", "same": True}
    for arm in results.arms:
        runs = [run for run in results.figure_data(arm) if "steps" in run]
        if runs:
            panel = "permuted labels" if arm.endswith(PERMUTED) else "own labels"
            drawn[panel][arm.removesuffix(PERMUTED)] = [run["deviation"] for run in runs]
            steps = runs[0]["steps"]
    return {"curves": panels({name: run for name, run in drawn.items() if run}, steps, "steps", **scale)}


NAMES = (*ALL, *map(called, PHOTOS["targets"]))
MEASURES = (
    *(
        Measure(name=f"error-{name}", title=f"test error: {name}", better="lower", drawn=False)
        for name in NAMES
    ),
    *(
        Measure(name=f"deviation-{name}", title=f"deviation: {name}", better="none", drawn=False)
        for name in NAMES
    ),
    Measure(name="correlation", title="rank correlation of deviation and test error", better="none"),
    Measure(name="mean-error", title="test error, mean of targets", better="lower"),
    Measure(name="mean-deviation", title="deviation, mean of targets", better="none"),
    Measure(name="left", title="training error, largest of targets", better="none", drawn=False),
)
SCALE = {
    "cpu": "LeNet from 6,000 images of half of MNIST, 300 training images of each target (rotated and "
    "inverted ones are of the other half), 400 steps of 32.",
    "paper": "ResNet-56 from CIFAR-100 for ResNet-50 from ImageNet; targets of torchvision.",
    "imagenet": OWN_SOURCE,
}
TABLE_1 = {
    "webcam": ((0.45, 0.05), (0.096, 0.007), (0.45, 0.09), (0.94, 0.10)),
    "cars": ((24.2, 0.73), (0.165, 0.003), (13.95, 0.44), (3.70, 0.26)),
    "caltech101": ((6.24, 0.37), (0.059, 0.005), (4.57, 0.40), (1.22, 0.21)),
    "synthetic": ((0.81, 0.19), (0.015, 0.003), (0.75, 0.11), (0.65, 0.12)),
    "cub": ((35.10, 0.50), (0.262, 0.006), (21.04, 0.36), (2.38, 0.33)),
}
TABLE_2 = {
    "webcam": ((26.39, 0.41), (3.54, 0.53)),
    "cars": ((46.25, 0.76), (5.95, 0.38)),
    "caltech101": ((22.14, 0.63), (2.34, 0.34)),
    "cub": ((52.70, 0.77), (3.90, 0.61)),
}


def _reported(arm: str, where: str, table: Mapping[str, tuple[Any, ...]], first: int) -> tuple[Reported, ...]:
    return tuple(
        Reported(arm, f"{what}-{name}", row[first + index][0], where, unit, row[first + index][1])
        for name, row in table.items()
        for index, (what, unit) in enumerate((("error", "%"), ("deviation", "1")))
    )


STUDIES = {
    "4.1": Study(
        title="deviation and test error by target",
        question="Is the deviation of weights from those that fine-tuning started from larger for targets with a "
        "larger test error, and is that so because of what was transferred?",
        reference=f"{REFERENCE} Sec. 3, Table 1",
        arms=("tuned", "fixed", "random-weights", "permuted"),
        measures=MEASURES,
        sizes={"cpu": SMALL, "paper": LARGE, "imagenet": PHOTOS},
        scale=SCALE,
        paper=(*_reported("fixed", "Table 1", TABLE_1, 0), *_reported("tuned", "Table 1", TABLE_1, 2)),
        run=compare,
        draw=scatter,
        data=("mnist", "usps", "fashion_mnist", "cifar10"),
    ),
    "4.2": Study(
        title="deviation and test error from scratch",
        question="Do weights of a pretrained network move less than those of one from scratch, with a lower error?",
        reference=f"{REFERENCE} App. B.3, Table 2",
        arms=STARTS,
        measures=MEASURES,
        sizes={"cpu": SMALL, "paper": LARGE, "imagenet": PHOTOS},
        scale=SCALE,
        paper=(*_reported("tuned", "Table 1", TABLE_1, 2), *_reported("scratch", "Table 2", TABLE_2, 0)),
        run=compare,
        draw=scatter,
        data=("mnist", "usps", "fashion_mnist", "cifar10"),
    ),
    "4.3": Study(
        title="deviation along training",
        question="Does the deviation of weights only grow, does it level off, and does it so without a rule to learn?",
        reference=f"{REFERENCE} Sec. 3, Fig. 2",
        arms=(*ALL, *(f"{name}{PERMUTED}" for name in ALL)),
        measures=(
            Measure(name="rising", title="share of intervals in which deviation grows", better="none"),
            Measure(
                name="correlation", title="rank correlation of deviation and step", better="none", drawn=False
            ),
            Measure(name="second-half", title="share of deviation that the second half adds", better="none"),
            Measure(name="deviation", title="deviation at the end", better="none"),
            Measure(name="error", title="test error", better="lower", drawn=False),
        ),
        sizes={"cpu": SMALL, "paper": LARGE},
        scale={name: SCALE[name] for name in ("cpu", "paper")},
        paper=(),
        run=along,
        draw=curves,
        data=("mnist", "usps", "fashion_mnist", "cifar10"),
    ),
}


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer studies 4.1 to 4.3."""
    for number, study in STUDIES.items():
        register(number, lambda study=study: study)
