"""Flatness by start: is the loss flatter around a fine-tuned network than around one trained from scratch?

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 3 and 4, Fig. 3, 5, 10, 12 and
    13: ResNet-50 on Stanford Cars and Food-101; pretrained networks have smaller eigenvalues and flatter landscapes
    at the minimum, smoother ones at the start, most of all in lower layers. Pictures only.
Here: 4.4 the largest eigenvalues when the training loss first falls to each of ``LEVELS``, since the Hessian of a
    cross-entropy shrinks with its loss; 4.5 the deviation of the loss over a grid around the start and at the last
    level. At the start the class layer is new, and statistics of batch normalization have seen ``settle`` batches.
Control: ``random-weights``, Gaussian filters of the pretrained norms: it must not be flatter than from scratch.

    compatkit study run 4.4 --seeds 3 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

import compatkit as ck
from compatkit.evaluation.metrics import Metric, make_metric
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import COLORS, landscapes, png

from ._fine_tuning import (
    IMAGENET,
    OWN_SOURCE,
    PAPER,
    REFERENCE,
    RESIDUAL,
    TASK,
    few,
    pretrain,
    random_weights,
    source,
    tested,
    tune,
)

ARMS = ("pretrained", "scratch", "random-weights")
LEVELS = (0.3, 0.1, 0.03)
NEAR = 4
"""The training loss is looked at once that of a batch is at most so many times the next level."""
SMALL: dict[str, Any] = {
    **RESIDUAL,
    **{"target": "usps", "every": 4, "steps": 320, "settle": 40, "examples": 128},
    **{"count": 5, "points": 11, "reach": 0.5, "layers": ["conv1", "layer3.0.conv2"]},
}
LARGE: dict[str, Any] = {
    **PAPER,
    **{"target": "stl10", "every": 20, "settle": 200, "examples": 256},
    **{"count": 20, "points": 101, "reach": 0.5, "layers": ["conv1", "layer3.8.conv2"]},
}
"""``reach``: of the grid from its center, in norms of the filters."""
PHOTOS: dict[str, Any] = {**LARGE, **IMAGENET, "target": "cars/", "layers": ["conv1", "layer4.2.conv3"]}


@attrs.define(eq=False)
class Levels:
    """Measures a network when its training loss first falls to each level.

    Attributes:
        data: Training images.
        every: Steps between looks at the loss.
        measure: Called with the network and the level.
        found: Results by level: step, loss and what ``measure`` returned.
    """

    data: ck.Split
    every: int
    measure: Callable[[Any, float], Any]
    measured: dict[float, tuple[int, float, Any]]

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Look every few steps."""
        left = [level for level in LEVELS if level not in self.measured]
        if not left or (step.number + 1) % self.every or float(step.losses["task"]) > NEAR * left[0]:
            return
        now = loss(step.task, self.data)
        for level in left:
            if now <= level:
                self.measured[level] = (step.number + 1, now, self.measure(step.task, level))


def loss(network: Any, data: ck.Split) -> float:
    """Return the mean training loss in eval mode."""
    metric = make_metric("loss_variation", points=1, examples=len(data))
    table = ck.measure(network, data, [metric]).table("loss_variation")
    return float(table.at(case="as given", protocol="gradient", quantity="loss").value or 0.0)


def begin(run: Run) -> tuple[ck.DataSet, Mapping[str, Any]]:
    """Return the target's images and the start of the arm: weights with a new class layer and settled statistics."""
    settings = run.settings
    data = few(settings, run.load(settings["target"]), run.seed).converted(settings["channels"])
    weights = None
    if run.arm != "scratch":
        own = source(settings, run.load(settings["source"]), run.seed)
        weights = pretrain(run, settings, own)
        if run.arm == "random-weights":
            weights = random_weights(run, settings, own, weights, run.seed)
    still = {**settings, "lr": 1e-12, "weight_decay": 0.0}
    return data, tune(run, still, data, weights, steps=settings["settle"]).weights(TASK)


