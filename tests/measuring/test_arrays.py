"""Metrics of plain arrays from Python: the same figures as in a pass, settings, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import compatkit as ck
from compatkit.errors import CompatkitError


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_two_networks_outputs_are_compared_as_by_similarity() -> None:
    a, b = drawn(30, 4), drawn(30, 6, seed=1)
    for name in ("cka", "procrustes", "svcca", "mutual_neighbors"):
        measured, wanted = ck.measure_arrays(name, a, b), ck.similarity({"array": a}, {"array": b}, [name])
        assert {key: value.to_json() for key, value in measured.items()} == {
            key: value.to_json() for key, value in wanted.items()
        }
    by_layer = ck.measure_arrays("cka", {"first": a, "last": b}, {"first": torch.from_numpy(b)})
    assert by_layer.table("cka").axes == {"this": ("first", "last"), "other": ("first",)}


def test_a_score_of_features_and_labels_with_a_setting() -> None:
    labels = np.arange(60) % 3
    features = drawn(60, 4)
    features[:, 0] += labels
    centered = features - features.mean(0)
    means = np.stack([centered[labels == label].mean(0) for label in labels])
    wanted = np.trace(np.linalg.solve(centered.T @ centered, means.T @ means))
    measured = ck.measure_arrays("h_score", features, labels, shrinkage="none")
    assert measured.table("h_score").at(layer="array", labels="as given").value == pytest.approx(wanted)
    assert dict(measured.settings) == {"metric": "h_score", "shrinkage": "none"}
    made = ck.metrics.make_metric("h_score", shrinkage="none")
    assert ck.measure_arrays(made, features, labels)["h_score"].to_json() == measured["h_score"].to_json()


def test_minibatches_of_arrays() -> None:
    measured = ck.measure_arrays("minibatch_cka", drawn(32, 4), drawn(32, 4, seed=1), batch_size=8)
    assert "4 of 8" in measured["minibatch_cka"].estimator


REFUSED: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "too few arrays": (lambda: ck.measure_arrays("cka", drawn(9, 2)), "usage", "cka"),
    "no metric of this name": (
        lambda: ck.measure_arrays("ckaa", drawn(9, 2)),
        "unknown-name",
        "metrics.ckaa",
    ),
    "no metric": (lambda: ck.measure_arrays(3, drawn(9, 2)), "usage", 3),  # type: ignore[arg-type]
    "a metric that runs a network": (
        lambda: ck.measure_arrays("reconstruction", drawn(9, 2)),
        "usage",
        "Reconstruction",
    ),
    "settings of a metric that is made": (
        lambda: ck.measure_arrays(ck.metrics.make_metric("svcca"), drawn(9, 2), drawn(9, 2), share=0.5),
        "usage",
        "share",
    ),
    "a setting that is none": (
        lambda: ck.measure_arrays("svcca", drawn(9, 2), drawn(9, 2), share=2),
        "plugin",
        "metrics.svcca",
    ),
    "no batch": (
        lambda: ck.measure_arrays("cka", drawn(9, 2), drawn(9, 2), batch_size=0),
        "usage",
        "batch_size",
    ),
    "other samples": (lambda: ck.measure_arrays("cka", drawn(9, 2), drawn(8, 2)), "data", "array"),
    "labels that are no whole numbers": (
        lambda: ck.measure_arrays("logme", drawn(9, 2), drawn(9)),
        "data",
        "array",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str) -> None:
    act, code, subject = REFUSED[what]
    with pytest.raises(CompatkitError) as caught:
        act()
    assert (caught.value.code, caught.value.subject) == (code, subject)
