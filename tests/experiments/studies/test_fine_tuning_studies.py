"""Studies of fine-tuning: controls keep what they are to keep, the theory's limits, and every study at a tiny size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from small import data_set, write_pack

from compatkit.data.dataset import DataSet, Split
from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import StudyData
from compatkit_plugins.metrics.theory_transfer import Transfer
from compatkit_studies._fine_tuning import (
    TASK,
    deviation,
    few,
    moved,
    permuted,
    pretrain,
    random_weights,
    rank_correlation,
    source,
    tune,
)
from compatkit_studies.pretraining_epochs import noisy
from compatkit_studies.pretraining_tasks import KINDS, colors
from compatkit_studies.transfer_theory import Pair, predicted, trained
from compatkit_studies.weight_deviations import changed

DIGITS = tuple("0123456789")
TINY: dict[str, Any] = {
    **{
        "image": 16,
        "source_train": 40,
        "source_steps": 4,
        "few": 20,
        "test": 20,
        "steps": 4,
        "batch_size": 10,
    }
}


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packs of noise in place of the data sets."""
    folder = tmp_path_factory.mktemp("noise")
    for seed, name in enumerate(("mnist", "usps", "fashion_mnist")):
        write_pack(folder, data_set(name, count=100, classes=DIGITS, seed=seed))
    write_pack(folder, data_set("cifar10", count=100, channels=3, classes=DIGITS, seed=3))
    names = tuple(name for kind in KINDS.values() for name in kind)
    for name in ("svhn", "stl10"):
        write_pack(folder, data_set(name, count=100, channels=3, classes=DIGITS, seed=5))
    write_pack(folder, data_set("cifar100", count=180, channels=3, classes=names, seed=4))
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of class folders, as torchvision's ImageFolder takes them, of photos of noise."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for name in ("imagenet", "cub", "cars"):
        for split, each in (("train", 8), ("val", 4)):
            for place in (folder / name / split / label for label in ("ant", "bee")):
                place.mkdir(parents=True)
                for number in range(each):
                    pixels = random.integers(0, 255, (40, 50, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


def run_of(noise: Path, number: str = "4.1", arm: str = "tuned", **changes: Any) -> Run:
    settings = {**settings_of(find(number), "cpu"), **TINY, **changes}
    return Run(number, arm, 0, settings, StudyData(number, str(noise)))


def figures(
    folder: Path, number: str, noise: Path, arms: tuple[str, ...] = (), **changes: Any
) -> dict[str, dict[str, float]]:
    result = carry_out(number, folder, seeds=1, data=str(noise), arms=arms, changes={**TINY, **changes})
    made: dict[str, dict[str, float]] = {}
    for row in result["results"]:
        made.setdefault(row["arm"], {})[row["metric"]] = row["values"][0]
    return made


def test_random_weights_keep_the_norm_of_each_filter_and_no_direction(noise: Path) -> None:
    run = run_of(noise)
    own = source(run.settings, run.load("mnist"), 0)
    weights = pretrain(run, run.settings, own)
    drawn = random_weights(run, run.settings, own, weights, 0)
    assert drawn.keys() == weights.keys()
    for name, weight in weights.items():
        if weight.ndim > 1:
            rows, others = (tensor.flatten(1) for tensor in (weight, drawn[name]))
            torch.testing.assert_close(others.norm(dim=1), rows.norm(dim=1))
            assert not torch.equal(weight, drawn[name])
        else:
            assert torch.equal(weight, drawn[name])


def test_a_fixed_network_moves_its_class_layer_alone(noise: Path) -> None:
    run = run_of(noise)
    data = few(run.settings, run.load("usps"), 0)
    weights = pretrain(run, run.settings, source(run.settings, run.load("mnist"), 0))
    fit, start = (tune(run, run.settings, data, weights, fixed=True, steps=steps) for steps in (4, 0))
    table = moved(fit.tasks[TASK], start, len(data.train))
    by_layer = {name: deviation(table, name) for name in table.axes["layer"]}
    assert by_layer["fc"] == by_layer["total"] > 0
    assert not any(value for name, value in by_layer.items() if name not in ("fc", "total"))


def test_permuted_labels_keep_images_and_counts(noise: Path) -> None:
    data = run_of(noise).load("mnist")
    mixed = permuted(data, 0)
    assert mixed.train.counts == data.train.counts and mixed.test is data.test
    assert np.array_equal(mixed.train.read(range(9)), data.train.read(range(9)))
    assert not np.array_equal(mixed.train.labels, data.train.labels)


def test_noise_takes_its_share_of_labels(noise: Path) -> None:
    data = run_of(noise).load("mnist")
    assert np.array_equal(noisy(data, 0.0, 0).train.labels, data.train.labels)
    assert 0 < (noisy(data, 0.3, 0).train.labels != data.train.labels).sum() <= 30
    # a tenth of labels drawn from ten classes are right by chance; 100 draws: a deviation of .03
    assert abs((noisy(data, 1.0, 0).train.labels != data.train.labels).mean() - 0.9) < 0.12


def test_rank_correlation_is_spearmans_and_undefined_without_an_order() -> None:
    left, right = [3.0, 1.0, 1.0, 7.0], [2.0, 5.0, 0.0, 9.0]
    assert rank_correlation(left, right) == pytest.approx(stats.spearmanr(left, right)[0])
    assert rank_correlation(left, [1.0] * 4) is None


def test_inverted_and_rotated_images(noise: Path) -> None:
    data = run_of(noise).load("mnist")
    images = data.train.read(range(5))
    assert np.array_equal(changed(data, "inverted").train.read(range(5)), 255 - images)
    turned = changed(data, "rotated").train.read(range(5))
    assert turned.shape == images.shape and turned.dtype == np.uint8 and not np.array_equal(turned, images)


def test_colors_are_ten_hues_of_the_upper_half_of_equal_frequency() -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 255, (200, 8, 8, 3)).astype(np.uint8)
    images[:, :4] = draw.integers(0, 255, (200, 1, 1, 3))
    splits = [
        Split(images.copy(), np.zeros(200, dtype=np.int64), ("one",), f"x/{part}")
        for part in ("train", "test")
    ]
    result = colors(DataSet("x", *splits))
    assert result.train.counts == (20,) * 10
    images[:, 4:] = 0
    below = colors(
        DataSet("x", *(Split(images, splits[0].labels, ("one",), f"x/{p}") for p in ("train", "test")))
    )
    assert np.array_equal(below.train.labels, result.train.labels)


def spheres(count: int = 8) -> tuple[Pair, Pair]:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(2, count, 6))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    return (rows[0], np.sign(rows[0, :, 0])), (rows[1], np.sign(rows[1, :, 0]))


