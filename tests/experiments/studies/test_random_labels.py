"""Studies of random labels: disjoint images, equal starts, the permuted control, and every study at a tiny size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, write_pack

from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import StudyData
from compatkit_studies._random_labels import TASK, compare, finetune, permuted, pretrain, subsets
from compatkit_studies.transfer_scatter import RANGES, configuration

SMALL = {"convolutions": 1, "filters": 4, "units": 8}
TINY: dict[str, Any] = {
    "kwargs": SMALL,
    "image": 12,
    "up": 40,
    "down": 40,
    "test": 30,
    "batch_size": 20,
    "epochs_up": 2,
    "epochs_down": 2,
    "points": 2,
    "classes_up": 4,
}


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    """A pack of noise in place of CIFAR-10."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_pack(folder, data_set("cifar10", count=96, channels=3, classes=tuple("0123456789")))
    return folder


def run_of(noise: Path, number: str = "1.1", arm: str = "positive", **changes: Any) -> Run:
    settings = {**settings_of(find(number), "cpu"), **TINY, **changes}
    return Run(number, arm, 0, settings, StudyData(number, str(noise)))


def test_upstream_and_downstream_images_are_disjoint(noise: Path) -> None:
    run = run_of(noise)
    up, down = subsets(run, run.settings)
    seen = {entry.tobytes() for entry in up.train.read(range(40))}
    assert len(up.train) == len(down.train) == 40
    assert not any(entry.tobytes() in seen for entry in down.train.read(range(40)))


def test_the_starts_differ_in_the_transferred_layers_alone(noise: Path) -> None:
    run = run_of(noise, init_scale=0.7)
    up, down = subsets(run, run.settings)
    before = pretrain(run, run.settings, up)
    # A run of the least rate is its start, to rounding.
    still = {**run.settings, "lr": 1e-30}
    scratch = finetune(run, still, down, "real", None).weights(TASK)
    after = finetune(run, still, down, "real", before).weights(TASK)
    assert torch.equal(after["fc.weight"], scratch["fc.weight"])
    for name in ("blocks.0.conv", "dense"):
        weight = after[f"{name}.weight"]
        assert not torch.equal(weight, scratch[f"{name}.weight"])
        assert float(weight.norm()) == pytest.approx(before.norms[name], rel=1e-5)
        cosine = torch.cosine_similarity(weight.flatten(), before.weights[f"{name}.weight"].flatten(), dim=0)
        assert float(cosine) == pytest.approx(1.0, abs=1e-5)


def test_the_control_keeps_the_numbers_of_each_layer_and_no_order(noise: Path) -> None:
    run = run_of(noise)
    before = pretrain(run, run.settings, subsets(run, run.settings)[0])
    mixed = permuted(before, 0)
    for name, value in before.weights.items():
        assert torch.equal(mixed.weights[name].flatten().sort().values, value.flatten().sort().values)
    assert not torch.equal(mixed.weights["dense.weight"], before.weights["dense.weight"])
    assert torch.equal(mixed.weights["dense.bias"], before.weights["dense.bias"])