def levelled(
    run: Run, data: ck.DataSet, weights: Mapping[str, Any], measure: Callable[[Any, float], Any]
) -> tuple[ck.Fit, dict[float, tuple[int, float, Any]]]:
    """Train from a start, and measure at each level; return the fit and what was found."""
    settings = run.settings
    by_level: dict[float, tuple[int, float, Any]] = {}
    watch = {"levels": lambda: Levels(data.train, settings["every"], measure, by_level)}
    fit = tune(run, settings, data, weights, ["levels"], factories=watch, keep_class_layer=True)
    return fit, by_level


def of_levels(by_level: Mapping[float, tuple[int, float, Any]]) -> Outcome:
    """Return step and loss at each level, and a note where one was not reached."""
    values: dict[str, float | None] = {}
    for level, (step, now, _) in by_level.items():
        values |= {f"steps-{level}": step, f"loss-{level}": now}
    missing = [f"{level}" for level in LEVELS if level not in by_level]
    notes = (f"A network did not reach a training loss of {', '.join(missing)}.",) if missing else ()
    return Outcome(values=values, notes=notes)


def spectra(run: Run) -> Outcome:
    """Measure the largest eigenvalues at equal training loss."""
    settings = run.settings
    metric = make_metric(
        "hessian_spectrum",
        count=settings["count"],
        ends=["largest"],
        examples=settings["examples"],
        tolerance=1e-2,
    )
    data, weights = begin(run)

    def measure(network: Any, level: float) -> list[float]:
        table = ck.measure(network, data.train, [metric]).table("hessian_spectrum")
        return [float(cell.value or 0.0) for cell in table.cells]

    fit, by_level = levelled(run, data, weights, measure)
    levels = of_levels(by_level)
    values = {**levels.values, "accuracy": tested(fit)}
    for level, (_, _, sizes) in by_level.items():
        values |= {f"largest-{level}": sizes[0], f"sum-{level}": sum(sizes)}
    return Outcome(
        values=values,
        figure_data={str(level): entry[2] for level, entry in by_level.items()},
        notes=levels.notes,
    )


