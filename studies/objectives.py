"""Objectives and classifiers: are encoders alike whatever they are trained for?

Paper: Bonheme and Grzes 2023, Sec. 4.1, Fig. 4, and App. H, Fig. 16: a beta-VAE with beta = 1 beside a DIP-VAE II, and
    beside a classifier with the same encoder; CKA of encoder layers close to 1, of mean and variance layers lower. Heat
    maps only.
Control: ``untrained``, a network before its first step.

    compatkit study run 2.4 --seeds 3 --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._heat import heat_maps
from ._vaes import (
    OTHER,
    PAPER,
    REFERENCE,
    SMALL,
    objective,
    rows,
    samples_of,
    scale,
    similar,
    train,
    untrained,
)

ARMS = ("beta-1", "dip-1", "beta-tc-2", "annealed-25", "classifier", "untrained")
KINDS = {"encoder": "encoder", "mean": "mean", "log-variance": "log_variance", "decoder": "decoder"}


def run(run: Run) -> Outcome:
    """Compare a network of the arm with a plain VAE of another seed."""
    name = run.settings["data"]
    images = samples_of(run, name)
    reference_layers = rows(train(run, name, seed=run.seed + OTHER), images)
    if run.arm == "classifier":
        trained = train(run, name, classifier=True)
    elif run.arm == "untrained":
        trained = untrained(run, name)
    else:
        trained = train(run, name, objective(run, run.arm))
    matrix, summary = similar(rows(trained, images), reference_layers, "cka")
    return Outcome(
        values={word: summary.get(layer) for word, layer in KINDS.items()},
        figure_data={"matrix": matrix, "layers": list(reference_layers)},
    )


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw the similarity of all layers, one map an arm."""
    return {"layers": heat_maps(results)}


STUDY = Study(
    title="encoders of other objectives, and of classifiers",
    question="Are layers of an encoder alike, whichever objective of VAEs or of classification it was trained with?",
    reference=f"{REFERENCE} Sec. 4.1, Fig. 4; App. H, Fig. 16",
    arms=ARMS,
    measures=tuple(
        Measure(name=word, title=f"CKA, {word} beside a VAE with beta 1", better="none") for word in KINDS
    ),
    sizes={"cpu": {**SMALL, "data": "sprites"}, "paper": {**PAPER, "data": "cars3d"}},
    scale={"cpu": scale(SMALL, "sprites (Cars3D, dSprites, SmallNORB)"), "paper": ""},
    paper=(),  # colors without numbers
    run=run,
    closed="an arm is the objective of the whole network",
    draw=draw,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 2.4."""
    register("2.4", lambda: STUDY)
