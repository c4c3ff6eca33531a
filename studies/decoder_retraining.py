"""Retraining a decoder on another domain, from either end: how many layers does it take?

Paper: Bonheme and Grzes 2023, Sec. 4.3, Fig. 6 and 9: a VAE trained on dSprites rebuilds Symsol, with more and more
    layers of its decoder reset and retrained; mean and variance layers fixed (a) or retrained too (b). Images only.
Here: the same with sprites and solids; the loss of images of the target that were not trained on.
Control: ``untrained``, a network before its first step whose decoder alone is trained.

    compatkit study run 2.6 --seeds 3 --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._curves import along_measures
from ._vaes import (
    DECODER,
    OTHER,
    PAPER,
    REFERENCE,
    SMALL,
    data_of,
    few,
    originals,
    reconstructed,
    scale,
    side_by_side,
    train,
    untrained,
    weights_after,
)

ARMS = ("fixed", "latents", "untrained")
LAYERS = len(DECODER["conv"])
PARTIAL = tuple(f"{end}-{count}" for end in ("input", "output") for count in range(1, LAYERS))


def run(run: Run) -> Outcome:
    """Retrain no layer, some from either end, and all of the decoder; measure reconstruction of the target."""
    source, target = run.settings["source"], run.settings["target"]
    images, layers = data_of(run, target).test, DECODER[run.settings["arch"]]
    fresh = run.arm == "untrained"
    begun = weights_after(untrained(run, source, seed=run.seed + OTHER) if fresh else train(run, source))
    stages: dict[str, tuple[str, ...]] = {"none": (), "full": layers}
    if not fresh:
        for count in run.settings["stages"]:
            stages[f"input-{count}"], stages[f"output-{count}"] = layers[:count], layers[-count:]
    values: dict[str, float | None] = {}
    pictures: dict[str, Any] = {"original": originals(images)}
    values["own"], shown = reconstructed(train(run, target), images)
    pictures["own"] = few(shown)
    for name, chosen in stages.items():
        retrained = (*chosen, *(("latent",) if run.arm == "latents" else ()))
        state = _retrained(run, target, begun, retrained)
        values[name], shown = reconstructed(state, images)
        pictures[name] = few(shown)
    return Outcome(values=values, figure_data={"pictures": pictures} if run.seed == 0 else {})


def _retrained(run: Run, target: str, begun: Mapping[str, Any], layers: tuple[str, ...]) -> ck.Fit:
    if not layers:
        return train(run, target, weights=begun, steps=0, networks="")
    use = ck.use("retrain", layers=list(layers))
    return train(run, target, None, use, weights=begun, steps=run.settings["retrain_steps"])


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw the loss by layers retrained, and images of the first seed, as the paper's Fig. 6."""
    arms = [arm for arm in results.arms if arm != "untrained"]
    counts = results.settings["stages"]
    drawn: dict[str, bytes] = {}
    for end in ("input", "output"):
        names = ["none", *(f"{end}-{count}" for count in counts), "full"]
        ticks = ["0", *map(str, counts), "all"]
        drawn[end] = along_measures(
            results, names, ticks, f"layers retrained from the {end}'s side", "loss in nats an image"
        )
    for arm in arms:
        pictures = [run["pictures"] for run in results.figure_data(arm) if "pictures" in run]
        if pictures:
            order = ["original", "own", "none", *(f"input-{count}" for count in counts), "full"]
            drawn[f"images-{arm}"] = side_by_side(
                {name: pictures[0][name] for name in order if name in pictures[0]}
            )
    return drawn


STUDY = Study(
    title="decoder retrained layer by layer",
    question="How much of a decoder has to be retrained to rebuild images of another domain, and does it help to "
    "retrain mean and variance layers too?",
    reference=f"{REFERENCE} Sec. 4.3, Fig. 6 and 9",
    arms=ARMS,
    measures=(
        Measure(name="own", title="trained on the target", unit="nats", better="lower"),
        Measure(name="none", title="no layer of the decoder retrained", unit="nats", better="lower"),
        *(
            Measure(
                name=name,
                title=f"{name.replace('-', ' side, ')} retrained",
                unit="nats",
                better="lower",
                drawn=False,
            )
            for name in PARTIAL
        ),
        Measure(name="full", title="the whole decoder retrained", unit="nats", better="lower"),
    ),
    sizes={
        "cpu": {**SMALL, "source": "sprites", "target": "solids", "retrain_steps": 400, "stages": [3]},
        "paper": {
            **PAPER,
            **{"source": "dsprites", "target": "solids", "images": 100_000},
            **{"retrain_steps": 300_000, "stages": list(range(1, LAYERS))},
        },
    },
    scale={
        "cpu": scale(
            SMALL, "400 steps of retraining (300,000), three of six layers as the only stage between"
        ),
        "paper": "solids are drawn here (112,791 images of Symsol), 100,000 of each set are read.",
    },
    paper=(),  # Fig. 6 shows images without numbers
    run=run,
    draw=draw,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 2.6."""
    register("2.6", lambda: STUDY)
