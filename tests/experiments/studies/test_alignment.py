"""Studies 1.2 to 1.6: what their arms train and measure, figures by hand, and, slow, what they must show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick, write_pack

import compatkit as ck
from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import StudyData
from compatkit_studies import covariance_transfer, eigenvector_tables
from compatkit_studies._alignment import learned, misaligned, seen_by
from compatkit_studies.patch_eigenvectors import agreement, patch_moments
from compatkit_studies.transfer_curves import laddered, shape_of

DENSE: dict[str, Any] = {"networks": 2, "epochs": 1, "batch_size": 16}
TINY: dict[str, dict[str, Any]] = {
    "1.2": {
        **DENSE,
        "vectors": 64,
        "widths": [40, 8],
        "images": 32,
        "filters": 40,
        "units": 4,
        "image_epochs": 1,
    },
    "1.3": {**DENSE, "half": 30, "sampled": 60, "images": 32, "image": 12, "filters": 40},
    "1.4": {
        **DENSE,
        "vectors": 64,
        "wide": [40, 8],
        "narrow": [40, 8],
        "images": 40,
        "filters": [20, 4],
        "image_epochs": 1,
    },
    "1.5": {
        "upstream": 30,
        "downstream": 30,
        "test": 10,
        "filters": 30,
        "units": 4,
        "steps": 4,
        "batch_size": 8,
    },
    "1.6": {
        "upstream": 30,
        "train": 30,
        "test": 10,
        "measured": 10,
        "init_images": 8,
        "units": 4,
        "steps": [1, 2],
        "batch_size": 8,
        "pretrain_steps": 1,
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of noise in place of CIFAR-10."""
    folder = tmp_path_factory.mktemp("data")
    write_pack(folder, data_set("cifar10", channels=3, size=(32, 32), count=72))
    return folder


def run_of(data: Path, study: str, arm: str, **changes: Any) -> Run:
    settings = settings_of(find(study), "cpu", {**TINY[study], **changes})
    return Run(study, arm, 0, settings, StudyData(study, str(data)))


@pytest.mark.parametrize(
    ("study", "arms"),
    [
        ("1.2", ["cifar-real"]),
        pytest.param("1.3", ["shuffled", "filters"], marks=pytest.mark.slow),
        pytest.param("1.4", ["right", "stride-2"], marks=pytest.mark.slow),
        pytest.param("1.5", ["pretrained", "covariance"], marks=pytest.mark.slow),
    ],
)
def test_runs_give_all_measures_and_pictures(data: Path, tmp_path: Path, study: str, arms: list[str]) -> None:
    result = carry_out(study, tmp_path, seeds=1, arms=arms, data=str(data), changes=TINY[study])
    measures = {row["metric"] for row in result["results"]}
    every = {measure.name for measure in find(study).study.measures}
    assert measures == every
    assert sum(name.endswith(".png") for name in result["files"]) >= 2
    assert all((tmp_path / name).stat().st_size > 1000 for name in result["files"] if name.endswith(".png"))


@pytest.mark.parametrize("arm", ["middle-12", "random-labels-1"])
def test_tables_measure_after_each_number_of_iterations(data: Path, arm: str) -> None:
    outcome = eigenvector_tables.run(run_of(data, "1.6", arm))
    assert set(outcome.values) == {"train-1", "test-1", "train-2", "test-2"}


def test_arms_of_the_tables_initialize_the_layers_of_their_digits() -> None:
    (_, use) = eigenvector_tables.uses_of("middle-12", 100)
    assert use.settings["layers"] == ["blocks.0.conv", "blocks.1.conv"]
    assert use.settings["skip"] == {"blocks.0.conv": 3, "blocks.1.conv": 9}
    (_, use) = eigenvector_tables.uses_of("white-1", 100)
    matrix = np.array(use.settings["covariances"]["blocks.0.conv"])
    assert matrix == pytest.approx(np.eye(27) / 27)  # filters of norm 1 on average, as eigenvectors have
    assert [entry.name for entry in eigenvector_tables.uses_of("default", 100)] == ["scaled_init"]


