"""Studies of variational autoencoders at a tiny size: all run, keep networks and draw; the paper's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compatkit.errors import UsageError
from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import StudyData
from compatkit_studies import _vaes
from compatkit_studies.learning_order import MOMENTS
from compatkit_studies.probe_tables import STUDIES

TINY: dict[str, Any] = {
    **{"image": 16, "latent": 3, "images": 60, "samples": 40, "steps": 2, "batch_size": 8},
}

SLOW = pytest.mark.slow


def run_of(number: str, arm: str, seed: int = 0, **changes: Any) -> Run:
    settings = {**settings_of(find(number), "cpu"), **TINY, **changes}
    return Run(number, arm, seed, settings, StudyData(number))


def carried(number: str, out: Path, *arms: str, **changes: Any) -> dict[str, Any]:
    known = settings_of(find(number), "cpu")
    small = {name: value for name, value in TINY.items() if name in known}
    return carry_out(number, out, seeds=1, arms=arms, changes={**small, **changes})


def values(result: dict[str, Any]) -> dict[tuple[str, str], float | None]:
    return {(row["arm"], row["metric"]): row["values"][0] for row in result["results"]}


def test_similarity_of_matrices_is_the_share_of_common_features(tmp_path: Path) -> None:
    result = values(carried("2.1", tmp_path))
    for arm, share in (("most-shared", 0.8), ("half-shared", 0.5), ("none-shared", 0.0)):
        assert result[arm, "unbiased-5000"] == pytest.approx(share, abs=0.02)
    # Procrustes says more than CKA of unrelated features, by less with more samples
    gaps = [
        result["none-shared", f"procrustes-{count}"] - result["none-shared", f"cka-{count}"]
        for count in (100, 5000)
    ]
    assert gaps[0] > gaps[1] > 0
    assert result["none-shared", "procrustes-100"] > 0.5


@pytest.mark.parametrize(
    ("number", "arms", "changes"),
    [
        pytest.param("2.2", ("dip-5",), {}, marks=SLOW),
        ("2.3", ("beta-50",), {}),
        pytest.param("2.4", ("classifier",), {}, marks=SLOW),
        pytest.param("2.5", ("retrained", "shuffled"), {"retrain_steps": 1}, marks=SLOW),
        ("2.6", ("fixed", "latents"), {"retrain_steps": 1, "stages": [2]}),
        pytest.param("2.7", ("sprites-solids", "solids-solids"), {}, marks=SLOW),
        ("2.8", ("solids-sprites",), {"train": 40, "test": 20, "probes": ["logistic"]}),
        pytest.param("2.12", ("dense",), {}, marks=SLOW),
    ],
)
def test_every_study_measures_and_draws(
    tmp_path: Path, number: str, arms: tuple[str, ...], changes: dict[str, Any]
) -> None:
    result = carried(number, tmp_path / "out", *arms, networks=str(tmp_path / "vaes"), **changes)
    remote = {row["arm"] for row in result["results"] if row["values"][0] is not None}
    assert remote == set(arms)
    assert all((tmp_path / "out" / name).stat().st_size > 0 for name in result["files"])
    assert all("/train" in "".join(images) for images in result["data"])
    if number == "2.6":
        assert values(result)["fixed", "own"] == values(result)["latents", "own"]


def test_digests_of_drawn_images_are_recorded_and_held_against_later_runs(tmp_path: Path) -> None:
    run = run_of("2.5", "fixed")
    data = _vaes.data_of(run, "sprites")
    assert run.digests() == {item.name: item.digest for item in (data.train, data.test)}
    later = Run(
        "2.5", "fixed", 0, run.settings, StudyData("2.5", recorded_digests={"sprites/train": "data:other"})
    )
    with pytest.raises(UsageError) as message:
        _vaes.data_of(later, "sprites")
    assert message.value.code == "usage"


def test_controls_say_nothing(tmp_path: Path) -> None:
    result = values(carried("2.5", tmp_path, "shuffled", samples=60))
    assert abs(result["shuffled", "encoder"]) < 0.15
    shuffled = values(carried("2.7", tmp_path / "r2", "sprites-shuffled", images=300))
    assert all(value is None or value < 0.1 for (_, _), value in shuffled.items())


def test_kept_networks_are_those_that_training_gives(tmp_path: Path) -> None:
    alone = _vaes.train(run_of("2.5", "fixed"), "sprites")
    keeping = run_of("2.5", "fixed", networks=str(tmp_path / "vaes"))
    for _ in range(2):
        again = _vaes.train(keeping, "sprites")
        for name, value in _vaes.weights_after(alone).items():
            assert torch.equal(value, _vaes.weights_after(again)[name])
    assert len(list((tmp_path / "vaes").iterdir())) == 1
    _vaes.train(keeping, "sprites", seed=1)
    assert len(list((tmp_path / "vaes").iterdir())) == 2


def test_sampled_variables_of_two_networks_share_no_noise() -> None:
    run = run_of("2.3", "beta-50", images=400)
    images = _vaes.data_of(run, "sprites").train
    both = [_vaes.rows(_vaes.untrained(run, "sprites", seed=seed), images) for seed in (0, 1)]
    noise = [side["sampled"] - side["mean"] for side in both]
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.15
    assert np.array_equal(both[0]["sampled"], _vaes.rows(_vaes.untrained(run, "sprites"), images)["sampled"])


def test_snapshots_are_the_weights_on_the_way(tmp_path: Path) -> None:
    run = run_of("2.2", "dip-5", steps=10)
    from compatkit_studies.learning_order import Snapshots

    watch = Snapshots({name: round(share * 10) for name, share in MOMENTS.items()})
    use = _vaes.objective(run, "dip-5")
    import compatkit as ck

    _vaes.train(run, "sprites", use, ck.use("snapshots"), factories={"snapshots": lambda: watch})
    for name, share in MOMENTS.items():
        shorter = _vaes.weights_after(_vaes.train(run, "sprites", use, steps=round(share * 10)))
        assert all(torch.equal(value, watch.kept[name][key]) for key, value in shorter.items())


def test_reconstruction_is_that_of_the_objective_without_noise() -> None:
    run = run_of("2.6", "fixed")
    fit = _vaes.train(run, "sprites")
    images = _vaes.data_of(run, "sprites").test
    network = fit.network("net").eval()
    pixels = torch.from_numpy(images.read(range(len(images)))).permute(0, 3, 1, 2) / 255
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        network(pixels).detach().double(), pixels.flatten(1).double(), reduction="sum"
    ) / len(images)
    result, rebuilt = _vaes.reconstructed(fit, images)
    assert result == pytest.approx(float(loss), rel=1e-5)
    np.testing.assert_allclose(
        rebuilt.reshape(len(images), -1), network(pixels).sigmoid().detach(), atol=1e-5
    )


def test_without_files_the_papers_other_data_sets_are_left_out(tmp_path: Path) -> None:
    result = carry_out("2.9", tmp_path, seeds=1, data=str(tmp_path), changes={**TINY, "train": 9, "test": 9})
    assert all(row["values"] == [None] for row in result["results"])
    assert any("cars3d" in note or "celeba" in note for note in result["notes"])


def test_the_papers_numbers_stand_beside() -> None:
    reported = {
        number: {(source.arm, source.metric): source.value for source in study.paper}
        for number, study in STUDIES.items()
    }
    assert reported["2.8"]["sprites-solids", "gradient"] == 0.39
    assert reported["2.9"]["cars3d-celeba", "type"] == 0.16
    assert reported["2.10"]["sprites-solids", "x"] == 0.46
    assert reported["2.11"]["celeba-cars3d", "wearing-lipstick"] == 0.67
    for number in STUDIES:
        names = {measure.name for measure in find(number).study.measures}
        assert {metric for _, metric in reported[number]} <= names
