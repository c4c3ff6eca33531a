"""A manifest in words: what is said of bridges, as far as they say it themselves."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from sample_components import extractor, maps

from compatkit.reports.contracts import _training, summary

WHOLE = {
    "rung": "ridge3x3",
    "agreement": 0.8125,
    "held_out": 1500,
    "seconds": 1.256,
    "says": "fit",
    "paired_on": {"images": 2000},
}


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (
            {"data": {"name": "a/train", "damaged": 3}},
            {"trained on": "a/train, 3 damaged images left out"},
        ),
        ({"method": "ridge", "residual": 0.4734}, {"fitted by": "ridge, 47.3% of the variance left"}),
        (
            {
                "method": "ridge",
                "residual": 0.4734,
                "seconds": 0.049,
                "data": {"name": "a/train", "images": 1000},
                "agreement": 1.0,
                "held_out": 500,
            },
            {
                "trained on": "a/train",
                "fitted by": "ridge, on 1,000 images, in 0.05 s, 47.3% of the variance left",
                "agreement": "1.000 with the head's own network on 500 held-out images",
            },
        ),
        (
            {"method": "finetune", "agreement": 0.25, "seconds": 3},
            {"fitted by": "finetune, in 3.00 s", "agreement": "0.250 with the head's own network"},
        ),
        (
            {"bridge": WHOLE},
            {
                "bridged by": "ridge3x3, on 2,000 images, in 1.26 s",
                "agreement": "0.812 with the head's own network on 1,500 held-out images: fit",
            },
        ),
        ({"bridge": "?", "method": 3, "residual": 0.1, "agreement": "much", "data": 7}, {}),
        ({"method": "own"}, {}),
    ],
)
def test_what_is_recorded_of_a_bridge_is_told(training: dict[str, Any], expected: dict[str, str]) -> None:
    manifest = attrs.evolve(extractor(maps(4)), training=training)
    bare = summary(attrs.evolve(manifest, training={}))
    assert {label: text for label, text in summary(manifest).items() if label not in bare} == expected


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({}, "step 200, the last"),
        ({"weights": "averages"}, "moving averages at step 200, the last"),
        (
            {"stopped": {"steps": 60, "weights_of_step": 40}},
            "step 40, the best evaluation; early stopping ended the run after 60 of 200 steps",
        ),
        (
            {"stopped": {"steps": 60, "weights_of_step": 60}},
            "step 60, the last; early stopping ended the run after 60 of 200 steps",
        ),
        (
            {"stopped": {"steps": 200, "weights_of_step": 40}, "weights": "averages"},
            "moving averages at step 40, the best evaluation",
        ),
    ],
)
def test_of_which_step_the_weights_are(recorded: dict[str, Any], expected: str) -> None:
    assert _training({"steps": 200, "seed": 1, **recorded})["weights"] == expected
