"""Dense networks and Procrustes: does what CKA shows of convolutional VAEs hold for both?

Paper: Bonheme and Grzes 2023, App. F, G and J, Fig. 10 to 15 and 20: Procrustes and CKA give similar results on Cars3D,
    and fully connected VAEs the same trend. Heat maps only.
Here: two networks of the same data, and two of different data, by architecture; each layer with the same layer.
Control: samples in another order (``...-shuffled``), what each similarity makes of nothing.

    compatkit study run 2.12 --seeds 3 --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Run, Study
from compatkit.hooks import Register

from ._vaes import (
    OTHER,
    PAPER,
    REFERENCE,
    SMALL,
    Arrays,
    reconstructed,
    rows,
    samples_of,
    scale,
    similar,
    train,
)

ARMS = ("conv", "dense")
PAIRS = ("same", "across", "shuffled")
SIDES = ("encoder", "decoder")


def run(run: Run) -> Outcome:
    """Train three networks of an architecture, and compare them by both similarities."""
    changed: dict[str, Any] = {"arch": run.arm}
    source, target = run.settings["source"], run.settings["target"]
    images = samples_of(run, target)
    own = train(run, target, **changed)
    own_layers = rows(own, images)
    others = {
        "same": rows(train(run, target, seed=run.seed + OTHER, **changed), images),
        "across": rows(train(run, source, **changed), images),
    }
    order = np.random.default_rng(run.seed).permutation(len(images))
    others["shuffled"] = {name: rows[order] for name, rows in others["same"].items()}
    values: dict[str, float | None] = {"loss": reconstructed(own, images)[0]}
    for pair, layers in others.items():
        _, summary = similar(layers, own_layers, "cka")
        twin = _procrustes(layers, own_layers)
        for side in SIDES:
            values[f"cka-{pair}-{side}"] = summary[side]
            values[f"procrustes-{pair}-{side}"] = twin[side]
    return Outcome(values=values)


def _procrustes(left: Mapping[str, np.ndarray], right: Arrays) -> dict[str, float]:
    """Return means over layers with themselves; the other pairs would cost most of the time."""
    distances: dict[str, list[float]] = {side: [] for side in SIDES}
    for name, features in left.items():
        side = name.partition(".")[0]
        if side in distances:
            distances[side].append(similar({name: features}, {name: right[name]}, "procrustes")[0][0][0])
    return {side: float(np.mean(values)) for side, values in distances.items()}


STUDY = Study(
    title="dense networks, and Procrustes",
    question="Do Procrustes similarity and fully connected networks show what CKA of convolutional ones shows?",
    reference=f"{REFERENCE} App. F and G",
    arms=ARMS,
    measures=(
        *(
            Measure(name=f"{metric}-{pair}-{side}", title=f"{metric}, {pair}, {side}", better="none")
            for metric in ("cka", "procrustes")
            for pair in PAIRS
            for side in SIDES
        ),
        Measure(name="loss", title="reconstruction", unit="nats", better="lower"),
    ),
    sizes={
        "cpu": {**SMALL, "samples": 500, "source": "sprites", "target": "solids"},
        "paper": {**PAPER, "source": "celeba", "target": "cars3d"},
    },
    scale={"cpu": scale({**SMALL, "samples": 500}, "sprites and solids (CelebA and Cars3D)"), "paper": ""},
    paper=(),  # colors without numbers
    run=run,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 2.12."""
    register("2.12", lambda: STUDY)
