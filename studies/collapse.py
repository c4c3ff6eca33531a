"""Posterior collapse: does similarity show that a VAE's sampled variables say nothing about the images?

Paper: Bonheme and Grzes 2023, Sec. 4.1, Fig. 3: beta-VAE with beta 1 and 8, DIP-VAE II with 1 and 20, on dSprites: the
    sampled variables of the collapsed network are unlike all layers of the other one. Heat maps only.
Here: unbiased CKA with a beta-VAE of beta = 1; the mean over all encoder layers of that network for the sampled
    variables. Counts of units are those of the metric ``posterior_collapse``.
Control: ``beta-1`` beside another network of the same kind.

    compatkit study run 2.3 --seeds 3 --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._heat import heat_maps
from ._vaes import (
    ENCODER,
    OTHER,
    PAPER,
    REFERENCE,
    SMALL,
    collapse,
    objective,
    reconstructed,
    rows,
    samples_of,
    scale,
    similar,
    train,
)

ARMS = ("beta-1", "beta-8", "beta-50", "dip-1", "dip-20")
UNDEFINED = -1.0
UNITS = ("active", "mixed", "passive", "varying")


def run(run: Run) -> Outcome:
    """Train a network of the arm, and compare it with a plain one."""
    name = run.settings["data"]
    images = samples_of(run, name)
    trained = train(run, name, objective(run, run.arm))
    plain_layers = rows(train(run, name, seed=run.seed + OTHER), images)
    layers = rows(trained, images)
    matrix, summary = similar(layers, plain_layers, "cka")
    row = list(layers).index("sampled")
    cells = [matrix[row][list(plain_layers).index(layer)] for layer in ENCODER[run.settings["arch"]]]
    known = [value for value in cells if value > UNDEFINED]
    values = {
        "sampled-with-encoder": float(np.mean(known)) if known else None,
        "sampled": summary.get("sampled"),
        "encoder": summary["encoder"],
        "decoder": summary["decoder"],
        **collapse(trained, images),
        "loss": reconstructed(trained, images)[0],
    }
    return Outcome(values=values, figure_data={"matrix": matrix, "layers": list(layers)})


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw the similarity of all layers, one map an arm."""
    return {"layers": heat_maps(results)}


STUDY = Study(
    title="posterior collapse",
    question="Do sampled variables lose their similarity with all layers of a plain VAE where the divergence weighs "
    "too much?",
    reference=f"{REFERENCE} Sec. 4.1, Fig. 3",
    arms=ARMS,
    measures=(
        Measure(
            name="sampled-with-encoder",
            title="CKA of sampled variables with the plain encoder",
            better="none",
        ),
        Measure(name="sampled", title="CKA of sampled variables with sampled ones", better="none"),
        Measure(name="encoder", title="CKA of encoder layers", better="none"),
        Measure(name="decoder", title="CKA of decoder layers", better="none"),
        *(
            Measure(name=f"{kind}-units", title=f"{kind} units", unit="count", better="none")
            for kind in UNITS
        ),
        Measure(name="divergence", title="divergence from the prior", unit="nats", better="none"),
        Measure(name="loss", title="reconstruction", unit="nats", better="lower"),
    ),
    sizes={"cpu": {**SMALL, "data": "sprites"}, "paper": {**PAPER, "data": "dsprites", "images": 100_000}},
    scale={"cpu": scale(SMALL, "sprites (dSprites)"), "paper": "100,000 of dSprites' images."},
    paper=(),  # colors without numbers
    run=run,
    closed="an arm is the objective of the whole network",
    draw=draw,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 2.3."""
    register("2.3", lambda: STUDY)
