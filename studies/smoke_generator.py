"""Smoke, super-resolved: does a generator trained with the reverse pass recover its input from its image?

Paper: "Reviving Autoencoder Pretraining", Sec. 4, Fig. 8 a), C.2: 16x16 smoke to 64x64, adversarial. RR_A recovers the
    input by the reverse pass "without modifications", Std_A gives a black image, Pre_A does not learn the distribution.
Here: the same with smoke that is simulated here; the relative error of the recovered input (1 is a black image).
Control: ``other-error``, what was recovered compared with the input of another frame, must be no better than black.
    ``untrained`` is a generator before its first step, whose random layers are nearly orthogonal.

    compatkit study run 0.8 --seeds 5 --out OUT
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import image_grid
from compatkit_plugins.regularizers.reverse_pass.full import reconstruct  # pyright: ignore[reportMissingImports]

from ._arms import REFERENCE, SECONDS
from ._smoke import (
    GENERATOR,
    PAPER,
    SCALE,
    A,
    averages,
    correlation,
    enlarged,
    few,
    generated,
    generator,
    pixels,
    relative,
    shown,
    tested,
)


def run(run: Run) -> Outcome:
    """Train a generator, enlarge test frames, and walk back from what it made."""
    began = time.perf_counter()
    fit = generator(run, "rr" if run.arm == "untrained" else run.arm, 0 if run.arm == "untrained" else None)
    seconds = round(time.perf_counter() - began, 2)
    images = pixels(tested(run, A))
    (state,) = fit.tasks.values()
    with torch.no_grad():
        again = torch.cat([reconstruct((state.extractor, state.head), part) for part in images.split(100)])
    inputs, back, outputs = averages(images), averages(again), generated(fit, images)
    # The frame that lies half the test set away, another simulation.
    other = inputs.roll(len(inputs) // 2, 0)
    values: dict[str, float | None] = {
        "input-error": relative(back, inputs),
        "input-correlation": correlation(back, inputs),
        "other-error": relative(back, other),
        "brightness": float(back.double().mean() / inputs.double().mean()),
        "output-error": relative(outputs, images),
        SECONDS.name: seconds,
    }
    pictures = {"again": back, "made": outputs} | (
        {"input": inputs, "truth": images} if run.arm == "std" else {}
    )
    return Outcome(
        values=values,
        figure_data={name: few(picture) for name, picture in pictures.items()} if run.seed == 0 else {},
    )


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw inputs with what each arm recovers of them, and the images that it makes, of the first seed."""
    runs = {
        arm: next((run for run in results.figure_data(arm) if "made" in run), None) for arm in results.arms
    }
    known: dict[str, Any] = {arm: run for arm, run in runs.items() if run is not None}
    first = known.get("std")
    if first is None:
        return {}
    low = {"input": enlarged(shown(first["input"]))}
    back = low | {arm: enlarged(shown(run["again"])) for arm, run in known.items()}
    outputs = low | {arm: shown(run["made"]) for arm, run in known.items()}
    return {
        "recovered": image_grid(back, low=0, high=255),
        "generated": image_grid({**outputs, "reference": shown(first["truth"])}, low=0, high=255),
    }


STUDY = Study(
    title="smoke generator in reverse",
    question="Does a super-resolution generator that was trained with the full reverse pass recover its input from the "
    "image that it made, where a plain one gives black?",
    reference=f"{REFERENCE}, Sec. 4, Fig. 8 a), C.2",
    arms=("std", "pre", "rr", "untrained"),
    measures=(
        Measure(
            name="input-error", title="relative error of the recovered input (1 is black)", better="lower"
        ),
        Measure(name="input-correlation", title="correlation of the recovered input"),
        Measure(
            name="other-error",
            title="relative error against another frame's input",
            better="none",
            drawn=False,
        ),
        Measure(
            name="brightness",
            title="mean of the recovered input over the input's",
            better="none",
            drawn=False,
        ),
        Measure(name="output-error", title="relative error of the image", better="lower"),
        SECONDS,
    ),
    sizes={"cpu": GENERATOR, "paper": PAPER},
    scale={"cpu": f"{SCALE.format(**GENERATOR)}; 200 test frames.", "paper": f"{SCALE.format(**PAPER)}."},
    paper=(),  # figure 8 a) shows images without numbers
    run=run,
    draw=draw,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 0.8."""
    register("0.8", lambda: STUDY)
