"""Study 3.9: pairs of domains, a run of each kind, and what the paper reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import data_set, write_pack

import compatkit as ck
from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import StudyData
from compatkit_studies.domain_adaptation import of_common_classes, pair

TINY: dict[str, Any] = {
    "model": "resnet8_cifar",
    "train": 48,
    "test": 48,
    "steps": 2,
    "batch_size": 8,
    "adapt_steps": 2,
    "image": 16,
}
OURS, THEIRS = ("airplane", "automobile", "frog"), ("airplane", "car", "monkey")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Packs of noise in place of the real data sets, but for STL-10."""
    for seed, name in enumerate(("mnist", "usps")):
        write_pack(tmp_path, data_set(name, seed=seed))
    write_pack(tmp_path, data_set("cifar10", channels=3, count=96, classes=OURS))
    return tmp_path


def run_of(data: Path, arm: str, **changes: Any) -> Run:
    return Run(
        "3.9", arm, 0, settings_of(find("3.9"), "cpu", {**TINY, **changes}), StudyData("3.9", str(data))
    )


@pytest.mark.parametrize("arm", ["mnist-usps", "cifar10-shifted"])
def test_an_arm_gives_its_measures_and_a_picture(data: Path, tmp_path: Path, arm: str) -> None:
    result = carry_out("3.9", tmp_path / "out", seeds=1, arms=[arm], data=str(data), changes=TINY)
    assert {row["metric"] for row in result["results"]} == {
        measure.name for measure in find("3.9").study.measures
    }
    assert all(0 <= value <= 1 for row in result["results"] for value in row["values"])
    assert (tmp_path / "out" / "adaptation.png").exists() and result["notes"] == []


def test_the_paper_s_pair_is_left_out_where_there_is_no_stl10(data: Path, tmp_path: Path) -> None:
    result = carry_out("3.9", tmp_path / "out", seeds=1, arms=["stl10-cifar10"], data=str(data), changes=TINY)
    assert result["results"] == []
    (note,) = result["notes"]
    assert "STL-10 is not there" in note and "stl10.npz" in note


def test_the_paper_s_pair_keeps_the_classes_in_common(data: Path) -> None:
    write_pack(data, data_set("stl10", seed=3, channels=3, size=(24, 24), classes=THEIRS))
    for arm, classes in (
        ("cifar10-stl10", [OURS[:2], THEIRS[:2]]),
        ("stl10-cifar10", [THEIRS[:2], OURS[:2]]),
    ):
        result = pair(run_of(data, arm))
        assert result is not None and [match.classes for match in result] == classes
        # 32 of 48 images are of two of three classes: as many as there are, though 48 are asked for.
        assert sorted(len(match.train) for match in result) == [32, 48]


def test_images_of_other_classes_are_dropped_and_labels_follow() -> None:
    data, other = data_set("a", classes=("x", "y", "z"), count=9), data_set("b", classes=("z", "w", "x"))
    saved = of_common_classes(data, other)
    assert saved.classes == ("x", "z") and saved.train.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert np.array_equal(saved.train.images, data.train.images[[0, 2, 3, 5, 6, 8]])
    assert of_common_classes(data, data) is data


def test_source_and_target_of_one_data_set_have_no_image_in_common(data: Path) -> None:
    run = run_of(data, "cifar10-shifted", train=0, test=0)
    source, target = pair(run) or pytest.fail("no pair")
    assert (source.name, target.name) == ("plain", "shifted")
    plain, other = run.load("cifar10").halves()
    assert source.train.digest == plain.train.digest
    assert not {image.tobytes() for image in plain.train.images} & {
        image.tobytes() for image in other.train.images
    }


def test_what_the_paper_reports_stands_apart_as_printed() -> None:
    study = find("3.9").study
    rows = {(source.arm, source.metric): source.value for source in study.paper}
    assert {source.unit for source in study.paper} == {"%"} and all(
        "Table 1" in source.source for source in study.paper
    )
    table = {
        "cifar10-stl10": (77.2, 82.0, 82.6),
        "stl10-cifar10": (52.9, 71.3, 73.1),
        "mean-of-both": (65.1, 76.7, 77.9),
    }
    for arm, values in table.items():
        assert tuple(rows[arm, name] for name in ("source", "source-bn", "adapted")) == values
    # Means of the printed figures, but for rounding: 77.85 became 77.9.
    for name in ("source", "source-bn", "adapted"):
        both = [rows[arm, name] for arm in ("cifar10-stl10", "stl10-cifar10")]
        assert sum(both) / 2 == pytest.approx(rows["mean-of-both", name], abs=0.051)


def test_the_size_of_the_paper_has_its_settings() -> None:
    settings = settings_of(find("3.9"), "paper")
    assert (settings["model"], settings["batch_size"], settings["steps"], settings["every"]) == (
        "wide_resnet28_16_cifar",
        64,
        70_000,
        20_000,
    )
    schedule = ck.Schedule(every=settings["every"])
    assert settings["lr"] * schedule.at(69_999, 70_000) == pytest.approx(settings["adapt_lr"]) == 1e-5
    assert (settings["weight_decay"], settings["adapt_weight_decay"], settings["adapt_steps"]) == (
        5e-4,
        0.0,
        1000,
    )
