"""Stability of gradients: do pretrained weights keep the gradient, and the loss along it, in bounds?

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 4, Fig. 6, 7 and 11: ResNet-50
    on CUB-200 and Stanford Cars; pretrained networks vary less along the gradient in the early steps, their gradient
    does not grow towards lower layers, and their weights have a small share along its leading directions. Curves
    only.
Here: 4.7 ``loss_variation`` along the first steps; 4.8 ``gradient_scale`` and ``gradient_projection`` at the start
    and after these steps, on a deeper network. At the start statistics of batch normalization have settled.
Control: ``random-weights``, Gaussian filters of the pretrained norms.

    compatkit study run 4.7 --seeds 3 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import mean
from typing import Any

import attrs
import numpy as np

import compatkit as ck
from compatkit.evaluation.metrics import make_metric
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import COLORS, png

from ._curves import panels
from ._fine_tuning import IMAGENET, OWN_SOURCE, PAPER, REFERENCE, RESIDUAL, TASK, tune
from .curvature_of_starts import ARMS, begin

WATCHED: dict[str, Any] = {
    "target": "usps",
    "settle": 40,
    "steps": 50,
    "every": 5,
    "examples": 128,
    "points": 10,
}
SMALL: dict[str, Any] = {**RESIDUAL, **WATCHED}
LARGE: dict[str, Any] = {
    **PAPER,
    **WATCHED,
    "target": "stl10",
    "settle": 200,
    "steps": 1000,
    "every": 20,
    "points": 100,
}
PHOTOS: dict[str, Any] = {**LARGE, **IMAGENET, "target": "cub/"}
PROTOCOLS = {"gradient": "steps of the gradient", "fixed": "steps of one length"}


@attrs.define(eq=False)
class Every:
    """Calls a function with the network every few steps.

    Attributes:
        every: Steps between two calls.
        call: Function to call.
    """

    every: int
    call: Callable[[Any], None]

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Call it every few steps."""
        if (step.number + 1) % self.every == 0:
            self.call(step.task)


def followed(run: Run, every: int, call: Callable[[Any, ck.Split], None]) -> None:
    """Train from the start of the arm; call a function with the start, and with the network every few steps."""
    data, weights = begin(run)
    call(tune(run, run.settings, data, weights, steps=0, keep_class_layer=True).tasks[TASK], data.train)
    watch = {"every": lambda: Every(every, lambda network: call(network, data.train))}
    tune(run, run.settings, data, weights, ["every"], factories=watch, keep_class_layer=True)


def variations(run: Run) -> Outcome:
    """Measure how the loss varies along its gradient in the first steps."""
    settings = run.settings
    points = settings["points"]
    # Both rays have a fixed end: one gradient, and a length of .1.
    metric = make_metric(
        "loss_variation", points=points, rate=1 / points, length=0.1 / points, examples=settings["examples"]
    )
    lines: dict[str, list[float]] = {**{name: [] for name in PROTOCOLS}, "loss": []}

    def look(network: Any, data: ck.Split) -> None:
        table = ck.measure(network, data, [metric]).table("loss_variation")
        for name in PROTOCOLS:
            value = table.at(case="as given", protocol=name, quantity="range").value
            lines[name].append(float("nan") if value is None else value)
        lines["loss"].append(table.at(case="as given", protocol="fixed", quantity="loss").value or 0.0)

    followed(run, settings["every"], look)
    values: dict[str, float | None] = {}
    for name in PROTOCOLS:
        whole = all(np.isfinite(lines[name]))
        values[f"{name}-mean"] = mean(lines[name]) if whole else None
        values[f"{name}-start"] = lines[name][0] if np.isfinite(lines[name][0]) else None
    values["loss-mean"] = mean(lines["loss"])
    finite = {name: [value if np.isfinite(value) else None for value in line] for name, line in lines.items()}
    return Outcome(values=values, figure_data=finite)


def scales(run: Run) -> Outcome:
    """Measure the growth of the gradient and the share of weights along it, at the start and after the steps."""
    settings = run.settings
    metrics = [
        make_metric(name, examples=settings["examples"]) for name in ("gradient_scale", "gradient_projection")
    ]
    rows: list[dict[str, float]] = []
    lines: list[dict[str, list[float]]] = []

    def look(network: Any, data: ck.Split) -> None:
        measured = ck.measure(network, data, metrics)
        scale, projection = measured.table("gradient_scale"), measured.table("gradient_projection")
        layers = scale.axes["layer"]
        growth = measured.table("gradient_scale/growth").cells[0].value or 0.0
        # The class layer has as many outputs as classes, and is new in every arm.
        shares = [
            _relative(projection, layer, direction)
            for direction in ("1", "2", "3")
            for layer in projection.axes["layer"][:-1]
        ]
        rows.append({"growth": growth, "share": mean(shares)})
        sizes = [
            float(scale.at(case="as given", layer=layer, quantity="to last").value or 0.0) for layer in layers
        ]
        first = [_relative(projection, layer, "1") for layer in projection.axes["layer"][:-1]]
        lines.append({"scale": sizes, "share": first})

    followed(run, settings["steps"], look)
    values = {
        f"{name}-{when}": rows[at][name] for at, when in ((0, "start"), (-1, "end")) for name in rows[0]
    }
    return Outcome(values=values, figure_data={"start": lines[0], "end": lines[-1]})