def test_configurations_follow_from_the_seed_and_fill_their_ranges() -> None:
    drawn = [configuration(RANGES, seed) for seed in range(200)]
    assert configuration(RANGES, 3) == drawn[3]
    scales = np.array([item["init_scale"] for item in drawn])
    assert 0.5 <= scales.min() < 0.55 and 1.25 < scales.max() <= 1.35
    # log-uniform: as many below the geometric mean of the ends as above it; 200 draws: a deviation of .035
    assert abs((scales < np.sqrt(0.5 * 1.35)).mean() - 0.5) < 0.12
    assert {item["classes_up"] for item in drawn} == set(RANGES["classes"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pretraining_on_random_labels_makes_real_labels_faster_and_its_permuted_layers_do_not(
    packs: Path,
) -> None:
    """On CIFAR-10, at five seeds; the setting of the paper's experiments 1 and 2 on few images."""
    few = {"up": 500, "down": 500, "test": 100, "epochs_up": 40, "epochs_down": 15, "points": 5}
    settings = {**settings_of(find("1.1"), "cpu"), **few, "init_scale": 0.526}
    data = StudyData("1.1", str(packs))
    gains, controls = [], []
    for seed in range(5):
        values, _ = compare(Run("1.1", "positive", seed, settings, data), settings, ("real",))
        gains.append(values["real-gain"] or 0.0)
        controls.append(values["real-control"] or 0.0)
    assert min(gains) > 0.03 and max(controls) < min(gains), (gains, controls)


def test_gain_and_control_are_paired_with_the_run_from_scratch(noise: Path) -> None:
    run = run_of(noise, epochs_up=1, epochs_down=1)
    values, curves = compare(run, run.settings, ("random",))
    result = {name: value or 0.0 for name, value in values.items()}
    assert result["random-gain"] == pytest.approx(result["random-pretrained"] - result["random-scratch"])
    assert result["random-control"] == pytest.approx(result["random-permuted"] - result["random-scratch"])
    assert curves.keys() == {"random-scratch", "random-pretrained", "random-permuted"}


def figures(
    folder: Path, number: str, packs: Path, arms: tuple[str, ...], **changes: Any
) -> dict[str, dict[str, float]]:
    result = carry_out(number, folder, seeds=1, data=str(packs), arms=arms, changes={**TINY, **changes})
    made: dict[str, dict[str, float]] = {}
    for row in result["results"]:
        made.setdefault(row["arm"], {})[row["metric"]] = row["values"][0]
    return made


class TestEachStudyRuns:
    @pytest.mark.slow
    def test_transfer(self, tmp_path: Path, noise: Path) -> None:
        positive = figures(tmp_path / "out", "1.1", noise, ("positive",))["positive"]
        assert positive["real-gain"] == pytest.approx(positive["real-pretrained"] - positive["real-scratch"])
        assert positive["random-control"] == pytest.approx(
            positive["random-permuted"] - positive["random-scratch"]
        )
        assert (tmp_path / "out" / "curves.png").stat().st_size > 1000

    def test_activity(self, tmp_path: Path, noise: Path) -> None:
        for figure in figures(tmp_path / "out", "1.10", noise, ("negative", "unswitched")).values():
            assert figure["dense-drop"] == pytest.approx(figure["dense-before"] - figure["dense-after"])
            assert all(0 <= figure[f"{name}-before"] <= 1 for name in ("first", "dense"))

    @pytest.mark.slow
    def test_layers(self, tmp_path: Path, noise: Path) -> None:
        result = figures(tmp_path / "out", "1.7", noise, ("pretrained", "permuted"), layers=[0, 1, 2])
        pretrained = result["pretrained"]
        assert pretrained["real-gain"] == pytest.approx(pretrained["real-2"] - pretrained["real-0"])
        assert pretrained["real-least"] == pytest.approx(
            min(pretrained["real-1"] - pretrained["real-0"], pretrained["real-2"] - pretrained["real-1"])
        )
        # without transferred layers nothing is left of pretraining
        assert result["permuted"]["real-0"] == pretrained["real-0"]

    @pytest.mark.slow
    def test_width(self, tmp_path: Path, noise: Path) -> None:
        units = {"narrow": 4, "middle": 6, "wide": 8}
        assert set(figures(tmp_path / "out", "1.8", noise, ("narrow", "wide"), units=units)) == {
            "narrow",
            "wide",
        }

    @pytest.mark.slow
    def test_scatter(self, tmp_path: Path, noise: Path) -> None:
        ranges = {
            "ups": [30, 40],
            "lengths": [1, 2],
            "convolutions": [1],
            "units": [4],
            "filters": [2],
            "classes": [2],
        }
        result = figures(tmp_path / "out", "1.9", noise, ("real", "random"), **ranges)
        for arm in ("real", "random"):
            assert result[arm]["faster"] == float(result[arm]["pretrained"] > result[arm]["scratch"])
        assert (tmp_path / "out" / "scatter.png").stat().st_size > 1000