def grids(run: Run) -> Outcome:
    """Measure landscapes at the start, of all layers and of a low and a high one, and at the last level."""
    settings = run.settings
    data, weights = begin(run)
    start = tune(run, settings, data, weights, steps=0, keep_class_layer=True)
    step = settings["reach"] / (settings["points"] // 2)

    def grid(network: Any, layers: Sequence[str] = ()) -> Any:
        metric: Metric = make_metric(
            "loss_landscape",
            points=settings["points"],
            step=step,
            examples=settings["examples"],
            seed=run.seed,
        )
        return ck.measure(network, data.train, [metric], layers=layers).table("loss_landscape").values[0]

    grids = {"start": grid(start.tasks[TASK])}
    for depth, name in zip(("low", "high"), settings["layers"], strict=True):
        grids[depth] = grid(start.tasks[TASK], [name])
    last = LEVELS[-1]
    _, by_level = levelled(
        run, data, weights, lambda network, level: grid(network) if level == last else None
    )
    levels = of_levels(by_level)
    if last in by_level:
        grids["end"] = by_level[last][2]
    values = {
        **levels.values,
        **{f"deviation-{name}": float(np.std(values)) for name, values in grids.items()},
    }
    return Outcome(
        values=values,
        figure_data={name: values.tolist() for name, values in grids.items()},
        notes=levels.notes,
    )


def draw_spectra(results: Results) -> Mapping[str, bytes]:
    """Draw the eigenvalues by place at each level, a line a run."""
    from matplotlib.figure import Figure

    levels = LEVELS
    figure = Figure(figsize=(3.4 * len(levels), 3.4), dpi=130, layout="constrained")
    for column, level in enumerate(levels, 1):
        axes = figure.add_subplot(1, len(levels), column)
        for number, arm in enumerate(results.arms):
            lines = [run[str(level)] for run in results.figure_data(arm) if str(level) in run]
            for at, line in enumerate(lines):
                axes.plot(range(1, len(line) + 1), line, "o-", color=COLORS[number], alpha=0.7, markersize=4,
                          label=arm if at == 0 else None)  # fmt: skip
        axes.set_title(f"training loss {level}", fontsize=9)
        axes.set_xlabel("eigenvalue of the Hessian, by place")
        axes.set_ylim(bottom=0)
        if column == 1:
            figure.legend(
                *axes.get_legend_handles_labels(),
                fontsize=8,
                frameon=False,
                loc="outside upper left",
                ncols=4,
            )
    return {"spectra": png(figure)}


def draw_grids(results: Results) -> Mapping[str, bytes]:
    """Draw the landscapes of the first seed, of each place in one scale."""
    offsets = np.linspace(-1, 1, results.settings["points"]) * results.settings["reach"]
    drawn = {}
    for name in ("start", "low", "high", "end"):
        grids = {
            arm: np.array(results.figure_data(arm)[0][name])
            for arm in results.arms
            if name in (*results.figure_data(arm), {})[0]
        }
        if grids:
            drawn[f"landscape-{name}"] = landscapes(grids, offsets.tolist())
    return drawn


def _of_levels(name: str, title: str, better: Any = "none", *, drawn: bool = False) -> tuple[Measure, ...]:
    return tuple(
        Measure(name=f"{name}-{level}", title=f"{title} at training loss {level}", better=better, drawn=drawn)
        for level in LEVELS
    )


SCALE = {
    "cpu": "ResNet-8 from 4,000 images of MNIST, 300 images of USPS at 16x16, steps of 32.",
    "paper": "ResNet-56 from CIFAR-100 for ResNet-50 from ImageNet, STL-10 for Stanford Cars and Food-101.",
    "imagenet": OWN_SOURCE,
}
STUDIES = {
    "4.4": Study(
        title="eigenvalues of the Hessian at equal training loss",
        question="Are the largest eigenvalues of a fine-tuned network smaller than those of one from scratch, at equal "
        "training loss?",
        reference=f"{REFERENCE} Sec. 3, Fig. 3(a)",
        arms=ARMS,
        measures=(
            *_of_levels("largest", "largest eigenvalue", "lower", drawn=True),
            *_of_levels("sum", "sum of the largest eigenvalues", "lower"),
            *_of_levels("loss", "training loss"),
            *_of_levels("steps", "steps", "lower"),
            Measure(name="accuracy", title="test accuracy at the end", drawn=False),
        ),
        sizes={"cpu": SMALL, "paper": LARGE, "imagenet": PHOTOS},
        scale=SCALE,
        paper=(),
        run=spectra,
        draw=draw_spectra,
        data=("mnist", "usps"),
    ),
    "4.5": Study(
        title="landscapes of the loss",
        question="Is the loss around the start smoother for a pretrained network, most of all in low layers, and "
        "flatter around its end?",
        reference=f"{REFERENCE} Sec. 3 and 4, Fig. 3, 5, 10, 12 and 13",
        arms=ARMS,
        measures=(
            Measure(name="deviation-start", title="deviation of the loss around the start", better="lower"),
            Measure(name="deviation-low", title="the same, the first layer alone moves", better="lower"),
            Measure(
                name="deviation-high", title="the same, the last convolution alone moves", better="lower"
            ),
            Measure(
                name="deviation-end", title=f"deviation around the end, at loss {LEVELS[-1]}", better="lower"
            ),
            *_of_levels("loss", "training loss"),
            *_of_levels("steps", "steps", "lower"),
        ),
        sizes={"cpu": SMALL, "paper": LARGE, "imagenet": PHOTOS},
        scale=SCALE,
        paper=(),
        run=grids,
        draw=draw_grids,
        data=("mnist", "usps"),
    ),
}


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer studies 4.4 and 4.5."""
    for number, study in STUDIES.items():
        register(number, lambda study=study: study)
