"""Random labels, then real ones: does a network that memorized random labels learn other images faster, or more slowly?

Paper: Maennel et al. 2020, Sec. 1.1, Fig. 1, A.5: VGG16 on 20,000 CIFAR-10 images with random labels, then on 25,000
    others; two settings that differ in initial scale and number of random classes, one helps and one harms. Curves
    only.
Here: learning speed is the area under the curve of accuracy on all training images. Control: the pretrained network
    with the numbers of each weight tensor in a random order, which has the same norms and must not gain.

    compatkit study run 1.1 --seeds 5 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import compatkit as ck
from compatkit.experiments.studies import Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._curves import panels
from ._random_labels import DATA, PAPER, REFERENCE, SIMPLE, STARTS, VGG, compare, measures, scale

SETTINGS: dict[str, dict[str, Any]] = {
    "positive": {"init_scale": 0.526, "lr": 0.01, "classes_up": 5},
    "negative": {"init_scale": 0.612, "lr": 0.009, "classes_up": 50},
}
"""Settings of the paper's experiments 1 and 2, and 3 and 4."""
AUTHORS = {
    "positive": {**SETTINGS["positive"], "epochs_up": 120},
    "negative": {**SETTINGS["negative"], "epochs_up": 80},
}
"""The same with the paper's epochs upstream."""


def run(run: Run) -> Outcome:
    """Pretrain in one setting, then train from three starts on real and on random labels."""
    values, curves = compare(run, {**run.settings, **run.settings[run.arm]})
    return Outcome(values=values, figure_data={"curves": curves})


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw the curves downstream, one panel per setting and labels."""
    drawn: dict[str, dict[str, Any]] = {}
    for arm in results.arms:
        for labels in ("real", "random"):
            curves = [run["curves"] for run in results.figure_data(arm) if "curves" in run]
            drawn[f"{arm} setting, {labels} labels"] = {
                start: [curve[f"{labels}-{start}"] for curve in curves] for start in STARTS
            }
    points = min(len(row) for lines in drawn.values() for rows in lines.values() for row in rows)
    shown = {name: {k: [row[:points] for row in v] for k, v in arms.items()} for name, arms in drawn.items()}
    return {"curves": panels(shown, list(range(1, points + 1)), "evaluations downstream")}


_PAPER = {**PAPER, **VGG}
STUDY = Study(
    title="random labels, then real ones",
    question="Does pretraining on random labels make a network learn other images faster in one setting, and more "
    "slowly in another, once the norms of its layers are those of its initialization?",
    reference=f"{REFERENCE} Sec. 1.1, Fig. 1",
    arms=tuple(SETTINGS),
    measures=measures(),
    sizes={
        "cpu": {**SIMPLE, **SETTINGS},
        "paper": {
            **_PAPER,
            **AUTHORS,
        },
    },
    scale={
        "cpu": scale(
            SIMPLE, "initial scales, rates and numbers of classes are the paper's, which trains VGG16"
        ),
        "paper": "",
    },
    paper=(),
    run=run,
    draw=draw,
    data=(DATA,),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 1.1."""
    register("1.1", lambda: STUDY)
