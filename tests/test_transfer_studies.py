"""The studies of domain adaptation and of faster transfer: every arm on small data, and figures checked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick
from torch import nn

import compatkit as ck
from compatkit_studies import domain_adaptation, faster_transfer

SMALL: dict[str, Any] = {"backbone": "resnet8_cifar", "train": 48, "test": 48, "steps": 2, "batch_size": 8}
ADAPTATION = {**domain_adaptation.SIZES["cpu"], **SMALL, "digits": 16, "colour": 16, "adapt_steps": 2}
TRANSFER = {**faster_transfer.SIZES["cpu"], **SMALL, "size": 16, "tune_steps": [0, 1, 3]}


def load(name: str) -> ck.DataSet:
    """Return small data in the place of a real set."""
    if name == "cifar10":
        return data_set(name, channels=3, count=96)
    return data_set(name, seed=len(name))


@pytest.mark.parametrize("arm", ["mnist-usps", "cifar10-shifted"])
def test_an_arm_of_domain_adaptation_gives_its_measures(arm: str) -> None:
    found = domain_adaptation.run(arm, 0, ADAPTATION, load)
    assert list(found) == list(domain_adaptation.MEASURES)
    assert all(value is not None and 0 <= value <= 1 for value in found.values())


def test_source_and_target_of_one_data_set_have_no_image_in_common() -> None:
    source, target = domain_adaptation.pair(
        "cifar10-shifted", load, {**ADAPTATION, "train": None, "test": None}
    )
    assert (source.name, target.name) == ("plain", "shifted")
    plain, other = load("cifar10").halves()
    assert source.train.digest == plain.train.digest
    assert not {one.tobytes() for one in plain.train.images} & {one.tobytes() for one in other.train.images}


def test_sizes_name_what_a_run_needs() -> None:
    for study in (domain_adaptation, faster_transfer):
        assert set(study.SIZES) == {"cpu", "paper"}
        assert set(study.SIZES["cpu"]) == set(study.SIZES["paper"])
    assert faster_transfer.STEPS == (0, 10, 100, 1000)


@pytest.mark.parametrize("arm", faster_transfer.ARMS)
def test_an_arm_of_faster_transfer_gives_its_measures(arm: str) -> None:
    found = faster_transfer.run(arm, 0, TRANSFER, load)
    assert list(found) == ["own", "steps-0", "steps-1", "steps-3"]
    assert all(0 <= value <= 1 for value in found.values())


def test_networks_are_kept_before_and_after_steps_as_they_were() -> None:
    keep = faster_transfer.Keep((0, 2))
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
    assert faster_transfer.accuracy(network, data.test, state, seed=0) == 1.0
    wrong = ck.Split(data.test.images, (data.test.labels + 1) % 3, data.classes, "wrong/test")
    assert faster_transfer.accuracy(network, wrong, state, seed=0) == 0.0
    some = np.where(np.arange(len(wrong)) < 12, data.test.labels, wrong.labels)
    mixed = ck.Split(data.test.images, some, data.classes, "mixed/test")
    assert faster_transfer.accuracy(network, mixed, state, seed=0) == 12 / len(wrong)
