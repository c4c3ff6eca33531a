"""Compatibility by self-supervised tasks: rotations, puzzles, colors, contrasts, alone and with equal initial weights.

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible Representations",
    App. A: any self-supervised task could replace rotation prediction; no other was tried there.

    compatkit study run 3.12 --data DIR --out OUT
"""

from __future__ import annotations

import compatkit as ck
from compatkit.experiments.studies import Outcome, Run, Study
from compatkit.hooks import Register

from ._pairs import DATA, MEASURES, REFERENCE, SCALE, SIZES, outcome, reported, tasks_of, trainer_of, uses_of

TASKS = ("rp", "jigsaw", "contrastive", "colourisation")
ARMS = ("none", *TASKS, "iiw", *(f"iiw+{task}" for task in TASKS))


def regularizers(run: Run) -> list[str | ck.RegularizerConfig]:
    """Return the plugins of the arm, with defaults except for the settings; contrastive views do not mirror digits."""
    uses = {
        "jigsaw": ck.use("jigsaw", grid=run.settings["grid"]),
        "contrastive": ck.use("contrastive", flip=run.settings["pair"] != "digits"),
        "colourisation": ck.use("colorization"),
    }
    return [*uses_of(run, run.arm), *(uses[method] for method in run.arm.split("+") if method in uses)]


def run(run: Run) -> Outcome:
    """Train both networks of an arm, exchange their heads, measure."""
    settings = run.settings
    if settings["pair"] == "digits" and "colourisation" in run.arm:
        return Outcome(values={}, notes=("Digits are gray: colorization has nothing to tell of them.",))
    tasks = tasks_of(run)
    return outcome(run, [trainer_of(run).fit(tasks, regularizers(run))], tasks)


STUDY = Study(
    title="recombination accuracy by self-supervised task",
    question="Which task without labels makes parts fit, where both networks train one head for it, and do the tasks "
    "that the networks are for suffer?",
    reference=f"{REFERENCE}, App. A",
    arms=ARMS,
    measures=MEASURES,
    sizes={size: {**settings, "grid": 3} for size, settings in SIZES.items()},
    scale=SCALE,
    paper=tuple(
        reported(arm, value, "Fig. 2, Sec. 4") for arm, value in (("none", 10.6), ("iiw", 25.1), ("rp", 50.1))
    ),
    run=run,
    extends="none",
    data=DATA,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.12."""
    register("3.12", lambda: STUDY)
