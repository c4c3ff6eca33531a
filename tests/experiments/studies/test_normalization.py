"""Studies 3.4 and 3.5: what each arm trains and measures, at a tiny size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small import data_set, write_pack

import compatkit as ck
from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import StudyData
from compatkit_studies.normalization import ARMS, PRIORS, policies_of, regularizers

TINY = {"model": "resnet8_cifar", "train": 48, "test": 48, "steps": 1, "batch_size": 8}
ESTIMATED = {"recombined", "reestimated", "running", *PRIORS}


@pytest.fixture
def packs(tmp_path: Path) -> Path:
    """Packs of noise in place of the real data sets."""
    folder = tmp_path / "data"
    folder.mkdir()
    for seed, name in enumerate(("mnist", "usps", "fashion-mnist")):
        write_pack(folder, data_set(name, seed=seed, count=96))
    return folder


def rows(folder: Path, number: str, packs: Path, **more: Any) -> dict[str, dict[str, float]]:
    result = carry_out(number, folder, seeds=1, data=str(packs), changes=TINY, **more)
    made: dict[str, dict[str, float]] = {}
    for row in result["results"]:
        made.setdefault(row["arm"], {})[row["metric"]] = row["values"][0]
    return made


def run_of(arm: str) -> Run:
    return Run("3.4", arm, 0, settings_of(find("3.4"), "cpu"), StudyData("3.4"))


def test_what_is_mixed_is_counted_in_test_images() -> None:
    assert policies_of("iiw+dcc", 2000) == {
        "batch": "recombined",
        "reestimate": "reestimated",
        "running": "running",
        "mix:500": "mix-quarter",
        "mix:2000": "mix-equal",
        "mix:8000": "mix-four",
    }
    assert policies_of("layer-norm", 2000) == {"batch": "recombined"}


def test_all_arms_but_the_first_have_both_methods() -> None:
    both = [ck.use("identical_init", class_layer="identical"), "dcc"]
    assert [regularizers(run_of(arm)) for arm in ARMS] == [[], *[both] * 5, [*both, "unit_features"]]


def test_arms_are_measured_under_every_policy_that_matters(tmp_path: Path, packs: Path) -> None:
    arms = ["instance-norm", "unit-layer-image"]
    result = rows(tmp_path / "out", "3.4", packs, arms=arms)
    beside = {"own", "one-way", "other-way", "all-outputs", "chance"}
    assert {arm: set(match) - beside for arm, match in result.items()} == {
        "instance-norm": {"recombined"},
        "unit-layer-image": ESTIMATED,
    }
    assert (tmp_path / "out" / "policies.png").stat().st_size > 5000


def test_correlations_and_accuracies_stand_side_by_side(tmp_path: Path, packs: Path) -> None:
    result = rows(tmp_path / "out", "3.5", packs, arms=["none", "iiw"])
    assert set(result["none"]) == {
        *("direct", "direct-absolute", "matched", "shuffled", "constant"),
        *("recombined", "own", "chance"),
    }
    # A step from equal weights: much the same features; from others, hardly any in common.
    assert result["iiw"]["direct"] > result["none"]["direct"] + 0.3
    for arm in result.values():
        assert arm["matched"] >= arm["direct"] and arm["direct-absolute"] >= abs(arm["direct"])
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {
        "figure.png",
        "channels.png",
        "accuracy.png",
    }


def test_correlations_are_those_of_networks_from_one_pretrained_one(tmp_path: Path, packs: Path) -> None:
    changes = {**TINY, "pretrain_steps": 1}
    result = carry_out(
        "3.5", tmp_path / "out", seeds=1, data=str(packs), changes=changes, arms=["iiw-pretrained+dcc"]
    )
    values = {row["metric"]: row["values"][0] for row in result["results"]}
    assert values["direct"] > 0.3  # one step from equal weights
    assert {source["arm"] for source in result["paper"]} <= set(find("3.5").study.arms)