def _relative(table: Any, layer: str, direction: str) -> float:
    """Return the share of a weight along a direction of the gradient, over that of a weight without preference."""
    along, even = (
        table.at(
            case="as given", layer=layer, quantity=name, place="1" if name == "isotropic" else direction
        ).value
        for name in ("output", "isotropic")
    )
    return float(along or 0.0) / float(even)


def draw_variations(results: Results) -> Mapping[str, bytes]:
    """Draw variation along the first steps."""
    every, count = results.settings["every"], len(results.figure_data(results.arms[0])[0]["loss"])
    drawn: dict[str, Any] = {
        words: {arm: [entry[name] for entry in results.figure_data(arm)] for arm in results.arms}
        for name, words in PROTOCOLS.items()
    }
    steps, logs = [at * every for at in range(count)], [PROTOCOLS["gradient"]]
    return {"variation": panels(drawn, steps, "step", height="range of the loss", logs=logs)}


WHEN = {"at the start": "start", "after the steps": "end"}


def draw_scales(results: Results) -> Mapping[str, bytes]:
    """Draw scale and share by layer, at the start and after the steps; a line a run."""
    from matplotlib.figure import Figure

    titles = {"scale": "gradient, over that of the last layer", "share": "share along it, over an even one"}
    figure = Figure(figsize=(13.0, 3.6), dpi=130, layout="constrained")
    for index, (when, name) in enumerate((when, name) for name in titles for when in WHEN):
        axes = figure.add_subplot(1, 4, index + 1)
        for number, arm in enumerate(results.arms):
            for at, run in enumerate(results.figure_data(arm)):
                line = run[WHEN[when]][name]
                label = arm if at == 0 else None
                axes.plot(range(1, len(line) + 1), line, color=COLORS[number], alpha=0.7, label=label)
        if name == "scale":
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_title(f"{titles[name]}, {when}", fontsize=8)
        axes.set_xlabel("layer, from the image on")
        if index == 0:
            figure.legend(
                *axes.get_legend_handles_labels(),
                fontsize=8,
                frameon=False,
                loc="outside upper left",
                ncols=4,
            )
    return {"layers": png(figure)}


SCALE = {
    "cpu": "{} from 4,000 images of MNIST, 300 images of USPS at 16x16, the first 50 steps of 32.",
    "paper": "ResNet-56 from CIFAR-100 for ResNet-50 from ImageNet, STL-10 for CUB-200 and Stanford Cars.",
    "imagenet": OWN_SOURCE,
}
STUDIES = {
    "4.7": Study(
        title="variation of the loss along its gradient",
        question="Does the loss of a pretrained network change less along its gradient in the first steps?",
        reference=f"{REFERENCE} Sec. 4, Fig. 6 and 11",
        arms=ARMS,
        measures=(
            *(
                Measure(
                    name=f"{name}-{when}", title=f"range of the loss over {words}, {shown}", better="lower"
                )
                for name, words in PROTOCOLS.items()
                for when, shown in (("start", "at the start"), ("mean", "mean of the first steps"))
            ),
            Measure(
                name="loss-mean", title="training loss, mean of the first steps", better="lower", drawn=False
            ),
        ),
        sizes={"cpu": SMALL, "paper": LARGE, "imagenet": PHOTOS},
        scale={**SCALE, "cpu": SCALE["cpu"].format("ResNet-8")},
        paper=(),
        run=variations,
        draw=draw_variations,
        data=("mnist", "usps"),
    ),
    "4.8": Study(
        title="scale of the gradient through layers",
        question="Does the gradient of a pretrained network stay level towards lower layers, and do its weights have a "
        "small share along the leading directions of the gradient?",
        reference=f"{REFERENCE} Sec. 4, Fig. 7",
        arms=ARMS,
        measures=tuple(
            Measure(name=f"{name}-{when}", title=f"{words}, {shown}", better="lower")
            for name, words in (
                ("growth", "growth of the gradient with a layer down"),
                ("share", "share of weights along the three leading directions, over an even one"),
            )
            for when, shown in (("start", "at the start"), ("end", "after the steps"))
        ),
        sizes={"cpu": {**SMALL, "model": "resnet20_cifar"}, "paper": LARGE, "imagenet": PHOTOS},
        scale={**SCALE, "cpu": SCALE["cpu"].format("ResNet-20")},
        paper=(),
        run=scales,
        draw=draw_scales,
        data=("mnist", "usps"),
    ),
}


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer studies 4.7 and 4.8."""
    for number, study in STUDIES.items():
        register(number, lambda study=study: study)
