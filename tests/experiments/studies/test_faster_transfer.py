"""Study 3.11: arms, the pairs of domains, and figures that can be checked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick, write_pack
from torch import nn

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import StudyData
from compatkit_studies.faster_transfer import Keep, accuracy, run, tasks_of, train

TINY: dict[str, Any] = {
    "model": "resnet8_cifar",
    "train": 48,
    "test": 48,
    "steps": 1,
    "batch_size": 8,
    "tune": 10,
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Packs of noise in place of the real data sets."""
    for seed, name in enumerate(("fashion-mnist", "mnist", "usps")):
        write_pack(tmp_path, data_set(name, seed=seed))
    for seed, name in enumerate(("cifar100", "cifar10", "stl10")):
        write_pack(tmp_path, data_set(name, seed=seed, channels=3, count=96))
    return tmp_path


def run_of(data: Path, arm: str, size: str = "cpu", seed: int = 0, **changes: Any) -> Run:
    settings = settings_of(find("3.11"), size, {**TINY, **changes})
    return Run("3.11", arm, seed, settings, StudyData("3.11", str(data)))


@pytest.mark.parametrize("arm", ["iiw+rp", "re-initialised"])
def test_an_arm_gives_its_measures_and_a_picture(data: Path, tmp_path: Path, arm: str) -> None:
    result = carry_out("3.11", tmp_path / "out", seeds=1, arms=[arm], data=str(data), changes=TINY)
    values = {row["metric"]: row["values"] for row in result["results"]}
    assert set(values) == {"own", "steps-0", "steps-10", "chance"}  # ten steps are no hundred
    assert values["chance"] == [16 / 48] and all(0 <= value <= 1 for (value,) in values.values())
    assert (tmp_path / "out" / "transfer.png").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": ["mnist", "usps"]}, "'data' must name three data sets, for rotation, source, target"),
        ({"tune": 50}, "'tune' must be one of 0, 10, 100, 1000, the measured steps; got 50"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(data: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        inputs = settings_of(find("3.11"), "cpu", {**TINY, **changes})
        run(Run("3.11", "rp", 0, inputs, StudyData("3.11", str(data))))


@pytest.mark.parametrize(
    ("size", "names"),
    [
        ("cpu", ["fashion-mnist", "mnist", "usps"]),
        ("back", ["fashion-mnist", "usps", "mnist"]),
        ("halves", ["cifar100", "plain", "shifted"]),
        ("paper", ["cifar100", "cifar10", "stl10"]),
    ],
)
def test_every_size_has_its_domains(data: Path, size: str, names: list[str]) -> None:
    tasks = tasks_of(run_of(data, "rp", size))
    assert [task.name for task in tasks] == ["rotation", "source", "target"]
    assert [task.data.name for task in tasks] == names
    assert {task.augment for task in tasks} == {() if size in ("cpu", "back") else ("crop", "flip")}


def equal(left: nn.Module, right: nn.Module) -> bool:
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return all(torch.allclose(value, other, rtol=0, atol=1e-9) for value, other in pairs)


@pytest.mark.parametrize("arm", ["iiw+rp", "independent"])
def test_networks_share_a_frozen_rotation_head_or_start_with_heads_that_differ(data: Path, arm: str) -> None:
    """At a rate of 1e-30 what is compared is what the networks started from."""
    run = run_of(data, arm, lr=1e-30)
    source, target = train(run, tasks_of(run))
    shared = arm == "iiw+rp"
    heads = [fit.auxiliary["rotation"] for fit in (source, target)]
    assert [head.frozen for head in heads] == [shared, shared]
    assert equal(heads[0].module, heads[1].module) == shared
    assert equal(source.tasks["source"].extractor, target.tasks["target"].extractor) == shared
    assert (source.tasks["source"].initial == target.tasks["target"].initial) == shared


def test_networks_are_kept_before_and_after_steps_as_they_were() -> None:
    keep = Keep((0, 2))
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)
    fit = quick(steps=2).fit([task], ["keep"], factories={"keep": lambda: keep})
    first, last = (keep.networks[done].state_dict() for done in (0, 2))
    whole = fit.network("a").state_dict()
    assert all(torch.equal(value, last[name]) for name, value in whole.items())
    assert any(not torch.equal(value, first[name]) for name, value in whole.items())


def test_accuracy_takes_the_statistics_of_each_batch() -> None:
    data = data_set("a")
    fit = quick(steps=1).fit([ck.Task("a", data, "resnet8_cifar", "layer2", size=12)])
    state = fit.tasks["a"]

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(1, affine=False)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.norm(images)[:, 0, 1:7:2].mean(-1)  # the bright row tells the class

    network = nn.Sequential(Rows())
    network.register_parameter("device", nn.Parameter(torch.zeros(1)))
    run = Run("3.11", "rp", 0, {"test_batch": 500}, StudyData("3.11"))
    assert accuracy(network, data.test, state, run) == 1.0
    wrong = ck.Split(data.test.images, (data.test.labels + 1) % 3, data.classes, "wrong/test")
    assert accuracy(network, wrong, state, run) == 0.0
    some = np.where(np.arange(len(wrong)) < 12, data.test.labels, wrong.labels)
    mixed = ck.Split(data.test.images, some, data.classes, "mixed/test")
    assert accuracy(network, mixed, state, run) == 12 / len(wrong)


def test_what_the_paper_reports_stands_apart_as_printed() -> None:
    study = find("3.11").study
    assert [(source.arm, source.metric, source.value, source.unit) for source in study.paper] == [
        ("rp", "steps-0", 40.0, "%"),
        ("rp", "steps-0", 66.4, "%"),
    ]
    assert all("Sec. 5.3" in source.source for source in study.paper)
    assert study.arms == ("rp", "iiw+rp", "independent", "re-initialised")


def test_the_size_of_the_paper_has_its_settings() -> None:
    settings = settings_of(find("3.11"), "paper")
    assert (settings["model"], settings["batch_size"], settings["steps"], settings["lr"]) == (
        "resnet56_cifar",
        512,
        20_000,
        0.01,
    )
    assert set(find("3.11").study.sizes) == {"cpu", "back", "halves", "paper"}
