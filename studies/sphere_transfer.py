"""Twelve bits on a sphere: accuracy after pretraining, on the same labels and on exchanged ones.

Paper: "Reviving Autoencoder Pretraining", Sec. 3, Fig. 5 and 15d, B.1: six dense layers learn task A with an arm's
    regularizer, then A or B (labels exchanged) without one, from all their weights, including the class layer.
    Bars only, no numbers.

``pre`` takes no step on the labels of A, as the paper's Pre_A; ``pre-supervised`` does, after its autoencoders.

    compatkit study run 0.4 --out OUT
"""

from __future__ import annotations

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Run, Study
from compatkit.hooks import Register

from ._arms import REFERENCE, accuracy
from ._sphere import SETTINGS, first_stage, second_stage

A, B = "sphere-rule", "sphere-rule-swapped"


def run(run: Run) -> Outcome:
    """Train A, then AA and AB; for plain training also B from random weights."""
    first = first_stage(run)
    tests = {task: run.load(task).test for task in (A, B)}
    values = {
        "a": accuracy(first, tests[A]),
        "aa": accuracy(second_stage(run, first, A), tests[A]),
        "ab": accuracy(second_stage(run, first, B), tests[B]),
        "ab-short": accuracy(second_stage(run, first, B, short=True), tests[B]),
    }
    if run.arm == "std" and not run.added:
        values["b"] = accuracy(second_stage(run, None, B), tests[B])
    return Outcome(values=values)


STUDY = Study(
    title="transfer of twelve bits",
    question="After pretraining with a reverse pass on task A, is a network better on A, and on B with exchanged "
    "labels, than after plain training, orthogonality or layer-wise pretraining?",
    reference=f"{REFERENCE}, Sec. 3, Fig. 5 and 15d, B.1",
    arms=("std", "ort", "pre", "pre-supervised", "rr", "rr-first", "rr-local", "rr-sampled"),
    measures=(
        Measure(name="a", title="accuracy on A after the first stage"),
        Measure(name="aa", title="AA: trained on A again"),
        Measure(name="ab", title="AB: trained on B then"),
        Measure(name="ab-short", title="AB after a short second stage"),
        Measure(name="b", title="B from random weights", drawn=False),
    ),
    sizes={name: {**settings, "rr": 0.1} for name, settings in SETTINGS.items()},
    scale={
        "cpu": "1,000 steps of Adam at .003 where the authors take 8,000 epochs at .0004; the paper shows bars "
        "without numbers, and does not say the weights of its losses.",
        "paper": "the paper shows bars without numbers, and does not say the weights of its losses.",
    },
    paper=(),
    run=run,
    extends="std",
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 0.4."""
    register("0.4", lambda: STUDY)