def test_the_predicted_distance_tends_to_the_bound() -> None:
    source, target = spheres()
    bounds = Transfer(source[0], target[0]).bounds(source[1][:, None], target[1][:, None])
    assert predicted({"steps": 10**6}, source, target) == pytest.approx(bounds.bound, rel=1e-6)
    assert predicted({"steps": 10**6}, None, target) == pytest.approx(bounds.scratch, rel=1e-6)
    assert predicted({"steps": 20}, source, target) < bounds.bound


def test_a_wide_network_moves_as_far_as_predicted_and_a_narrow_one_does_not() -> None:
    source, target = spheres()

    def apart(width: int) -> float:
        settings = {"width": width, "steps": 20, "kappa": 0.01}
        return abs(trained(settings, 0, source, target) / predicted(settings, source, target) - 1)

    assert apart(20_000) < 0.05 < apart(20)


def test_deviation_and_error_by_target(tmp_path: Path, noise: Path) -> None:
    result = figures(tmp_path, "4.1", noise, ("tuned", "fixed"))
    tuned = result["tuned"]
    names = [
        name.removeprefix("error-") for name in tuned if name.startswith("error-") and tuned[name] is not None
    ]
    errors, deviations = ([tuned[f"{what}-{name}"] for name in names] for what in ("error", "deviation"))
    assert len(names) == 5 and tuned["mean-error"] == pytest.approx(np.mean(errors))
    assert tuned["correlation"] == pytest.approx(stats.spearmanr(errors, deviations)[0])
    assert result["fixed"]["mean-deviation"] < tuned["mean-deviation"]
    assert (tmp_path / "scatter.png").stat().st_size > 1000


def test_gain_is_paired_with_the_run_from_scratch(tmp_path: Path, noise: Path) -> None:
    result = figures(tmp_path, "4.9", noise, ("scratch", "mnist"))
    assert result["scratch"]["gain"] == 0
    gained = result["mnist"]["accuracy"] - result["scratch"]["accuracy"]
    assert result["mnist"]["gain"] == pytest.approx(gained)
    layers = sum(result["mnist"][f"deviation-{name}"] for name in ("conv1", "conv2", "dense"))
    assert result["mnist"]["deviation"] == pytest.approx(layers)


def test_stages_of_pretraining_are_versions_and_the_best_is_read_from_evidence(
    tmp_path: Path, noise: Path
) -> None:
    noise_20 = figures(tmp_path, "4.12", noise, ("noise-20",), epochs=[1, 2, 3, 4, 5])["noise-20"]
    targets = [noise_20[f"target-{place}"] for place in range(1, 6)]
    assert targets[int(noise_20["best"]) - 1] == max(targets)
    assert noise_20["rise"] == pytest.approx(targets[2] - targets[0])
    assert noise_20["fall"] == pytest.approx(targets[2] - targets[4])


