"""Study 3.10: arms, what is frozen in each, and what the paper reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, write_pack

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import StudyData
from compatkit_studies.architectures import NETWORKS, first, run, tasks, update

TEN = tuple(map(str, range(10)))
TINY: dict[str, Any] = {
    "residual": ["resnet8_cifar", "layer2"],
    "image": 16,
    "train": 40,
    "test": 40,
    "steps": 1,
    "tune_steps": 1,
    "batch_size": 8,
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Packs of noise in place of the real data sets."""
    write_pack(tmp_path, data_set("mnist", classes=TEN, count=40))
    write_pack(tmp_path, data_set("cifar10", classes=TEN, count=40, channels=3, seed=1))
    return tmp_path


def run_of(data: Path, arm: str, size: str = "cpu") -> Run:
    return Run("3.10", arm, 0, settings_of(find("3.10"), size, TINY), StudyData("3.10", str(data)))


def test_an_arm_gives_its_measures_and_a_picture(data: Path, tmp_path: Path) -> None:
    result = carry_out("3.10", tmp_path / "out", seeds=1, arms=["fe-frozen"], data=str(data), changes=TINY)
    values = {row["metric"]: row["values"] for row in result["results"]}
    assert set(values) == {*NETWORKS, "mean", "others", "old", "lower"}
    assert values["lower"] == [0.5]
    assert values["mean"][0] == pytest.approx(sum(values[name][0] for name in NETWORKS) / 3)
    assert values["others"][0] == pytest.approx((values["residual"][0] + values["mobile"][0]) / 2)
    assert (tmp_path / "out" / "architectures.png").exists()


def test_a_network_that_is_not_named_by_backbone_and_split_is_refused(data: Path) -> None:
    inputs = run_of(data, "bound")
    inputs.settings = {**inputs.settings, "wide": ["resnet20_cifar"]}
    with pytest.raises(
        UsageError, match=r"'wide' must be a model and a split point.*got \['resnet20_cifar'\]"
    ):
        run(inputs)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["rp-frozen", "random-head", "independent", "bound", "bound-changed"])
def test_every_other_arm_has_the_three_extractors(data: Path, arm: str) -> None:
    values = run(run_of(data, arm)).values
    assert {*NETWORKS, "mean", "lower"} <= values.keys()
    assert ("old" in values) == (not arm.startswith("bound"))


def state(module: torch.nn.Module) -> list[torch.Tensor]:
    return list(module.state_dict().values())


@pytest.mark.parametrize("arm", ["fe-frozen", "rp-frozen"])
def test_what_is_frozen_stays_and_what_learns_moves(data: Path, tmp_path: Path, arm: str) -> None:
    inputs = run_of(data, arm)
    images, registry = inputs.load("mnist"), ck.Registry.init(tmp_path / "parts")
    parts = update(inputs, images, registry, first(inputs, images, registry))
    moves = arm == "rp-frozen"
    assert set(parts) == {"update.head", *(["update.extractor"] if moves else [])}
    assert registry.store.names("of-all/shared.*") == [
        "of-all/shared.dcc",
        *(["of-all/shared.rotation"] if moves else []),
    ]
    assert registry.store.manifest("of-all/wide.extractor").training["data"]["name"] == "mnist/train"
    if moves:
        old, new = (
            state(registry.load(entry)) for entry in ("of-all/wide.extractor", parts["update.extractor"])
        )
        assert any(not torch.equal(entry, other) for entry, other in zip(old, new, strict=True))
    for name in NETWORKS:
        assert registry.check(f"of-all/{name}.extractor", parts["update.head"]).satisfies("shared-head")


def test_sizes_have_their_networks_and_only_the_paper_s_its_width(data: Path) -> None:
    paper = run_of(data, "fe-frozen", "paper")
    made = tasks(paper, paper.load("cifar10"))
    assert [(built.model, built.width, built.own_head) for built in made] == [
        ("wide_resnet58_2_cifar", 64, False),
        ("resnet8_cifar", 64, False),  # of TINY
        ("mobilenetv2_cifar", 64, False),
    ]
    bare = tasks(paper, paper.load("cifar10"), changed=False)
    assert all(entry.width is None and entry.own_head and entry.augment == ("crop", "flip") for entry in bare)
    assert set(find("3.10").study.sizes) == {"cpu", "cifar10", "paper"}


def test_what_the_paper_reports_stands_apart_as_printed() -> None:
    reported = {
        (source.arm, source.metric): source.value
        for source in find("3.10").study.paper
        if source.metric != "mean"
    }
    assert [reported["fe-frozen", name] for name in NETWORKS] == [91.9, 91.7, 91.6]
    assert [reported["rp-frozen", name] for name in NETWORKS] == [92.3, 91.5, 91.2]
    assert [reported["bound", name] for name in NETWORKS] == [94.9, 94.6, 93.3]
