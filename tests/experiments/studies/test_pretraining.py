"""Studies 0.1 to 0.7 through their door, in small samples; the five-seed runs with what they must show are slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, write_pack

import compatkit as ck
from compatkit.experiments.studies import find, numbers
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import _sort_key
from compatkit_studies._arms import half_sum, regularizers
from compatkit_studies._features import to_pixels
from compatkit_studies._sphere import whole
from compatkit_studies.digit_images import chosen

TWELVE = {"steps": 2, "short_steps": 2, "pre_steps": 1}
SAMPLES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "0.1": ({"steps": 2, "pre_steps": 1, "widths": [4]}, ("std", "ort", "pre", "rr")),
    "0.1b": ({"steps": 2, "hidden": 4}, ("std", "rr-local")),
    "0.2": ({"steps": 2}, ("std", "ort", "rr")),
    "0.3": (TWELVE, ("std", "rr")),
    "0.4": (TWELVE, ("std", "ort", "pre", "rr", "rr-first", "rr-local")),
    "0.6": (
        {"steps": 1, "pre_steps": 1, "batch_size": 4, "image": 16, "channels": [2, 2]},
        ("std", "ort", "pre", "rr"),
    ),
    "0.7": (
        {"steps": 1, "batch_size": 4, "train": 12, "test": 12, "model": "resnet8_cifar"},
        ("std", "ort", "rr-local"),
    ),
}
"""Settings of a sample, and the arms that it takes."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Packs of noise in place of the real data sets."""
    classes = tuple("0123456789")
    write_pack(tmp_path, data_set("mnist", classes=classes, size=(28, 28)))
    write_pack(tmp_path, data_set("cifar10", classes=classes, size=(32, 32), channels=3))
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {"classes": np.array([f"class{place}" for place in range(16)])}
    for kind, count in (("cue_conflict", 128), ("edges", 16), ("silhouettes", 16)):
        arrays[f"{kind}_x"] = draw.integers(0, 255, (count, 16, 16, 3)).astype(np.uint8)
        arrays[f"{kind}_shape"] = np.arange(count) % 16
    np.savez(tmp_path / "cue_conflict_16.npz", **arrays)
    return tmp_path


@pytest.mark.parametrize("number", SAMPLES)
def test_every_arm_of_a_study_runs(data: Path, tmp_path: Path, number: str) -> None:
    changes, arms = SAMPLES[number]
    result = carry_out(number, tmp_path / "out", seeds=1, arms=arms, data=str(data), changes=changes)
    measured = {row["metric"] for row in result["results"]}
    study = find(number).study
    missing = {measure.name for measure in study.measures} - measured
    assert missing == ({"cifar10.1"} if number == "0.7" else set())
    assert {row["arm"] for row in result["results"]} == set(arms) <= set(study.arms)
    assert all((tmp_path / "out" / name).exists() for name in result["files"])
    assert (result["notes"] != []) == (number == "0.7")


def test_a_network_of_one_layer_is_not_pretrained(tmp_path: Path) -> None:
    changes = {"steps": 2, "widths": []}
    result = carry_out("0.1", tmp_path, seeds=1, arms=["std", "pre"], changes=changes)
    assert {row["arm"] for row in result["results"]} == {"std"} and "one layer" in result["notes"][0]
    alone = carry_out("0.1", tmp_path, seeds=1, arms=["pre"], changes=changes)
    assert alone["results"] == [] and "singular-vectors.png" not in alone["files"]


def test_variants_of_a_study_follow_it() -> None:
    ours = [entry for entry in numbers() if entry.startswith("0.")]
    assert ours == ["0.1", "0.1b", *(f"0.{number}" for number in range(2, 12))]
    mixed = ["mylab.1", "0.10", "3.1", "0.9", "0.1b", "0.1", "10.1"]
    assert sorted(mixed, key=_sort_key) == ["0.1", "0.1b", "0.9", "0.10", "3.1", "10.1", "mylab.1"]


def test_all_studies_are_on_the_page() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "how_to" / "studies.md").read_text()
    for number in numbers():
        assert f"| {number} | {find(number).study.title} |" in text