def test_an_upstream_run_is_made_once_for_all_arms_of_a_seed(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(data, "1.5", "pretrained")
    task = ck.Task(
        "net", data_set("net"), "simple_cnn", "blocks.0", size=12, kwargs={"convolutions": 1, "units": 4}
    )
    weights, norms = covariance_transfer.upstream(run, task)
    assert set(norms) == {"blocks.0.conv", "dense", "fc"}
    assert covariance_transfer.upstream(run_of(data, "1.5", "covariance"), task)[0] is weights
    assert covariance_transfer.upstream(run_of(data, "1.5", "covariance", steps=5), task)[0] is not weights
    assert len(covariance_transfer._KNOWN) == 1
    scratch = covariance_transfer.started(run_of(data, "1.5", "scratch"), task, task)
    assert (scratch[0], [entry.name for entry in scratch[1]]) == (task, ["scaled_init"])


def test_filters_are_kept_before_the_first_step_and_on_the_way() -> None:
    task = ck.Task(
        "a", data_set("a"), "simple_cnn", "blocks.0", size=12, kwargs={"convolutions": 1, "units": 4}
    )
    layer = "blocks.0.conv"
    drawn = ck.use("scaled_init", layers={layer: 0.1})
    fit, saved = learned(quick(steps=4), task, layer, [drawn], 2)
    assert list(saved) == [0, 2, 4]
    start = quick(steps=0).fit([task], [drawn]).weights("a")[f"{layer}.weight"]
    assert torch.equal(saved[0], start)
    assert torch.equal(saved[4], fit.weights("a")[f"{layer}.weight"])
    assert not torch.equal(saved[2], saved[4])
    plain = quick(steps=4).fit([task], [drawn]).weights("a")
    assert torch.equal(plain[f"{layer}.weight"], saved[4])  # keeping them changes nothing


def test_what_a_layer_sees_is_what_the_metric_sees() -> None:
    task = ck.Task(
        "a", data_set("a"), "simple_cnn", "blocks.0", size=12, kwargs={"convolutions": 1, "units": 4}
    )
    fit = quick(steps=0).fit([task])
    layer = "blocks.0.conv"
    covariance = seen_by(fit, layer)
    measured = ck.measure(
        fit.tasks["a"], task.data.train, ["transfer_function", "misalignment"], layers=[layer]
    )
    sigma = measured.table("transfer_function").values[0, 0]
    values = torch.linalg.eigvalsh(covariance).flip(0).sqrt().numpy()
    assert values == pytest.approx(sigma, rel=1e-4)
    data, random = misaligned(covariance, fit.weights("a")[f"{layer}.weight"])
    table = measured.table("misalignment")
    assert data == pytest.approx(table.at(layer=layer, network="this", basis="data").value, rel=1e-4)
    assert random == pytest.approx(table.at(layer=layer, network="this", basis="random").value, rel=0.2)


# The ladder


def test_rungs_keep_what_they_say() -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (60, 32, 32, 3)).astype(np.uint8)
    images[:, :10] //= 4  # dark at the top
    whole = laddered(images, "stride-3", draw)
    assert whole.shape == (60, 27, 27, 3)
    # 0 to 255 stood for -1 to 1 and now stand for -3 to 3.
    middle = images[:, 2:29, 2:29].astype(float) / 127.5 - 1
    assert np.abs(whole / 127.5 - 1 - middle / 3).max() < 1 / 255 + 1e-9
    permuted = laddered(images, "patches-permuted", draw)
    for row, column in ((0, 0), (3, 6), (24, 24)):
        patch = np.s_[:, row : row + 3, column : column + 3]
        before, after = (item[patch].reshape(60, -1) for item in (whole, permuted))
        assert sorted(map(tuple, before.tolist())) == sorted(map(tuple, after.tolist()))
        assert not np.array_equal(before, after)
    spread = {
        arm: laddered(images, arm, draw)[:, :3].std() / laddered(images, arm, draw)[:, 18:].std()
        for arm in ("patches-normal", "patches-position", "stride-3")
    }
    assert spread["patches-position"] == pytest.approx(spread["stride-3"], abs=0.12)
    assert spread["patches-normal"] == pytest.approx(1, abs=0.05)


def test_the_shape_of_a_curve_by_hand() -> None:
    sigma = np.arange(1.0, 9.0)
    risen = shape_of(sigma, np.array([1, 2, 3, 4, 4.5, 4, 3, 2.0]))
    assert risen == pytest.approx({"rise": 1, "fall": -1, "peak": 4 / 7, "ratio": 4.5, "detour": 0})
    # 1 3 2 4: up 2, down 1, up 2 where 3 would do.
    assert shape_of(sigma[:4], np.array([1.0, 3, 2, 4]))["detour"] == pytest.approx(5 / 3 - 1)


# Eigenvectors


def test_agreement_by_hand() -> None:
    turn = torch.eye(14, dtype=torch.float64)
    cos, sin = 0.8, 0.6
    turn[:2, :2] = torch.tensor([[cos, -sin], [sin, cos]])
    values = torch.arange(14.0, 0, -1, dtype=torch.float64)
    result = agreement(torch.diag(values), turn @ torch.diag(values) @ turn.T)
    assert result["cosines"] == pytest.approx([0.8, 0.8, *[1] * 12])
    assert result["spaces"] == pytest.approx([0.8, *[1] * 11])  # the plane of the first two is the same


def test_moments_of_patches_of_images() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 7, 6, 3)).astype(np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(images / 127.5 - 1, (5, 5), (1, 2)).reshape(-1, 75)
    assert patch_moments(images).covariance.numpy() == pytest.approx(np.cov(windows.T, bias=True), abs=1e-6)
    assert patch_moments(images, 2).count == 6


# What must show, at the size that the command takes


def five_seeds(
    study: str, tmp_path: Path, arms: list[str], data: str | None = None
) -> dict[tuple[str, str], list[float]]:
    result = carry_out(study, tmp_path, seeds=5, arms=arms, data=data)
    return {(row["arm"], row["metric"]): row["values"] for row in result["results"]}


@pytest.mark.slow
def test_filters_of_gaussian_data_are_aligned_and_those_of_white_data_are_not(tmp_path: Path) -> None:
    result = five_seeds("1.2", tmp_path, ["gaussian", "white"])
    assert max(result["gaussian", "pooled-ratio"]) < 0.5
    assert min(result["white", "pooled-ratio"]) > 0.8


@pytest.mark.slow
def test_the_curve_of_gaussian_data_rises(tmp_path: Path) -> None:
    result = five_seeds("1.4", tmp_path, ["right", "white"])
    assert min(result["right", "rise"]) > 0.6
    assert min(result["right", "ratio"]) > max(result["white", "ratio"])


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_strong_directions_help_and_weak_ones_hurt_at_100_iterations(tmp_path: Path, packs: Path) -> None:
    arms = ["default", "f2-123", "smallest-123"]
    result = five_seeds("1.6", tmp_path, arms, data=str(packs))
    default, strong, weak = (np.array(result[arm, "test-100"]) for arm in arms)
    assert (strong > default).all()
    assert (default > weak).all()
