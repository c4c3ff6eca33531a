"""Across domains: are the layers of encoders more alike than those of decoders?

Paper: Bonheme and Grzes 2023, Sec. 4.2, Fig. 5: a VAE trained on Cars3D beside one trained on CelebA, on images of
    CelebA, as trained (a) and with mean and variance layers retrained (b). Heat maps only.
Here: sprites and solids. Unbiased CKA of each layer with the same layer; the paper's is biased, which is far above 0
    where samples are fewer than values.
Controls: two networks of the same data (``same``), an untrained source (``untrained``), samples in another order
    (``shuffled``).

    compatkit study run 2.5 --seeds 3 --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._heat import heat_maps
from ._vaes import (
    OTHER,
    PAPER,
    REFERENCE,
    SMALL,
    rows,
    samples_of,
    scale,
    similar,
    train,
    untrained,
    weights_after,
)

ARMS = ("fixed", "retrained", "same", "untrained", "shuffled")
KINDS = {"encoder": "encoder", "decoder": "decoder", "mean": "mean", "log_variance": "log-variance"}


def run(run: Run) -> Outcome:
    """Compare a network of the arm with one of the target, on images of the target."""
    source, target = run.settings["source"], run.settings["target"]
    images = samples_of(run, target)
    target_layers = rows(train(run, target), images)
    if run.arm == "same":
        network = train(run, target, seed=run.seed + OTHER)
    elif run.arm == "untrained":
        network = untrained(run, source, seed=run.seed + OTHER)
    else:
        network = train(run, source)
    if run.arm == "retrained":
        use = ck.use("retrain", layers=["latent"], fresh=True)
        network = train(
            run, target, None, use, weights=weights_after(network), steps=run.settings["retrain_steps"]
        )
    layers = rows(network, images)
    if run.arm == "shuffled":
        order = np.random.default_rng(run.seed).permutation(len(images))
        layers = {name: rows[order] for name, rows in layers.items()}
    matrix, summary = similar(layers, target_layers, "cka")
    _, biased = similar(layers, target_layers, "cka/biased")
    values = {name: summary.get(layer) for layer, name in KINDS.items()}
    values["gap"] = summary["encoder"] - summary["decoder"]
    values["biased-gap"] = biased["encoder"] - biased["decoder"]
    return Outcome(values=values, figure_data={"matrix": matrix, "layers": list(layers)})


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw the similarity of all layers, one map an arm."""
    return {"layers": heat_maps(results)}


STUDY = Study(
    title="layers across domains",
    question="Are encoders of VAEs that were trained on different images more alike, layer by layer, than their "
    "decoders, also once mean and variance layers are retrained?",
    reference=f"{REFERENCE} Sec. 4.2, Fig. 5",
    arms=ARMS,
    measures=(
        Measure(name="encoder", title="CKA of encoder layers", better="none"),
        Measure(name="decoder", title="CKA of decoder layers", better="none"),
        Measure(name="gap", title="encoder less decoder", better="none"),
        Measure(name="mean", title="CKA of the mean layer", better="none"),
        Measure(name="log-variance", title="CKA of the log-variance layer", better="none"),
        Measure(name="biased-gap", title="encoder less decoder, biased CKA", better="none", drawn=False),
    ),
    sizes={
        "cpu": {**SMALL, "source": "sprites", "target": "solids", "retrain_steps": 300},
        "paper": {**PAPER, "source": "cars3d", "target": "celeba", "retrain_steps": 300_000},
    },
    scale={"cpu": scale(SMALL, "sprites and solids (Cars3D and CelebA)"), "paper": ""},
    paper=(),  # Fig. 5 has colors without numbers
    run=run,
    draw=draw,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 2.5."""
    register("2.5", lambda: STUDY)