def test_half_a_sum_of_squares_is_so_many_means() -> None:
    """The authors' weight on half the sum, and ours on the mean, of the same differences."""
    draw = torch.Generator().manual_seed(0)
    differences = {"a": torch.randn(5, 7, generator=draw), "b": torch.randn(5, 3, generator=draw)}
    theirs = 0.25 * 0.5 * sum(difference.square().sum() for difference in differences.values())
    weights = half_sum(0.25, 5, {name: difference.shape[1] for name, difference in differences.items()})
    ours = sum(weights[name] * difference.square().mean() for name, difference in differences.items())
    torch.testing.assert_close(ours, theirs)


def test_arms_name_their_plugins() -> None:
    settings = {"ort": 0.1, "rr": 2.0, "pre_steps": 3, "pre_lr": 0.1, "batch_size": 4}
    assert regularizers("std", settings) == []
    for arm, name, weight in (("ort", "orthogonality", 0.1), ("rr", "reverse_pass", 2.0)):
        (use,) = regularizers(arm, settings)
        assert (use.name, use.weight) == (name, weight)
    variants = {
        arm: regularizers(arm, settings)[0].settings["variant"] for arm in ("rr", "rr-local", "rr-first")
    }
    assert variants == {"rr": "full", "rr-local": "local", "rr-first": "first"}
    (pre,) = regularizers("pre", settings)
    assert (pre.name, dict(pre.settings)) == (
        "layerwise_autoencoder",
        {"steps": 3, "lr": 0.1, "batch_size": 4},
    )


def test_chosen_images_are_of_different_digits_and_follow_the_seed(data: Path) -> None:
    mnist = ck.data.load("mnist", root=data)
    for count in (2, 10):
        sets = [chosen(mnist, count, seed) for seed in (0, 0, 1)]
        assert [len(set(entry.train.labels.tolist())) for entry in sets] == [count] * 3
        assert sets[0].train.digest == sets[1].train.digest != sets[2].train.digest


def test_pictures_are_whole_numbers_with_the_largest_positive() -> None:
    assert to_pixels([-2.0, 1.0, 0.0, 0.5], (2, 2)) == [[127, -64], [0, -32]]
    assert to_pixels([0.0, 0.0], (1, 2)) == [[0, 0]]


def test_all_patterns_are_there_once() -> None:
    split = whole(ck.data.load("sphere-rule"))
    assert len({image.tobytes() for image in split.images}) == len(split) == 4096


def _means(result: dict[str, Any], metric: str) -> dict[str, float]:
    return {row["arm"]: float(np.mean(row["values"])) for row in result["results"] if row["metric"] == metric}


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_peaks_are_in_the_weights_after_a_reverse_pass_and_not_else(tmp_path: Path) -> None:
    result = carry_out("0.1", tmp_path, seeds=5, arms=("std", "ort", "rr"))
    energy = _means(result, "energy")
    assert energy["rr"] > 0.4 and energy["rr"] > 4 * max(energy["std"], energy["ort"]), energy


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_active_singular_values_become_one(tmp_path: Path) -> None:
    outcome = carry_out("0.1b", tmp_path, seeds=5)
    for metric in ("sigma-1", "sigma-2"):
        row = next(
            result
            for result in outcome["results"]
            if result["arm"] == "rr-local" and result["metric"] == metric
        )
        assert np.allclose(row["values"], 1, atol=0.05), row
    assert _means(outcome, "energy")["rr-local"] > 0.9


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_layers_keep_less_of_the_input_after_a_reverse_pass(tmp_path: Path) -> None:
    result = carry_out("0.3", tmp_path, seeds=5, arms=("std", "rr"))
    known = _means(result, "input-2-4")
    assert known["rr"] < known["std"], known


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_transfer_of_twelve_bits_is_measured(tmp_path: Path) -> None:
    """Whether RR helps on B is reported, not asserted: see docs/results."""
    result = carry_out("0.4", tmp_path, seeds=5, arms=("std", "rr"))
    for metric in ("aa", "ab", "ab-short"):
        means = _means(result, metric)
        print(metric, means)
        assert min(means.values()) > 0.6


def test_no_study_tells_a_template_in_the_place_of_its_words() -> None:
    for number in numbers():
        study = find(number).study
        texts = [study.title, study.question, study.reference, *study.scale.values()]
        texts += [measure.title for measure in study.measures] + [source.source for source in study.paper]
        assert not [text for text in texts if "{" in text or "}" in text], number
