"""Joint against incremental training: does a network trained later fit an existing one?

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", Sec. 3.4 and 4 (IIW+RP+DCC, CIFAR-10 and STL-10, ResNet-56; the mean of both orders).
Here: MNIST and USPS, or two halves of CIFAR-10, at a size for two CPU cores; or the paper's pair.

Incremental runs train both orders from scratch: two networks more per run than joint ones.

    compatkit study run 3.3 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._pairs import (
    DATA,
    MEASURES,
    REFERENCE,
    SCALE,
    SIZES,
    Statistics,
    incremental,
    measure,
    outcome,
    reported,
    tasks_of,
    trainer_of,
    uses_of,
    values_of,
)
from ._rows import rows

METHODS = "iiw+rp+dcc"
INCREMENTAL: Mapping[str, Statistics] = {"incremental-stored": "stored", "incremental-batch": "batch"}
"""Batch-norm statistics inside the frozen heads; the paper uses those of the batch."""
ORDERS = {"first-second": "first then second", "second-first": "second then first"}
"""Training orders of the pair's two tasks."""
ARMS = ("joint", *INCREMENTAL, "iiw")


def run(run: Run) -> Outcome:
    """Train the arm, an incremental one in both orders; its measures are means over both."""
    tasks, trainer = tasks_of(run), trainer_of(run)
    if run.arm not in INCREMENTAL:
        methods = METHODS if run.arm == "joint" else run.arm
        return outcome(run, [trainer.fit(tasks, uses_of(run, methods))], tasks)
    cells = {
        name: measure(run, incremental(order, uses_of(run, METHODS), trainer, INCREMENTAL[run.arm]), tasks)
        for name, order in zip(ORDERS, (tasks, tasks[::-1]), strict=True)
    }
    values = {name: values_of(table) for name, table in cells.items()}
    both = {name: mean(figures[name] for figures in values.values()) for name in values["first-second"]}
    each = {name: figures["recombined"] for name, figures in values.items()}
    return Outcome(values={**both, **each}, figure_data={"cells": cells})


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw own task, both orders and their mean, one row per arm."""
    called = {"own": "own task", "recombined": "recombined, mean of orders", **ORDERS}
    ways = {text: {arm: results.known(arm, name) for arm in results.arms} for name, text in called.items()}
    return {"orders": rows(ways, "accuracy on test images")}


_WHERE = "Sec. 4"
STUDY = Study(
    title="joint against incremental training",
    question="A network that is trained later, against frozen auxiliary heads of one that is there: does it fit as "
    "well as two that were trained together, whichever comes first? Figures of incremental arms are means of both "
    "orders unless they name one.",
    reference=f"{REFERENCE}, Sec. 3.4 and 4",
    arms=ARMS,
    measures=(
        *MEASURES[:2],
        *(Measure(name=name, title=f"recombined, {text}", drawn=False) for name, text in ORDERS.items()),
        *MEASURES[2:],
    ),
    sizes=SIZES,
    scale=SCALE,
    paper=(
        reported("joint", 76.7, f"Fig. 2, {_WHERE}"),
        reported("incremental-batch", 72.7, f"{_WHERE}, mean of both orders"),
        reported("iiw", 25.1, f"Fig. 2, {_WHERE}"),
    ),
    run=run,
    closed="an arm is the order of training",
    draw=draw,
    data=DATA,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.3."""
    register("3.3", lambda: STUDY)
