"""Twelve bits on a sphere: information of each layer about the input and the label.

Paper: "Reviving Autoencoder Pretraining", Sec. 3, Fig. 4 and 15, B.1: mutual-information planes of six dense layers
    after training on task A, and after further training without regularizer on A or B (labels exchanged). No numbers.

The paper's Pre_A minimizes only the reconstruction loss: ``pre`` takes no step on the labels of A, so its class layer
stays random. ``pre-supervised`` trains on them after the autoencoders.

    compatkit study run 0.3 --out OUT
"""

from __future__ import annotations

import numpy as np

import compatkit as ck
from compatkit.errors import TrainingError
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import information_plane

from ._arms import REFERENCE, accuracy
from ._sphere import LAYERS, SETTINGS, first_stage, second_stage, whole

A, B = "sphere-rule", "sphere-rule-swapped"
STAGES = ("a", "aa", "ab")
"""After A with the arm's regularizer; then after A again, and after B, without it."""
Plane = list[list[float]]
"""I(X;D) and I(D;Y) in bits, layer by layer."""


def plane(fit: ck.Fit, split: ck.Split) -> Plane:
    """Return the plane of the only network of a fit on all patterns.

    Args:
        fit: Fit of one task.
        split: All 4,096 patterns, each once.

    Raises:
        TrainingError: A layer's information is undefined.
    """
    (state,) = fit.tasks.values()
    measured = ck.measure(state, split, ["mutual_information_plane"], layers=LAYERS, batch_size=4096)
    table = measured.table("mutual_information_plane/information")
    if np.isnan(table.values).any():
        raise TrainingError(f"The information of a layer of {state.name} is undefined: {table!r:.300}.")
    return table.values.tolist()


def run(run: Run) -> Outcome:
    """Train A, AA and AB, and measure the plane of each."""
    first = first_stage(run)
    fits = {"a": (first, A), "aa": (second_stage(run, first, A), A), "ab": (second_stage(run, first, B), B)}
    planes = {name: plane(fit, whole(run.load(task))) for name, (fit, task) in fits.items()}
    return Outcome(
        values={**_values(planes["a"]), "a": accuracy(first, run.load(A).test)},
        figure_data={"planes": planes},
    )


def _values(plane: Plane) -> dict[str, float]:
    known = [label for _, label in plane]
    return {
        **{f"i-x-d{layer}": about_input for layer, (about_input, _) in enumerate(plane, 2)},
        **{f"i-d{layer}-y": label for layer, (_, label) in enumerate(plane, 2)},
        "input-2-4": sum(about_input for about_input, _ in plane[:3]) / 3,
        "label-range": max(known) - min(known),
    }


def draw(results: Results) -> dict[str, bytes]:
    """Draw a plane per stage: one line per arm through its layers, D2 to D7."""
    names = [f"D{number}" for number in range(2, 2 + len(LAYERS))]
    return {
        f"plane-{stage}": information_plane(
            {
                arm: [np.array(run["planes"][stage]) for run in results.figure_data(arm)]
                for arm in results.arms
            },
            max_information=12,
            layers=names,
        )
        for stage in STAGES
    }


def _measures() -> tuple[Measure, ...]:
    numbers = range(2, 2 + len(LAYERS))
    return (
        Measure(name="input-2-4", title="I(X;D), mean of D2 to D4", better="none", unit="bits"),
        Measure(name="label-range", title="I(D;Y), range over the layers", better="none", unit="bits"),
        Measure(name="a", title="test accuracy on A"),
        *(
            Measure(name=f"i-x-d{n}", title=f"I(X;D{n})", better="none", drawn=False, unit="bits")
            for n in numbers
        ),
        *(
            Measure(name=f"i-d{n}-y", title=f"I(D{n};Y)", better="none", drawn=False, unit="bits")
            for n in numbers
        ),
    )


STUDY = Study(
    title="mutual-information planes",
    question="Does a reverse pass make all layers know about as much of the input and of the label, where plain "
    "training gives up the input layer by layer and layer-wise pretraining the label?",
    reference=f"{REFERENCE}, Sec. 3, Fig. 4 and 15, B.1",
    arms=("std", "ort", "pre", "pre-supervised", "rr", "rr-first", "rr-local"),
    measures=_measures(),
    sizes={name: {**settings, "rr": 1.0} for name, settings in SETTINGS.items()},
    scale={
        "cpu": "1,000 steps of Adam at .003 where the authors take 8,000 epochs at .0004; the paper shows planes "
        "without numbers, and does not say the weights of its losses.",
        "paper": "the paper shows planes without numbers, and does not say the weights of its losses.",
    },
    paper=(),
    run=run,
    extends="std",
    draw=draw,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 0.3."""
    register("0.3", lambda: STUDY)
