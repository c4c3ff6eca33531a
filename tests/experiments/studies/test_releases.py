"""The study of releases: what each arm is trained against, the chain, classes added, and figures by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import data_set, write_pack

import compatkit as ck
from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import StudyData
from compatkit_studies._chain import chain, means
from compatkit_studies.releases import ARMS, first_classes, releases, train, values_of

TINY: dict[str, Any] = {
    "model": "resnet8_cifar",
    "train": 24,
    "test": 24,
    "steps": 1,
    "batch_size": 8,
    "releases": 3,
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Packs of noise in place of the real data sets."""
    for seed, name in enumerate(("mnist", "usps")):
        write_pack(tmp_path, data_set(name, seed=seed))
    for seed, name in enumerate(("cifar10", "cifar100")):
        write_pack(tmp_path, data_set(name, seed=seed, channels=3, classes=("0", "1", "2", "3")))
    return tmp_path


def run_of(data: Path, arm: str, size: str = "cpu", **changes: Any) -> Run:
    settings = settings_of(find("releases"), size, {**TINY, **changes})
    return Run("releases", arm, 0, settings, StudyData("releases", str(data)))


@pytest.mark.parametrize("arm", ["distillation", "bct+warm", "bct+forward", "bct+dcc"])
def test_a_release_is_trained_against_the_one_before(data: Path, tmp_path: Path, arm: str) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    sets = train(run_of(data, arm), registry)
    assert [entry.name for entry in sets] == ["mnist", "usps", "mnist"]
    assert not np.array_equal(sets[0].train.images, sets[2].train.images)  # drawn anew
    for number in (2, 3):
        new, (head, extractor) = (
            registry.store.manifest(f"releases/r{number}.extractor"),
            (registry.store.manifest(f"releases/r{number - 1}.{kind}") for kind in ("head", "extractor")),
        )
        frozen, words = set(new.training["frozen"]), arm.split("+")
        assert (head.payload.tensors in frozen) == ("bct" in words)
        assert (extractor.payload.tensors in frozen) == bool({"distillation", "forward"} & set(words))
        assert len(frozen) == (2 if arm in ("bct+forward", "bct+dcc") else 1)
        assert any(parent.relation == "initialised_from" for parent in new.parents) == ("warm" in words)


@pytest.mark.parametrize("arm", ["independent", "joint-dcc"])
def test_an_arm_gives_its_measures(data: Path, tmp_path: Path, arm: str) -> None:
    result = carry_out("releases", tmp_path / "out", seeds=1, arms=[arm], data=str(data), changes=TINY)
    values = {row["metric"]: row["values"] for row in result["results"]}
    wanted = {"old", "own", "backward", "backward-reestimated", "forward", "forward-reestimated"}
    assert set(values) == wanted | {"under-first-3", "own-3", "chance"}
    assert all(0 <= value <= 1 for (value,) in values.values())


def test_of_cifar_100_new_features_are_queries_and_old_ones_the_gallery(data: Path, tmp_path: Path) -> None:
    changes = {**TINY, "steps": 40, "classes": 2, "releases": 2, "train": 0, "test": 0}
    result = carry_out(
        "releases", tmp_path / "out", size="cifar100", seeds=1, arms=["warm"], data=str(data), changes=changes
    )
    values = {row["metric"]: row["values"][0] for row in result["results"]}
    registry = ck.Registry.init(tmp_path / "parts")
    sets = train(run_of(data, "warm", "cifar100", **changes), registry)
    old, new = (embedded(registry, f"releases/{entry}", sets[1].test) for entry in ("r1", "r2"))
    labels = torch.from_numpy(sets[1].test.labels)
    for name, queries, gallery in (
        ("retrieval-old", old, old),
        ("retrieval-own", new, new),
        ("retrieval", new, old),
    ):
        nearest = (queries @ gallery.T).fill_diagonal_(-2).argmax(1)
        assert values[name] == pytest.approx(float((labels[nearest] == labels).double().mean()), abs=0.03)


def embedded(registry: ck.Registry, release: str, images: ck.data.Split) -> torch.Tensor:
    """Return the means of the features over their positions, of unit length."""
    network = registry.recombine(f"{release}.extractor", f"{release}.head")
    with torch.no_grad():
        maps = [network.extractor(batch) for batch in network.normalized_batches(images, 16, None)]  # type: ignore[misc]
    return F.normalize(torch.cat(maps).double().mean((2, 3)))


def test_every_arm_is_known_by_its_words() -> None:
    known = {
        "independent",
        "independent-longer",
        "warm",
        "distillation",
        "bct",
        "forward",
        "dcc",
        "incremental-dcc",
        "joint-dcc",
    }
    assert {word for arm in ARMS for word in arm.split("+")} == known


def test_classes_are_added(data: Path) -> None:
    old, new = releases(run_of(data, "bct", "cifar100", classes=2, releases=2))
    assert (old.classes, new.classes) == (("0", "1"), ("0", "1", "2", "3"))
    assert set(old.train.labels) == {0, 1} and set(new.test.labels) == {0, 1, 2, 3}
    few = first_classes(data_set("x", classes=("0", "1", "2", "3")), 3)
    assert few.test.counts == (12, 12, 12)


def test_measures_are_those_of_the_right_cells() -> None:
    rows = [
        {
            "extractor": f"r{number}",
            "head": f"r{other}",
            "policy": policy,
            "accuracy": number / 10 + other / 100 + add,
            "chance": 0.1,
        }
        for number in (1, 2, 3)
        for other in (1, 2, 3)
        for policy, add in (("running", 0.0), ("reestimate", 0.001))
    ]
    assert values_of(rows) == pytest.approx(
        {
            "old": 0.11,
            "own": 0.22,
            "backward": 0.21,
            "backward-reestimated": 0.211,
            "forward": 0.12,
            "forward-reestimated": 0.121,
            "under-first-3": 0.31,
            "own-3": 0.33,
            "chance": 0.1,
        }
    )


def test_the_chain_is_the_mean_over_seeds_under_one_policy() -> None:
    def cell(extractor: str, head: str, accuracy: float, policy: str = "running") -> dict[str, Any]:
        return {"extractor": extractor, "head": head, "policy": policy, "accuracy": accuracy}

    seeds = [
        [cell("r1", "r1", 0.9), cell("r1", "r2", 0.2), cell("r2", "r1", 0.5), cell("r2", "r2", 1.0)],
        [cell("r1", "r1", 0.7), cell("r1", "r1", 0.0, "reestimate")],
    ]
    result = means(seeds, "running")
    assert result == pytest.approx(
        {("r1", "r1"): 0.8, ("r1", "r2"): 0.2, ("r2", "r1"): 0.5, ("r2", "r2"): 1.0}
    )
    assert width_of(chain({"bct": result}, "one")) < width_of(chain(dict.fromkeys("abcdef", result), "six"))


def width_of(picture: bytes) -> int:
    """Return the width that a PNG says it has."""
    assert picture.startswith(b"\x89PNG")
    return int.from_bytes(picture[16:20], "big")
