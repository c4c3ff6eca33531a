"""Split points: how deep may an extractor be for a head of another network to fit?

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", App. C.4, Fig. 8 (IIW+RP, CIFAR-10 and STL-10, ResNet-56, 5 runs).
Here: MNIST and USPS, or two halves of CIFAR-10, at a size for two CPU cores; or the paper's pair.

An arm is a block after which both networks are cut; rotation heads have the architecture of the rest.

    compatkit study run 3.7 --data DIR --out OUT
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.experiments.studies import Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._curves import along_arms
from ._pairs import (
    DATA,
    MEASURES,
    REFERENCE,
    SCALE,
    SIZES,
    chance_of,
    outcome,
    reported,
    tasks_of,
    trainer_of,
    uses_of,
)

METHODS = "iiw+rp"
STAGES = (1, 2, 3)
BLOCKS = ("first", "middle", "last")
ARMS = tuple(f"stage{stage}-{block}" for stage in STAGES for block in BLOCKS)


def split_of(arm: str, model: str) -> str:
    """Return the split point of an arm: for ResNet-20, ``stage2-last`` is ``layer2``, ``-middle`` is ``layer2.1``.

    Args:
        arm: A stage, and the first, middle or last block of it.
        model: A ResNet for small images; depth 6 n + 2 means three stages of n blocks.

    Raises:
        UsageError: The model is another network.
    """
    match = re.fullmatch(r"resnet(\d+)_cifar", model)
    if match is None or int(match[1]) % 6 != 2:
        raise UsageError(
            "The setting 'model' must be a ResNet of three stages, such as resnet20_cifar or resnet56_cifar; got "
            f"{model!r}."
        )
    blocks = int(match[1]) // 6
    stage, which = arm.removeprefix("stage").split("-")
    block = {"first": 0, "middle": blocks // 2, "last": blocks - 1}[which]
    return f"layer{stage}" if block == blocks - 1 else f"layer{stage}.{block}"


def run(run: Run) -> Outcome:
    """Train both networks, cut at the arm's split point, exchange heads, measure."""
    cut = split_of(run.arm, run.settings["model"])
    tasks = tasks_of(run, cut)
    return outcome(run, [trainer_of(run).fit(tasks, uses_of(run, METHODS))], tasks, split=cut)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw accuracy by split point, as the paper's Fig. 8, and that of the networks as trained."""
    ticks = {arm: split_of(arm, results.settings["model"]) for arm in results.arms}
    measures = {
        "own": "own task",
        "recombined": "recombined, batch statistics",
        "running": "running statistics",
    }
    return {"split": along_arms(results, ARMS, measures, "cut after", ticks=ticks, across=chance_of(results))}


STUDY = Study(
    title="split point",
    question="Early features are said to be common to networks and late ones their own: up to which block can an "
    "extractor be given the head of another network, with IIW and RP?",
    reference=f"{REFERENCE}, App. C.4, Fig. 8",
    arms=ARMS,
    measures=MEASURES,
    sizes={
        size: {name: value for name, value in settings.items() if name != "cut"}
        for size, settings in SIZES.items()
    },
    scale={
        **SCALE,
        "paper": "three split points a stage; which ones the paper's figure has is not in its text.",
    },
    paper=(reported("stage2-last", 61.8, "App. C.5: RP beside IIW+DCC, at the split of Sec. 4"),),
    run=run,
    closed="an arm is a cut",
    draw=draw,
    data=DATA,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.7."""
    register("3.7", lambda: STUDY)
