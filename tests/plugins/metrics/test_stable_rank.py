"""Stable rank: by hand, against the definition, of layers and of arrays, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics.stable_rank import StableRank


def of(weight: Any) -> dict[str, float | None]:
    table = ck.measure_arrays("stable_rank", weight).table("stable_rank")
    return {what: cell.value for (_, what), cell in table}


def test_by_hand() -> None:
    assert of(np.diag([2.0, 1.0, 1.0])) == {"stable rank": 1.5, "rank": 3, "most": 3}
    assert of(np.ones((4, 6))) == pytest.approx({"stable rank": 1, "rank": 1, "most": 4})
    assert of(np.eye(5)) == pytest.approx({"stable rank": 5, "rank": 5, "most": 5})


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_it_is_its_definition_whatever_the_scale(scale: float) -> None:
    weight = np.random.default_rng(0).normal(size=(7, 3, 2, 2))
    matrix = weight.reshape(7, 12)
    wanted = np.linalg.norm(matrix) ** 2 / np.linalg.norm(matrix, 2) ** 2
    assert of(weight * scale)["stable rank"] == pytest.approx(wanted, rel=1e-12)


def test_layers_of_a_network() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        network[3].weight.zero_()  # type: ignore[operator, union-attr]
    table = ck.measure(network, None, ["stable_rank"]).table("stable_rank")
    assert table.axes["layer"] == ("0", "3")
    assert 1 <= table.at(layer="0", quantity="stable rank").value <= 4  # type: ignore[operator]
    dead = table.at(layer="3", quantity="stable rank")
    assert (dead.value, dead.status, dead.reason) == (None, "undefined", "its weights are zero")
    first = ck.measure(network, None, ["stable_rank"], layers=["0"]).table("stable_rank")
    assert first.axes["layer"] == ("0",)
    with pytest.raises(UsageError):
        ck.measure(network, None, ["stable_rank"], layers=["1"])


def test_it_conforms() -> None:
    assert_metric(StableRank)
