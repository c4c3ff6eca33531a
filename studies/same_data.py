"""The same data for both networks: can parts become perfectly compatible if the tasks are equal?

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", App. C.3, Fig. 7 (CIFAR-10 twice, ResNet-56, 3 runs).
Here: MNIST twice, or CIFAR-10 twice, the same images for both networks, at a size for two CPU cores; two halves of
    CIFAR-10 without a shift; or the paper's.

Halves are harder: the networks have no image in common.

    compatkit study run 3.6 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._pairs import (
    BOUND,
    COMBINATIONS,
    MEASURES,
    REFERENCE,
    SIZES,
    SMALLER,
    measure,
    ordered,
    reported,
    task_of,
    train_separately,
    trainer_of,
    uses_of,
    values_of,
)
from ._rows import rows

NAMES = ("first", "second")
SEVERAL = tuple(arm for arm in COMBINATIONS if "+" in arm)


def tasks_of(run: Run) -> list[ck.Task]:
    """Return two tasks on the same images, or on two halves of them."""
    pair = run.settings["pair"]
    first, other = run.load("cifar10").halves() if pair == "cifar10-halves" else [run.load(pair)] * 2
    sets = first, ordered(other, run.settings["classes"])
    return [task_of(run, name, data) for name, data in zip(NAMES, sets, strict=True)]


def run(run: Run) -> Outcome:
    """Train both networks of an arm, exchange their heads, measure the loss against the networks as trained."""
    tasks, trainer = tasks_of(run), trainer_of(run)
    fits = train_separately(run, tasks) if run.arm == BOUND else [trainer.fit(tasks, uses_of(run, run.arm))]
    cells = measure(run, fits, tasks)
    values = values_of(cells)
    return Outcome(
        values={**values, "gap": values["own"] - values["recombined"]}, figure_data={"cells": cells}
    )


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw recombined beside own-task accuracy, one row per arm, with the bound of separately trained networks."""
    called = {"own": "own task, as trained", "recombined": "recombined"}
    ways = {text: {arm: results.known(arm, name) for arm in results.arms} for name, text in called.items()}
    bound = results.known(BOUND, "own") if BOUND in results.arms else []
    across = {"upper bound": mean(bound)} if bound else {}
    return {"same": rows(ways, "accuracy on test images", across=across)}


_WHERE = "App. C.3, Fig. 7"
STUDY = Study(
    title="the same data for both networks",
    question="With one and the same task for both networks, do recombined parts reach the networks as trained? The "
    "upper bound is the own-task accuracy of networks trained apart, each with a rotation head of its own.",
    reference=f"{REFERENCE}, {_WHERE}",
    arms=(*COMBINATIONS, BOUND),
    measures=(
        *MEASURES[:2],
        Measure(name="gap", title="own task less recombined", better="lower"),
        *MEASURES[2:],
    ),
    sizes={
        "cpu": {**SIZES["cpu"], "pair": "mnist"},
        "cifar10": {**SIZES["halves"], "pair": "cifar10"},
        "halves": {**SIZES["halves"], "pair": "cifar10-halves"},
        "paper": {**SIZES["paper"], "pair": "cifar10"},
    },
    scale={
        "cpu": f"5,000 images of MNIST at 16x16, the same for both networks, in place of CIFAR-10, {SMALLER}.",
        "cifar10": f"8,000 images of CIFAR-10, the same for both networks, in place of 50,000, {SMALLER}.",
        "halves": "two halves of CIFAR-10 without a shift in place of the same images for both, which is harder, 8,000 "
        f"images each, {SMALLER}.",
        "paper": "",
    },
    paper=tuple(reported(arm, 1.1, f"{_WHERE}: at most", "gap") for arm in SEVERAL),
    run=run,
    extends="none",
    draw=draw,
    data=("mnist", "cifar10"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.6."""
    register("3.6", lambda: STUDY)