@pytest.mark.slow
class TestEachStudyRuns:
    def test_from_scratch(self, tmp_path: Path, noise: Path) -> None:
        assert figures(tmp_path, "4.2", noise, ("scratch",))["scratch"]["mean-deviation"] > 0

    def test_along_training(self, tmp_path: Path, noise: Path) -> None:
        result = figures(tmp_path, "4.3", noise, ("usps", "usps-permuted"), points=4)
        assert all(0 <= match["rising"] <= 1 and match["deviation"] > 0 for match in result.values())
        assert (tmp_path / "curves.png").exists()

    def test_curvature(self, tmp_path: Path, noise: Path) -> None:
        small = {"settle": 2, "examples": 20, "count": 2, "steps": 60, "every": 1, "points": 3}
        for number, name in (("4.4", "largest-0.3"), ("4.5", "deviation-start")):
            pretrained = figures(tmp_path / number, number, noise, ("pretrained",), **small)["pretrained"]
            assert pretrained[name] > 0 and pretrained["loss-0.3"] <= 0.3

    def test_places(self, tmp_path: Path, noise: Path) -> None:
        result = figures(tmp_path, "4.6", noise, ("shared-random", "own-random"))
        assert result["shared-random"]["nearest"] == 1 and result["shared-random"]["ratio"] < 0.5
        assert result["own-random"]["ratio"] == pytest.approx(1, abs=0.05)

    def test_gradients(self, tmp_path: Path, noise: Path) -> None:
        small = {"settle": 2, "examples": 20, "every": 2, "points": 3}
        scratch = figures(tmp_path / "7", "4.7", noise, ("scratch",), **small)["scratch"]
        assert scratch["gradient-start"] > 0 and scratch["fixed-mean"] > 0
        scratch = figures(tmp_path / "8", "4.8", noise, ("scratch",), model="resnet8_cifar", **small)[
            "scratch"
        ]
        assert scratch["growth-start"] > 0 and scratch["share-end"] > 0

    def test_labels_and_kinds(self, tmp_path: Path, noise: Path) -> None:
        assert "gain" in figures(tmp_path / "10", "4.10", noise, ("colours",))["colours"]
        small = {"source_train": 36, "few": 24, "test": 24}
        trained = figures(tmp_path / "11", "4.11", noise, ("trained",), **small)["trained"]
        own = trained["animals-on-animals"] + trained["things-on-things"]
        across = trained["animals-on-things"] + trained["things-on-animals"]
        assert trained["own-kind"] == pytest.approx((own - across) / 2)

    @pytest.mark.parametrize("number", [f"4.{place}" for place in range(1, 13)])
    def test_the_papers_size_on_little_data(self, number: str, tmp_path: Path, noise: Path) -> None:
        study = find(number).study
        own: dict[str, Any] = {
            **{"source_train": 36, "source_steps": 1, "few": 12, "test": 12, "steps": 2, "batch_size": 6},
            **{"settle": 1, "examples": 6, "count": 1, "points": 2, "every": 1, "epochs": [1, 2, 3, 4, 5]},
        }
        changes = {name: value for name, value in own.items() if name in study.sizes["paper"]}
        arms = study.arms[1:2]
        if number == "4.3":
            arms = ("svhn",)
        rows = carry_out(
            number, tmp_path, seeds=1, size="paper", data=str(noise), arms=arms, changes=changes
        )["results"]
        assert any(row["values"][0] is not None for row in rows)

    @pytest.mark.parametrize("number", ["4.1", "4.4", "4.7"])
    def test_imagenets_size_on_small_photos(self, number: str, tmp_path: Path, photos: Path) -> None:
        study = find(number).study
        own: dict[str, Any] = {
            **{"model": "resnet10t", "image": 32, "layers": ["stem.0"], "count": 1, "points": 2},
            **{"source_steps": 1, "steps": 2, "batch_size": 4, "settle": 1, "examples": 4, "every": 1},
        }
        changes = {name: value for name, value in own.items() if name in study.sizes["imagenet"]}
        result = carry_out(
            number,
            tmp_path,
            seeds=1,
            size="imagenet",
            data=str(photos),
            arms=study.arms[:1],
            changes=changes,
        )
        values = {row["metric"]: row["values"][0] for row in result["results"]}
        if number == "4.1":  # the others are not there
            assert {name for name in values if name.startswith("error-")} == {"error-cars", "error-cub"}
        assert any(value is not None for value in values.values())

    def test_methods(self, tmp_path: Path, noise: Path) -> None:
        result = figures(tmp_path, "tuning", noise, ("plain", "delta", "two-layer"), few=100, batch_size=10)
        assert all(0 <= match["random"] <= 1 and match["deviation"] > 0 for match in result.values())

    def test_theory(self, tmp_path: Path, noise: Path) -> None:
        small = {"count": 20, "width": 64, "steps": 5}
        rows = carry_out("4.13", tmp_path, seeds=1, data=str(noise), arms=("usps",), changes=small)["results"]
        first = {row["metric"]: row["values"][0] for row in rows}
        assert first["bound-ratio"] == pytest.approx(first["bound"] / first["bound-scratch"])
