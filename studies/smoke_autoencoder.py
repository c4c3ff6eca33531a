"""Smoke autoencoders: is a network trained with the reverse pass a better start for both of its directions?

Paper: "Reviving Autoencoder Pretraining", Sec. 4, Fig. 8 b), 18 and 19, C.2: the generator of study 0.8, mirrored into
    an autoencoder for the same smoke (B_1: L2 of RR_AB1 68.88 % below Std_AB1) and for photographs of smoke in color
    (B_2: 13.3 % below). In B_1 the half that runs as the generator does comes from task A in every model, the other
    half from the transposed weights of Pre_A and RR_A, at random for Std_A; in B_2 one half comes from A.
Here: the decoder is the generator, its mirror is the encoder, in both tasks (the paper calls the transposed half the
    decoder in B_1, the encoder in B_2). The images of B_2 are simulated and colored, a stand-in for the photographs.
Control: ``rr-shuffled``, both halves from RR_A with the entries of every tensor in a random order: no gain over
    ``scratch`` may be left.

    compatkit study run 0.9 --seeds 3 --out OUT        the same smoke
    compatkit study run 0.10 --seeds 3 --out OUT       captured-looking smoke in color
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Reported, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import image_grid

from ._arms import REFERENCE
from ._smoke import (
    GENERATOR,
    PAPER,
    SCALE,
    A,
    as_decoder,
    as_encoder,
    few,
    fit,
    generated,
    generator,
    pixels,
    shown,
    tested,
)

PARTS: Mapping[str, tuple[str, str, str]] = {
    "std": ("std", "scratch", "std"),
    "pre": ("pre", "pre", "pre"),
    "rr": ("rr", "rr", "rr"),
    "scratch": ("rr", "scratch", "scratch"),
    "std-both": ("std", "std", "std"),
    "rr-decoder": ("rr", "scratch", "rr"),
    "pre-encoder": ("pre", "pre", "scratch"),
    "rr-shuffled": ("rr", "shuffled", "shuffled"),
}
"""Generator, origin of the encoder and origin of the decoder, by arm."""
STAGES = ("start", "early", "loss")


def start(run: Run, task: ck.Task, parts: tuple[str, str, str]) -> dict[str, Tensor]:
    """Return the initial weights of an autoencoder."""
    weights = fit(run, task, [ck.use("image_error")], 0).weights(task.name)
    if parts[1:] == ("scratch", "scratch"):
        return weights
    trained = generator(run, parts[0]).weights(A)
    channels = 1 if task.data.train.channels == "L" else 3
    for make, source in ((as_encoder, parts[1]), (as_decoder, parts[2])):
        if source != "scratch":
            initial = make(trained, channels)
            weights |= shuffled(initial, run.seed) if source == "shuffled" else initial
    return weights


def shuffled(weights: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Return tensors with their entries in a random order."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: tensor.flatten()[torch.randperm(tensor.numel(), generator=draw)].view_as(tensor)
        for name, tensor in weights.items()
    }


def run(run: Run) -> Outcome:
    """Train an autoencoder from parts of a generator; measure its error before, early and at the end."""
    settings, name = run.settings, run.settings["target"]
    images = pixels(tested(run, name))
    task = ck.Task(name, run.load(name), "image_autoencoder", "decoder", size=64, augment=("flip",))
    begun = attrs.evolve(task, weights=start(run, task, PARTS[run.arm]))
    values: dict[str, float | None] = {}
    outputs = images
    counts = (0, settings["ae_steps"] // 5, settings["ae_steps"])
    for stage, steps in zip(STAGES, counts, strict=True):
        trained = fit(run, begun, [ck.use("image_error")], steps, lr=settings["ae_lr"])
        outputs = generated(trained, images)
        values[stage] = 1000 * float((outputs - images).double().square().mean())
    values["absolute"] = 1000 * float((outputs - images).double().abs().mean())
    pictures = {"made": outputs} | ({"truth": images} if run.arm == "std" else {})
    record = {name: few(picture) for name, picture in pictures.items()} if run.seed == 0 else {}
    return Outcome(values=values, figure_data=record)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw what the autoencoders of the first seed give, above the images themselves."""
    runs = {
        arm: next((run for run in results.figure_data(arm) if "made" in run), None) for arm in results.arms
    }
    rows: dict[str, Any] = {arm: shown(run["made"]) for arm, run in runs.items() if run is not None}
    if truth := (runs.get("std") or {}).get("truth"):
        rows["reference"] = shown(truth)
    return {"images": image_grid(rows, low=0, high=255)} if rows else {}


def _study(target: str, title: str, arms: tuple[str, ...], paper: tuple[Reported, ...], where: str) -> Study:
    sizes = {
        "cpu": {**GENERATOR, "ae_steps": 150, "ae_lr": 1e-3, "target": target},
        "paper": {**PAPER, "ae_steps": 20_000, "ae_lr": 1e-3, "target": target},
    }
    return Study(
        title=title,
        question="Does an autoencoder end with a smaller error if it starts from a generator that was trained with the "
        "reverse pass, rather than from a plain one?",
        reference=f"{REFERENCE}, Sec. 4, {where}, C.2",
        arms=arms,
        measures=(
            Measure(name="loss", title="squared error after training, 1/1000", better="lower"),
            Measure(name="early", title="squared error after a fifth of the steps, 1/1000", better="lower"),
            Measure(name="start", title="squared error before training, 1/1000", better="lower", drawn=False),
            Measure(
                name="absolute", title="absolute error after training, 1/1000", better="lower", drawn=False
            ),
        ),
        sizes=sizes,
        scale={
            size: f"{SCALE.format(**settings)}; {settings['ae_steps']:,} steps of the autoencoder"
            + ("; images in color are simulated, where the paper has photographs." if target != A else ".")
            for size, settings in sizes.items()
        },
        paper=paper,
        run=run,
        draw=draw,
    )


_E7 = "Sec. C.2, avg. loss of B_2, 1e7; "
SAME = _study(
    A,
    "smoke autoencoder from a generator",
    ("std", "pre", "rr", "scratch", "std-both", "rr-decoder", "rr-shuffled"),
    (Reported("rr", "loss", -68.88, "Sec. 4: L2 of RR_AB1 relative to Std_AB1", "%"),),
    "Fig. 8 b) and 18",
)
CAPTURED = _study(
    "captured-smoke",
    "captured smoke from simulated smoke",
    ("std", "pre-encoder", "rr-decoder", "scratch", "pre", "rr-shuffled"),
    (
        Reported("rr-decoder", "loss", -13.3, "Sec. 4: L2 of RR_AB2 relative to Std_AB2", "%"),
        Reported("rr-decoder", "loss", 1.82, f"{_E7}decoder alone (most likely RR_AB2)", "1e7", 0.207),
        Reported("pre-encoder", "loss", 4.41, f"{_E7}encoder alone (Pre_AB2)", "1e7", 0.636),
        Reported("pre", "loss", 9.42, f"{_E7}both (the model is not named)", "1e7", 6.11),
    ),
    "Fig. 8 b) and 19",
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer studies 0.9 and 0.10."""
    register("0.9", lambda: SAME)
    register("0.10", lambda: CAPTURED)
