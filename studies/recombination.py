"""Recombination accuracy by method: which regularizers make parts of two networks fit?

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", Fig. 2 and Sec. 4 (CIFAR-10 and STL-10, ResNet-56, 10 runs).
Here: MNIST and USPS, or two halves of CIFAR-10, at a size for two CPU cores; or the paper's pair.

The paper's upper bound (85.6 %) is not a recombination: it is the own-task accuracy of networks trained separately,
each with its own rotation head. It is ``own`` of the arm ``upper-bound``. ``recombined`` of that arm is the accuracy of
these networks with exchanged heads, as for any arm: they are independent.

    compatkit study run 3.1 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Sequence

import compatkit as ck
from compatkit.experiments.studies import Outcome, Run, Study
from compatkit.hooks import Register

from ._pairs import (
    BOUND,
    COMBINATIONS,
    DATA,
    MEASURES,
    REFERENCE,
    SCALE,
    SIZES,
    incremental,
    outcome,
    reported,
    tasks_of,
    train_separately,
    trainer_of,
    uses_of,
)

INCREMENTAL = ("incremental", "incremental-back", "incremental-batch")
"""One task after the other against frozen heads, with all three methods: first then second, second then first, and as
in the paper, where frozen heads use batch statistics; the paper averages both orders (as study 3.3 does)."""


def train(run: Run, tasks: Sequence[ck.Task]) -> list[ck.Fit]:
    """Train the arm: both tasks jointly, one after the other against frozen heads, or separately.

    Args:
        run: Settings, arm and seed.
        tasks: The two tasks.
    """
    arm, trainer = run.arm, trainer_of(run)
    if arm == BOUND:
        return train_separately(run, tasks)
    if arm in INCREMENTAL:
        order = tasks[::-1] if arm == "incremental-back" else tasks
        statistics = "batch" if arm == "incremental-batch" else "stored"
        return incremental(order, uses_of(run, "iiw+rp+dcc"), trainer, statistics)
    return [trainer.fit(tasks, uses_of(run, arm))]


def run(run: Run) -> Outcome:
    """Train both networks of an arm, exchange their heads, measure."""
    tasks = tasks_of(run)
    return outcome(run, train(run, tasks), tasks)


_FIGURE = "Fig. 2, Sec. 4"
STUDY = Study(
    title="recombination accuracy by method",
    question="Parts of independent networks do not fit although every shape matches; which regularizers make them "
    "fit, and do networks as trained suffer from it? The upper bound is the own-task accuracy of networks trained "
    "apart, each with a rotation head of its own; recombined, they are independent networks like those without a "
    "method.",
    reference=f"{REFERENCE}, {_FIGURE}",
    arms=(*COMBINATIONS, *INCREMENTAL, BOUND),
    measures=MEASURES,
    sizes=SIZES,
    scale=SCALE,
    paper=(
        reported("none", 10.6, _FIGURE),
        reported("iiw", 25.1, _FIGURE),
        reported("rp", 50.1, _FIGURE),
        reported("dcc", 65.8, _FIGURE),
        reported("iiw+rp+dcc", 76.7, _FIGURE),
        reported("iiw+rp+dcc", 86.3, _FIGURE, "own"),
        reported("incremental-batch", 72.7, "Sec. 4, mean of both orders; here one order"),
        reported(BOUND, 85.6, "Sec. 4, networks as trained, each with a rotation head of its own", "own"),
    ),
    run=run,
    extends="none",
    data=DATA,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.1."""
    register("3.1", lambda: STUDY)
