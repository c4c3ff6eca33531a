"""The recombination study: arms, resume, and a table whose figures can be checked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small import data_set, quick

import compatkit as ck
from compatkit_studies.recombination import (
    ARMS,
    INCREMENTAL,
    SELF_SUPERVISED,
    measure,
    regularizers,
    run,
    train,
)
from compatkit_studies.report import accuracies, write_report

SETTINGS: dict[str, Any] = {
    "pair": "small",
    "backbone": "resnet8_cifar",
    "split": "layer2",
    "size": [16, 16],
    "train": 48,
    "test": 48,
    "steps": 2,
    "batch_size": 8,
}


def tasks() -> list[ck.Task]:
    return [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
        for seed, name in enumerate(("left", "right"))
    ]


def cell(extractor: str, head: str, accuracy: float, policy: str = "batch") -> dict[str, Any]:
    return {
        "extractor": extractor,
        "head": head,
        "policy": policy,
        "accuracy": accuracy,
        "chance": 0.1,
        "grade": "none",
    }


def test_every_arm_names_the_plugins_it_says() -> None:
    assert {arm: regularizers(arm) for arm in (*ARMS, *INCREMENTAL)} == {
        "none": [],
        "iiw": ["identical_init"],
        "rp": ["rotation_prediction"],
        "dcc": ["dcc"],
        "iiw+rp": ["identical_init", "rotation_prediction"],
        "iiw+dcc": ["identical_init", "dcc"],
        "rp+dcc": ["rotation_prediction", "dcc"],
        "iiw+rp+dcc": ["identical_init", "rotation_prediction", "dcc"],
        "incremental": ["identical_init", "rotation_prediction", "dcc"],
        "incremental-back": ["identical_init", "rotation_prediction", "dcc"],
        "incremental-batch": ["identical_init", "rotation_prediction", "dcc"],
    }
    assert {arm: regularizers(arm) for arm in SELF_SUPERVISED} == {
        "jigsaw": ["jigsaw"],
        "iiw+jigsaw": ["identical_init", "jigsaw"],
        "contrastive": [ck.use("contrastive", flip=False)],
        "iiw+contrastive": ["identical_init", ck.use("contrastive", flip=False)],
        "colourisation": ["colourisation"],
        "iiw+colourisation": ["identical_init", "colourisation"],
    }


@pytest.mark.parametrize("arm", ["none", "incremental-back", "incremental-batch"])
def test_an_arm_is_trained_published_and_measured_under_every_policy(arm: str) -> None:
    rows = measure(train(arm, tasks(), quick(steps=1)), tasks())
    assert {(row["extractor"], row["head"], row["policy"]) for row in rows} == {
        (left, right, policy)
        for left in ("left", "right")
        for right in ("left", "right")
        for policy in ("batch", "reestimate", "running")
    }


def test_a_stopped_study_goes_on_where_it_was(tmp_path: Path) -> None:
    first = run(tmp_path, tasks, ["none"], [0], SETTINGS)

    def never() -> list[ck.Task]:
        raise AssertionError("nothing is missing, so no data is loaded")

    assert run(tmp_path, never, ["none"], [0], SETTINGS) == first
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 1


def test_the_table_gives_means_over_seeds_and_directions(tmp_path: Path) -> None:
    def one(seed: int, ab: float, ba: float) -> dict[str, Any]:
        cells = [cell("a", "a", 0.9), cell("b", "b", 1.0), cell("a", "b", ab), cell("b", "a", ba)]
        cells += [cell("a", "b", 0.2, policy) for policy in ("running", "reestimate")]
        return {"arm": "dcc", "seed": seed, "settings": SETTINGS, "seconds": 1.0, "cells": cells}

    runs = [one(0, 0.5, 0.7), one(1, 0.7, 0.9)]
    assert accuracies(runs[0], "batch", own=False) == [0.5, 0.7]
    text = write_report(tmp_path, runs, ["dcc"], SETTINGS, "command", "machine")
    # Own (.9 + 1) / 2; recombined per seed .6 and .8: mean .7, standard deviation .1414.
    assert (
        "| dcc | 0.950 ± 0.000 | **0.700 ± 0.141** | 0.600 ± 0.141 | 0.800 ± 0.141 | 0.200 ± 0.000 |" in text
    )
    assert (tmp_path / "figure.png").stat().st_size > 1000
