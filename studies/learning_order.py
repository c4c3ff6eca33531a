"""Order of learning: is the encoder of a VAE learned before its decoder?

Paper: Bonheme and Grzes 2023, Sec. 4.1, Fig. 2 and 17 to 19: layers at an early epoch beside those at the end, for
    beta-TC-VAE (Cars3D, 25 of 1,090 epochs), DIP-VAE II (dSprites, 2 of 26), annealed VAE (SmallNORB, 10 of 410). Heat
    maps only.
Here: all three on sprites; unbiased CKA of each layer with itself at the end of the same run, at a tenth and at a third
    of the steps.
Control: the network before its first step (``initial-...``): a layer that is alike before any training has learned
    nothing.

    compatkit study run 2.2 --seeds 3 --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._curves import along_measures
from ._heat import heat_maps
from ._vaes import PAPER, REFERENCE, SMALL, TASK, objective, rows, samples_of, scale, similar, train

ARMS = ("beta-tc-2", "dip-5", "annealed-5")
MOMENTS = {"initial": 0.0, "early": 0.1, "middle": 0.33}
"""Shares of the steps."""


class Snapshots:
    """Keeps the weights after some steps; 0 is before the first."""

    def __init__(self, steps: Mapping[str, int]) -> None:
        self.steps = steps
        self.kept: dict[str, dict[str, Tensor]] = {}

    @ck.hookimpl
    def compatkit_pretrain(self, setup: ck.SetUp) -> Mapping[str, Any]:
        """Keep the initial weights."""
        self._keep(0, setup.tasks[TASK])
        return {}

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Keep the weights if it is time."""
        self._keep(step.number + 1, step.task)

    def _keep(self, done: int, state: ck.TaskState) -> None:
        for name, at in self.steps.items():
            if at == done:
                parts = (state.extractor, state.head)
                self.kept[name] = {
                    k: v.detach().clone() for part in parts for k, v in part.state_dict().items()
                }


def run(run: Run) -> Outcome:
    """Train once, and compare each moment with the end."""
    steps, name = run.settings["steps"], run.settings["data"][run.arm]
    watch = Snapshots({moment: round(share * steps) for moment, share in MOMENTS.items()})
    use = objective(run, run.arm)
    fit = train(run, name, use, ck.use("snapshots"), factories={"snapshots": lambda: watch})
    images = samples_of(run, name)
    last = rows(fit, images)
    values: dict[str, float | None] = {}
    record: dict[str, Any] = {"layers": list(last)}
    for moment, weights in watch.kept.items():
        before = rows(train(run, name, use, weights=weights, steps=0, networks=""), images)
        matrix, summary = similar(before, last, "cka")
        values |= {f"{side}-{moment}": summary[side] for side in ("encoder", "decoder")}
        values[f"mean-{moment}"] = summary.get("mean")
        if moment == "early":
            record["matrix"] = matrix
    values["gap-early"] = (values["encoder-early"] or 0) - (values["decoder-early"] or 0)
    return Outcome(values=values, figure_data=record)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw similarity with the end by moment, and the maps of the early moment."""
    moments = list(MOMENTS)
    drawn = {
        side: along_measures(
            results,
            [f"{side}-{moment}" for moment in moments],
            moments,
            f"{side} at the moment",
            "CKA with the end",
        )
        for side in ("encoder", "decoder")
    }
    return {**drawn, "early": heat_maps(results)}


STUDY = Study(
    title="encoder before decoder",
    question="Are layers of the encoder like those at the end of training earlier than layers of the decoder?",
    reference=f"{REFERENCE} Sec. 4.1, Fig. 2",
    arms=ARMS,
    measures=(
        *(
            Measure(name=f"{side}-{moment}", title=f"{side}, {moment} beside the end", better="none")
            for side in ("encoder", "decoder", "mean")
            for moment in MOMENTS
        ),
        Measure(name="gap-early", title="encoder less decoder, early", better="none"),
    ),
    sizes={
        "cpu": {**SMALL, "data": dict.fromkeys(ARMS, "sprites")},
        "paper": {**PAPER, "data": dict(zip(ARMS, ("cars3d", "dsprites", "smallnorb"), strict=True))},
    },
    scale={"cpu": scale(SMALL, "sprites for all (Cars3D, dSprites, SmallNORB)"), "paper": ""},
    paper=(),  # colors without numbers
    run=run,
    closed="an arm is the objective of the whole network",
    draw=draw,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 2.2."""
    register("2.2", lambda: STUDY)
