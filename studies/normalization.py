"""Normalization at recombination: which statistics batch normalization uses, and networks that need none.

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible Representations",
    App. C.1, Fig. 5: IIW+DCC under running, batch and re-estimated statistics, with layer and instance normalization,
    with features of unit length by a layer or by a loss. The mixing prior is of Schneider et al. (2020), "Improving
    robustness against common corruptions by covariate shift adaptation".

    compatkit study run 3.4 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Reported, Results, Run, Study
from compatkit.hooks import Register

from ._pairs import (
    DATA,
    MEASURES,
    POLICIES,
    REFERENCE,
    SCALE,
    SIZES,
    chance_of,
    measure,
    tasks_of,
    trainer_of,
    uses_of,
    values_of,
)
from ._rows import rows

UNIT = {"unit-layer": "position", "unit-layer-image": "image"}
"""Arms with a layer that gives features unit length, per position or per image: the paper does not say which."""
NORMS = {"layer-norm": "layer", "instance-norm": "instance"}
"""Arms with another normalization instead of batch normalization."""
ARMS = ("none", "iiw+dcc", *NORMS, *UNIT, "unit-loss")
"""Arms; all but the first are trained with IIW and DCC."""
PRIORS = {"mix-quarter": 0.25, "mix-equal": 1.0, "mix-four": 4.0}
"""Weights of stored statistics, in multiples of the first task's test images."""
SHOWN = {
    "recombined": "batch",
    "reestimated": "re-estimated",
    "mix-equal": "mixed, equal parts",
    "running": "running",
    "own": "own task, batch",
}


def policies_of(arm: str, images: int) -> dict[str, str]:
    """Return the policies that an arm is measured under, with their measures; a single one if policies do not matter.

    Args:
        arm: One of ``ARMS``.
        images: Number of test images of the first task.
    """
    if arm in NORMS:
        return {"batch": POLICIES["batch"]}
    return {**POLICIES, **{f"mix:{round(part * images)}": name for name, part in PRIORS.items()}}


def tasks_for(arm: str, run: Run) -> list[ck.Task]:
    """Return the two tasks, with the network of the arm.

    Args:
        arm: Name of the arm.
        run: Settings and seed.
    """
    kwargs: dict[str, Any] = {}
    if arm in NORMS:
        kwargs = {"norm": NORMS[arm]}
    elif arm in UNIT:
        kwargs = {"unit_length": run.settings["cut"], "unit_over": UNIT[arm]}
    return [attrs.evolve(task, kwargs={**task.kwargs, **kwargs}) for task in tasks_of(run)]


def regularizers(run: Run) -> list[str | ck.RegularizerConfig]:
    """Return the plugins of the arm."""
    arm = run.arm
    if arm == "none":
        return []
    return [*uses_of(run, "iiw+dcc"), *(["unit_features"] if arm == "unit-loss" else [])]


def run(run: Run) -> Outcome:
    """Train both networks of an arm, exchange their heads, measure under every policy that matters."""
    tasks = tasks_for(run.arm, run)
    fit = trainer_of(run).fit(tasks, regularizers(run))
    policies = policies_of(run.arm, len(tasks[0].data.test))
    cells = measure(run, [fit], tasks, policies)
    # Without batch normalization all policies give the same, so only one measure has a value.
    notes = ("No policy changes anything with layer or instance normalization: one figure stands for all.",)
    return Outcome(
        values=values_of(cells, policies),
        figure_data={"cells": cells},
        notes=notes if run.arm in NORMS else (),
    )


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw a row per arm and a mark per policy, which are bars in the paper's Fig. 5."""
    ways: dict[str, dict[str, Sequence[float]]] = {
        called: {arm: results.known(arm, name) for arm in results.arms} for name, called in SHOWN.items()
    }
    return {
        "policies": rows(
            ways, "accuracy, heads exchanged, by whose statistics are used", across=chance_of(results)
        )
    }


STUDY = Study(
    title="normalization at recombination",
    question="Stored statistics of batch normalization are those of other features once heads are exchanged: whose "
    "statistics serve instead, and do networks without any, or features of one length, do as well?",
    reference=f"{REFERENCE}, App. C.1, Fig. 5",
    arms=ARMS,
    measures=(
        Measure(name="own", title="own task, as trained"),
        Measure(name="recombined", title="recombined, batch statistics"),
        *(measure for measure in MEASURES if measure.name in ("one-way", "other-way", "all-outputs")),
        Measure(name="reestimated", title="recombined, re-estimated statistics"),
        Measure(name="mix-quarter", title="recombined, stored ones as a quarter of the images", drawn=False),
        Measure(name="mix-equal", title="recombined, stored ones as as many images", drawn=False),
        Measure(name="mix-four", title="recombined, stored ones as four times the images", drawn=False),
        Measure(name="running", title="recombined, running statistics"),
        Measure(name="chance", title="chance", better="none", drawn=False),
    ),
    sizes=SIZES,
    scale=SCALE,
    paper=(
        Reported("iiw+dcc", "running", 32.4, "Gygli et al. 2021, App. C.1", "%"),
        Reported("none", "recombined", 10.6, "Gygli et al. 2021, Fig. 2, Sec. 4", "%"),
    ),
    run=run,
    closed="all but the first are trained with the same methods and differ in normalization",
    draw=draw,
    data=DATA,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.4."""
    register("3.4", lambda: STUDY)
