"""Similarity and the number of samples: when does Procrustes, or CKA, say too much?

Paper: Bonheme and Grzes 2023, Sec. 2.3, Fig. 1: matrices of 50 features of which 80 %, 50 % and none are shared; both
    agree for the first two, Procrustes overestimates the last with few examples. Curves only.
Here: the same, exactly, with Gaussian features. ``cka`` is biased, as in the paper; ``unbiased`` is not.
Control: ``none-shared`` itself, whose true similarity is 0.

    compatkit study run 2.1 --seeds 5 --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._curves import along_measures
from ._vaes import REFERENCE

SHARED = {"most-shared": 0.8, "half-shared": 0.5, "none-shared": 0.0}
COUNTS = (100, 200, 500, 1000, 2000, 5000)
METRICS = {"cka": "cka/biased", "unbiased": "cka", "procrustes": "procrustes"}


def run(run: Run) -> Outcome:
    """Measure all similarities for growing numbers of samples."""
    width = run.settings["features"]
    shared = round(SHARED[run.arm] * width)
    draw = np.random.default_rng(run.seed)
    first, second = (draw.standard_normal((max(COUNTS), width)) for _ in range(2))
    second[:, :shared] = first[:, :shared]
    values: dict[str, float | None] = {}
    for count in COUNTS:
        measured = ck.similarity({"a": first[:count]}, {"b": second[:count]}, ["cka", "procrustes"])
        for name, table in METRICS.items():
            values[f"{name}-{count}"] = measured.table(table).at(this="a", other="b").value
    return Outcome(values=values)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw each similarity by the number of samples, as the paper's Fig. 1."""
    return {
        name: along_measures(
            results,
            [f"{name}-{count}" for count in COUNTS],
            list(map(str, COUNTS)),
            "samples",
            f"{name} similarity",
        )
        for name in METRICS
    }


STUDY = Study(
    title="similarity and the number of samples",
    question="How many samples do CKA and Procrustes need to say that features have nothing in common?",
    reference=f"{REFERENCE} Sec. 2.3, Fig. 1",
    arms=tuple(SHARED),
    measures=tuple(
        Measure(name=f"{name}-{count}", title=f"{name}, {count:,} samples", better="none", drawn=False)
        for name in METRICS
        for count in COUNTS
    ),
    sizes={"cpu": {"features": 50}, "paper": {"features": 50}},
    scale={"cpu": "", "paper": ""},
    paper=(),  # curves without numbers
    run=run,
    draw=draw,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 2.1."""
    register("2.1", lambda: STUDY)
