"""Width: does a wider dense layer take the harm out of pretraining on random labels?

Paper: Maennel et al. 2020, Sec. 3, Fig. 8, A.12: SimpleCNN with two convolutions of 16 filters and a dense layer of
    64, 128 or 1,024 units; initial scale 1.218, two random classes, real labels downstream. Curves only.
Control: the permuted network, as in study 1.1.

    compatkit study run 1.8 --seeds 3 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import compatkit as ck
from compatkit.experiments.studies import Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._curves import along_arms
from ._random_labels import DATA, PAPER, REFERENCE, SIMPLE, STARTS, compare, measures, scale

ARMS = ("narrow", "middle", "wide")
KINDS = ("real",)
"""Labels downstream; the paper does not say which its figure has."""
SETTING: dict[str, Any] = {"init_scale": 1.218, "lr": 0.012, "classes_up": 2}


def run(run: Run) -> Outcome:
    """Compare the three starts at one width."""
    kwargs = {**run.settings["kwargs"], "units": run.settings["units"][run.arm]}
    values, _ = compare(run, {**run.settings, "kwargs": kwargs}, KINDS)
    return Outcome(values=values)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw learning speed by width."""
    ticks = {arm: f"{results.settings['units'][arm]:,}" for arm in ARMS}
    return {
        labels: along_arms(
            results,
            ARMS,
            {f"{labels}-{start}": start for start in STARTS},
            f"units of the dense layer, {labels} labels",
            ticks=ticks,
            height="learning speed",
        )
        for labels in KINDS
    }


_SMALL = {**SIMPLE, **SETTING, "units": {"narrow": 32, "middle": 128, "wide": 512}}
STUDY = Study(
    title="width and pretraining on random labels",
    question="Where pretraining on random labels harms, does it harm less in a wider network?",
    reference=f"{REFERENCE} Sec. 3, Fig. 8",
    arms=ARMS,
    measures=measures(KINDS),
    sizes={
        "cpu": _SMALL,
        "paper": {
            **PAPER,
            **SETTING,
            "up": 10_000,
            "epochs_up": 100,
            "units": {"narrow": 64, "middle": 128, "wide": 1024},
        },
    },
    scale={
        "cpu": scale(_SMALL, "32, 128 and 512 units in place of 64, 128 and 1,024"),
        "paper": "images downstream and epochs there are those of Fig. 1; the paper does not say them.",
    },
    paper=(),
    run=run,
    draw=draw,
    data=(DATA,),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 1.8."""
    register("1.8", lambda: STUDY)
