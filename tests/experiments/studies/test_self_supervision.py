"""Study 3.12: arms, a run on images in color, and what gray images leave out."""

from __future__ import annotations

from pathlib import Path

from small import data_set, write_pack

import compatkit as ck
from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import StudyData
from compatkit_studies.self_supervision import ARMS, regularizers

TINY = {"model": "resnet8_cifar", "train": 48, "test": 48, "steps": 1, "batch_size": 8}


def run_of(arm: str, size: str = "cpu") -> Run:
    return Run("3.12", arm, 0, settings_of(find("3.12"), size), StudyData("3.12"))


def test_every_arm_names_the_plugins_it_says() -> None:
    result = {arm: regularizers(run_of(arm, "halves")) for arm in ARMS}
    assert {arm: [use.name for use in uses] for arm, uses in result.items()} == {
        "none": [],
        "rp": ["rotation_prediction"],
        "jigsaw": ["jigsaw"],
        "contrastive": ["contrastive"],
        "colourisation": ["colorization"],
        "iiw": ["identical_init"],
        "iiw+rp": ["identical_init", "rotation_prediction"],
        "iiw+jigsaw": ["identical_init", "jigsaw"],
        "iiw+contrastive": ["identical_init", "contrastive"],
        "iiw+colourisation": ["identical_init", "colorization"],
    }
    assert regularizers(run_of("contrastive")) == [ck.use("contrastive", flip=False)]


def test_colors_of_digits_are_left_out_and_puzzles_of_them_are_measured(tmp_path: Path) -> None:
    for seed, name in enumerate(("mnist", "usps")):
        write_pack(tmp_path, data_set(name, seed=seed))
    result = carry_out(
        "3.12",
        tmp_path / "out",
        seeds=1,
        arms=["jigsaw", "colourisation"],
        changes=TINY,
        data=str(tmp_path),
    )
    values = {(row["arm"], row["metric"]): row["values"] for row in result["results"]}
    assert values.get(("colourisation", "recombined"), [None]) == [None]
    (accuracy,) = values["jigsaw", "recombined"]
    assert 0 <= accuracy <= 1
    assert any("gray" in note for note in result["notes"])
