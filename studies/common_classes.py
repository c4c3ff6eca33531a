"""Number of common classes for DCC: the shared head classifies two of them, three, up to all.

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", App. C.5, Fig. 9 (IIW+DCC, 2 to 9 classes of CIFAR-10 and STL-10, ResNet-56, 3 runs).
Here: MNIST and USPS, or two halves of CIFAR-10, which have ten in common; or the paper's pair, which has nine.

Both networks learn all their classes in every arm, and are measured on all common ones. The classes of the shared head
are drawn with the run's seed and recorded; for one seed, smaller sets are subsets of larger ones.

    compatkit study run 3.8 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._curves import along_arms
from ._pairs import (
    DATA,
    MEASURES,
    REFERENCE,
    SCALE,
    SIZES,
    common_classes,
    outcome,
    reported,
    tasks_of,
    trainer_of,
    uses_of,
)

COUNTS = tuple(str(count) for count in range(2, 11))
WITHOUT = ("iiw", "iiw+rp")
"""The baseline of DCC, and the method that needs no common classes."""


def classes_of(tasks: Sequence[ck.Task], count: int, seed: int) -> list[str] | None:
    """Return the names of ``count`` classes that two tasks share, as in the first task; None if there are fewer.

    Args:
        tasks: Two.
        count: Number of classes.
        seed: Seed of the order; smaller sets are beginnings of larger ones.
    """
    common = common_classes(*tasks)
    if count > len(common):
        return None
    order = np.random.default_rng(seed).permutation(len(common))
    return [common[index] for index in sorted(order[:count])]


def run(run: Run) -> Outcome:
    """Train both networks from equal weights with a head for ``count`` classes, exchange their heads, measure."""
    tasks, trainer = tasks_of(run), trainer_of(run)
    if run.arm in WITHOUT:
        return outcome(run, [trainer.fit(tasks, uses_of(run, run.arm))], tasks)
    classes = classes_of(tasks, int(run.arm), run.seed)
    if classes is None:
        names = " and ".join(task.name for task in tasks)
        return Outcome(values={}, notes=(f"{names} have fewer than {run.arm} classes in common.",))
    uses = [*uses_of(run, "iiw"), ck.use("dcc", classes=classes)]
    return outcome(run, [trainer.fit(tasks, uses)], tasks, classes=classes)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw accuracy by number of classes, as the paper's Fig. 9, beside the methods without DCC."""
    levels = {arm: results.known(arm, "recombined") for arm in WITHOUT if arm in results.arms}
    across = {f"{arm.upper()}, recombined": mean(values) for arm, values in levels.items() if values}
    counts = [arm for arm in COUNTS if arm in results.arms and results.known(arm, "recombined")]
    measures = {"own": "own task", "recombined": "IIW+DCC, recombined"}
    return {
        "classes": along_arms(
            results,
            counts,
            measures,
            "classes of the shared head",
            across=across,
            at=[float(count) for count in counts],
        )
    }


_WHERE = "App. C.5, Fig. 9"
STUDY = Study(
    title="number of common classes",
    question="DCC needs classes that both tasks have: how many of them must the shared head tell apart, and when is "
    "rotation prediction, which needs none, the better choice?",
    reference=f"{REFERENCE}, {_WHERE}",
    arms=(*WITHOUT, *COUNTS),
    measures=MEASURES,
    sizes=SIZES,
    scale={
        "cpu": f"{SCALE['cpu']} Ten classes in common, not nine.",
        "halves": f"{SCALE['halves']} Ten classes in common, not nine.",
        "paper": "which classes the paper takes, it does not say; here they are drawn by the seed.",
    },
    paper=(
        reported("6", 59.4, f"{_WHERE}: at most, with six classes or fewer"),
        reported("iiw+rp", 61.8, _WHERE),
    ),
    run=run,
    closed="an arm is the number of common classes",
    draw=draw,
    data=DATA,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.8."""
    register("3.8", lambda: STUDY)
