"""Twelve bits on a sphere: what each layer knows of the input and of the label.

Paper: "Reviving Autoencoder Pretraining", Sec. 3, Fig. 4 and 15, B.1: mutual-information planes of six dense layers after
    training on task A, and after going on without regularizer on A or on B (labels exchanged). Planes only, no numbers.

    compatkit study run 0.3 --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import compatkit as ck
from compatkit.errors import TrainingError
from compatkit.hooks import Register
from compatkit.metrics import Table
from compatkit.studies import Measure, Outcome, Results, Run, Study

from ._arms import REFERENCE, accuracy
from ._sphere import LAYERS, SETTINGS, first_stage, second_stage, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

A, B = "sphere-rule", "sphere-rule-swapped"
STAGES = {"a": "after A", "aa": "AA: A again without regularizer", "ab": "AB: B without regularizer"}
COLOURS = ("#8a8f98", "#E69F00", "#CC79A7", "#009E73", "#0072B2", "#56B4E9")
Plane = list[list[float]]
"""I(X;D) and I(D;Y) in bits, layer by layer."""


def plane(fit: ck.Fit, split: ck.Split) -> Plane:
    """Return the plane of the one network of a fit on all patterns.

    Raises:
        TrainingError: A layer's information cannot be told.
    """
    (state,) = fit.tasks.values()
    table = ck.measure(state, split, ["mutual_information_plane"], layers=LAYERS, batch_size=4096).results[
        "mutual_information_plane"
    ]
    found: Plane = []
    for layer in LAYERS:
        if not isinstance(table, Table):
            raise TrainingError("mutual_information_plane gave no table; install the plugin of this release.")
        cells = [table.at(layer=layer, quantity=one).value for one in ("I(X;T)", "I(T;Y)")]
        found.append([float(one) for one in cells if one is not None])
    return found


def run(run: Run) -> Outcome:
    """Train A, AA and AB, and measure the plane of each."""
    first = first_stage(run)
    fits = {"a": (first, A), "aa": (second_stage(run, first, A), A), "ab": (second_stage(run, first, B), B)}
    planes = {name: plane(fit, whole(run.load(task))) for name, (fit, task) in fits.items()}
    return Outcome(
        values={**_values(planes["a"]), "a": accuracy(first, run.load(A).test)}, kept={"planes": planes}
    )


def _values(plane: Plane) -> dict[str, float]:
    known = [label for _, label in plane]
    return {
        **{f"i-x-d{place}": given for place, (given, _) in enumerate(plane, 2)},
        **{f"i-d{place}-y": label for place, (_, label) in enumerate(plane, 2)},
        "input-2-4": sum(given for given, _ in plane[:3]) / 3,
        "label-range": max(known) - min(known),
    }


def draw(results: Results) -> dict[str, Figure]:
    """Draw the three planes: one line an arm through the means of its layers, every seed a faint dot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.9), layout="constrained")
    for number, (stage, title) in enumerate(STAGES.items(), 1):
        axes = figure.add_subplot(1, 3, number)
        for arm, colour in zip(results.arms, COLOURS, strict=False):
            planes = [held["planes"][stage] for held in results.kept(arm)]
            for one in planes:
                axes.plot(*zip(*one, strict=True), "o", color=colour, alpha=0.25, markersize=3)
            means = _means(planes)
            axes.plot(*zip(*means, strict=True), "-o", color=colour, markersize=5, linewidth=1.2, label=arm)
            axes.annotate(
                "D7", means[-1], textcoords="offset points", xytext=(4, -9), fontsize=7, color=colour
            )
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("I(X;D) in bits", fontsize=8)
        axes.set_xlim(-0.4, 12.4)
        axes.set_ylim(0, 1.05)
        axes.tick_params(labelsize=8)
        if number == 1:
            axes.set_ylabel("I(D;Y) in bits", fontsize=8)
            axes.legend(fontsize=7, loc="lower right")
    return {"planes": figure}


def _means(planes: list[Plane]) -> list[tuple[float, float]]:
    count = len(planes)
    return [
        (sum(one[layer][0] for one in planes) / count, sum(one[layer][1] for one in planes) / count)
        for layer in range(len(planes[0]))
    ]


def _measures() -> tuple[Measure, ...]:
    numbers = range(2, 2 + len(LAYERS))
    bits: Mapping[str, str] = {"unit": "bits"}
    return (
        Measure(name="input-2-4", title="I(X;D), mean of D2 to D4", better="none", **bits),
        Measure(name="label-range", title="I(D;Y), range over the layers", better="none", **bits),
        Measure(name="a", title="test accuracy on A"),
        *(Measure(name=f"i-x-d{n}", title=f"I(X;D{n})", better="none", drawn=False, **bits) for n in numbers),
        *(Measure(name=f"i-d{n}-y", title=f"I(D{n};Y)", better="none", drawn=False, **bits) for n in numbers),
    )


STUDY = Study(
    title="mutual-information planes",
    question="Does a reverse pass make all layers know about as much of the input and of the label, where plain training "
    "gives up the input layer by layer and layer-wise pretraining the label?",
    reference=f"{REFERENCE}, Sec. 3, Fig. 4 and 15, B.1",
    arms=("std", "ort", "pre", "rr", "rr-first", "rr-local"),
    measures=_measures(),
    sizes={name: {**settings, "rr": 1.0} for name, settings in SETTINGS.items()},
    scale={
        "cpu": "1,000 steps of Adam at .003 where the authors take 8,000 epochs at .0004; the paper shows planes without "
        "numbers, and does not say the weights of its losses.",
        "paper": "the paper shows planes without numbers, and does not say the weights of its losses.",
    },
    paper=(),
    run=run,
    draw=draw,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 0.3."""
    register("0.3", lambda: STUDY)
