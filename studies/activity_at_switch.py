"""Activity at the switch: do fewer inputs activate the units of later layers after pretraining on random labels?

Paper: Maennel et al. 2020, App. F, Fig. 24: one convolution, or three, of 256 filters and a dense layer of 64 units;
    the share of active units falls abruptly and for good at the switch to the downstream task. Fig. 7: so it does in
    the setting in which pretraining harms, not in the one in which it helps. Curves only.
Here: the settings of study 1.1; shares are of 5,000 held-out images, 1,000 at ``cpu``, by ``specialization``.
    Control: the arm ``unswitched`` trains on with the negative setting's own images, labels and class layer; nothing
    may drop.

    compatkit study run 1.10 --seeds 5 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._curves import panels
from ._random_labels import (
    DATA,
    PAPER,
    REFERENCE,
    SIMPLE,
    Upstream,
    pretrain,
    scale,
    subsets,
    task,
    trainer,
)
from ._random_labels import finetune as downstream
from .random_label_transfer import AUTHORS, SETTINGS

ARMS = ("positive", "negative", "unswitched")


@attrs.define(eq=False)
class Watch:
    """Measures the share of active units of layers in the first step, and every few steps.

    Attributes:
        images: Held out.
        every: Steps between measurements.
        rows: Pairs of step and share by layer.
    """

    images: ck.Split
    every: int
    rows: list[tuple[int, dict[str, float]]]

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Measure after the first step and every few."""
        if step.number and (step.number + 1) % self.every:
            return
        layers = ["blocks.*.act", "head.act"]
        measured = ck.measure(step.task, self.images, ["specialization"], layers=layers, batch_size=500)
        table = measured.table("specialization")
        shares = {name: table.at(layer=name, quantity="mean").value or 0.0 for name in table.axes["layer"]}
        self.rows.append((step.number + 1, shares))


def run(run: Run) -> Outcome:
    """Pretrain, switch, train on; measure activity along both stages."""
    setting = "negative" if run.arm == "unswitched" else run.arm
    settings = {**run.settings, **run.settings[setting]}
    up, down = subsets(run, settings)
    stages: list[list[tuple[int, dict[str, float]]]] = [[], []]

    def watching(stage: int, images: int, epochs: float) -> Mapping[str, Any]:
        steps = round(epochs * images / settings["batch_size"])
        every = max(1, steps // settings["points"])
        return {"watch": lambda: Watch(up.test, every, stages[stage])}

    factories = watching(0, settings["up"], settings["epochs_up"])
    before = pretrain(run, settings, up, "watch", factories=factories)
    factories = watching(1, settings["down"], settings["epochs_down"])
    if run.arm == "unswitched":
        _train_on(run, settings, up, before, factories)
    else:
        downstream(run, settings, down, "random", before, "watch", factories=factories)
    values: dict[str, float | None] = {"upstream": before.accuracy}
    layers = list(stages[0][0][1])
    for name, layer in (("first", layers[0]), ("dense", layers[-1])):
        start, last = stages[0][0][1][layer], stages[0][-1][1][layer]
        after = [shares[layer] for _, shares in stages[1]]
        values |= {f"{name}-initial": start, f"{name}-before": last, f"{name}-after": after[-1]}
        values[f"{name}-fall"] = start - last
        values[f"{name}-drop"] = last - after[-1]
    activity = {layer: [[shares[layer] for _, shares in stage] for stage in stages] for layer in layers}
    return Outcome(values=values, figure_data={"activity": activity})


def _train_on(
    run: Run, settings: Mapping[str, Any], up: ck.DataSet, before: Upstream, factories: Mapping[str, Any]
) -> None:
    """Train on with the same images, labels and class layer, at the rate of a new stage."""
    start = task(settings, up, weights=before.weights, keep_class_layer=True)
    labels = ck.use("random_labels", classes=settings["classes_up"], seed=run.seed)
    plan = trainer(run, settings, settings["up"], settings["epochs_down"])
    plan.fit([start], [labels, "watch"], factories=factories)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw the activity of each layer along both stages; the switch is in the middle."""
    drawn: dict[str, dict[str, Any]] = {}
    for arm in results.arms:
        for run in results.figure_data(arm):
            for layer, (left, right) in run.get("activity", {}).items():
                drawn.setdefault(layer, {}).setdefault(arm, []).append([*left, *right])
    points = min(len(row) for lines in drawn.values() for rows in lines.values() for row in rows)
    shown = {name: {k: [row[:points] for row in v] for k, v in arms.items()} for name, arms in drawn.items()}
    return {"activity": panels(shown, list(range(points)), "measurements, the switch in the middle")}


_LAYER = {"first": "first convolution", "dense": "dense layer"}
_SMALL = {**SIMPLE, **SETTINGS, "kwargs": {"convolutions": 1, "filters": 32, "units": 64}}
STUDY = Study(
    title="activity at the switch",
    question="Where pretraining on random labels harms, does the share of active units fall in the later layers, and "
    "does it drop at the switch to other images?",
    reference=f"{REFERENCE} App. F, Fig. 24, and Sec. 3, Fig. 7",
    arms=ARMS,
    measures=(
        Measure(name="upstream", title="accuracy on the random labels upstream", better="none", drawn=False),
        *(
            Measure(
                name=f"{name}-{when}",
                title=f"active share of the {words}, {title}",
                better="none",
                drawn=drawn,
            )
            for name, words in _LAYER.items()
            for when, title, drawn in (
                ("initial", "after one step", False),
                ("before", "before the switch", True),
                ("after", "at the end", True),
                ("fall", "its fall upstream", True),
                ("drop", "its drop after the switch", True),
            )
        ),
    ),
    sizes={
        "cpu": _SMALL,
        "paper": {
            **PAPER,
            **AUTHORS,
            "kwargs": {"convolutions": 1, "filters": 256, "units": 64},
            "test": 5000,
        },
    },
    scale={
        "cpu": scale(_SMALL, "32 filters in place of 256, 1,000 held-out images in place of 5,000"),
        "paper": "scales, rates and classes are those of Fig. 1; the paper does not say those of Fig. 24.",
    },
    paper=(),
    run=run,
    draw=draw,
    data=(DATA,),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 1.10."""
    register("1.10", lambda: STUDY)
