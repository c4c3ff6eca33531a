"""Shared variables: which factors of a domain does a VAE of another domain hold in its latent variables?

Paper: Bonheme and Grzes 2023, Sec. 4.3, Fig. 7 and 8: images of one domain beside their reconstructions by a VAE of
    another: position and size are shared by dSprites and Symsol, shape is not. Pictures only.
Here: the same pictures, and R2 of each factor, predicted linearly from the means of the latent variables. Solids have
    places and sizes, as sprites have. An arm is the target, then the source.
Controls: an untrained encoder, and latent variables in another order (``shuffled``), whose R2 is not above 0.

    compatkit study run 2.7 --seeds 3 --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._vaes import (
    OTHER,
    PAPER,
    REFERENCE,
    SMALL,
    data_of,
    factored,
    few,
    means_of,
    originals,
    reconstructed,
    scale,
    side_by_side,
    train,
    untrained,
)

FACTORS = ("shape", "solid", "scale", "orientation", "x", "y")
ARMS = (
    *("sprites-sprites", "sprites-solids", "sprites-untrained", "sprites-shuffled"),
    *("solids-solids", "solids-sprites", "solids-untrained"),
)
ORDERED = ("scale", "x", "y")


def run(run: Run) -> Outcome:
    """Measure R2 of the target's factors from latent variables of the source."""
    target, source = run.arm.split("-")
    sets = run.settings["sets"]
    images = factored(run, sets[target])
    if source == "untrained":
        trained = untrained(run, sets[target], seed=run.seed + OTHER)
    else:
        trained = train(run, sets[target if source == "shuffled" else source])
    sides = images.partition()
    features = [means_of(trained, images, indices) for indices in sides]
    if source == "shuffled":
        draw = np.random.default_rng(run.seed)
        features = [rows[draw.permutation(len(rows))] for rows in features]
    values: dict[str, float | None] = {}
    for factor, indices in images.factors.items():
        pairs = [(x, _numbers(factor, indices[side])) for x, side in zip(features, sides, strict=True)]
        values[factor] = ck.explained(*pairs)
    pictures: dict[str, Any] = {}
    if run.seed == 0:
        test = data_of(run, sets[target]).test
        pictures = {"original": originals(test), "rebuilt": few(reconstructed(trained, test)[1])}
    return Outcome(values=values, figure_data=pictures)


def _numbers(factor: str, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return values of a factor as numbers, or, where they have no order, as columns of 0 and 1."""
    return labels if factor in ORDERED else (labels[:, None] == np.arange(labels.max() + 1)).astype(np.int64)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw images of the target beside what networks of both domains make of them, as the paper's Fig. 7."""
    drawn: dict[str, bytes] = {}
    for target in ("sprites", "solids"):
        shown: dict[str, Any] = {}
        for arm in results.arms:
            runs = [run for run in results.figure_data(arm) if "rebuilt" in run]
            if arm.startswith(f"{target}-") and runs and "shuffled" not in arm:
                shown[target] = runs[0]["original"]
                shown[f"by {arm.partition('-')[2]}"] = runs[0]["rebuilt"]
        if shown:
            drawn[target] = side_by_side(shown)
    return drawn


STUDY = Study(
    title="shared variables",
    question="Which factors of one domain can be read from the latent variables of a VAE that never saw it?",
    reference=f"{REFERENCE} Sec. 4.3, Fig. 7 and 8",
    arms=ARMS,
    measures=tuple(Measure(name=factor, title=f"R2 of {factor}") for factor in FACTORS),
    sizes={
        "cpu": {**SMALL, "sets": {"sprites": "sprites", "solids": "solids-moved"}},
        "paper": {**PAPER, "images": 100_000, "sets": {"sprites": "dsprites", "solids": "solids-moved"}},
    },
    scale={
        "cpu": scale(SMALL, "solids with places and sizes, linear R2 beside the paper's pictures"),
        "paper": "100,000 images of each set; solids are drawn here.",
    },
    paper=(),  # pictures without numbers
    run=run,
    draw=draw,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 2.7."""
    register("2.7", lambda: STUDY)
