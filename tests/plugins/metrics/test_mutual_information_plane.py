"""Mutual information: cases worked out by hand, a slow dictionary reference, batches, ranges, saturation."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Table
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics.mutual_information_plane import (
    MutualInformationPlane,
    codes,
    entropy,
    information,
)

PATTERNS = torch.tensor(list(product((-1.0, 1.0), repeat=12)))
PARITY = (PATTERNS[:, :2] > 0).sum(1) % 2  # XOR of the first two bits


def plane(
    network: nn.Module, labels: Tensor = PARITY, layers: tuple[str, ...] = ("0",), **settings: Any
) -> list[Table]:
    batch_size = settings.pop("batch_size", 512)
    metric = MutualInformationPlane(**settings)
    table = ck.measure(
        network, (PATTERNS[: len(labels)], labels), [metric], layers=layers, batch_size=batch_size
    )
    return [match for match in table.values() if isinstance(match, Table)]


class Given(nn.Module):
    """A network whose first layer gives some function of the patterns."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Tensor:
        return self.function(images)


def layered(function: Any) -> nn.Sequential:
    return nn.Sequential(Given(function), Given(lambda values: values.new_zeros(len(values), 2)))


@pytest.mark.parametrize(
    ("function", "about_x", "about_y"),
    [
        (lambda x: x, 12.0, 1.0),  # identity
        (lambda x: torch.zeros_like(x), 0.0, 0.0),  # constant
        (lambda x: x[:, :1], 1.0, 0.0),  # one bit of an XOR says nothing
        (lambda x: x[:, :2], 2.0, 1.0),  # both say all
        (lambda x: x[:, :1] * x[:, 1:2], 1.0, 1.0),  # the label itself
        (lambda x: x[:, 5:9], 4.0, 0.0),  # noise
    ],
)
def test_patterns_of_twelve_bits_by_hand(function: Any, about_x: float, about_y: float) -> None:
    table, numbers = plane(layered(function))
    assert table.at(layer="0", quantity="I(X;T)").value == pytest.approx(about_x, abs=1e-12)
    assert table.at(layer="0", quantity="I(T;Y)").value == pytest.approx(about_y, abs=1e-12)
    assert numbers.at(layer="0").value == 2**about_x
    assert table.unit == "bits" and table.count == 4096


def reference(values: np.ndarray, labels: np.ndarray, edges: np.ndarray) -> tuple[float, float]:
    """Count rows of bins in dictionaries, and sum the definitions."""
    rows = [tuple(int((edges <= value).sum()) for value in row) for row in values]
    total = len(rows)
    codes, joint, classes = (
        Counter(rows),
        Counter(zip(rows, labels.tolist(), strict=True)),
        Counter(labels.tolist()),
    )
    about_x = -sum(c / total * math.log2(c / total) for c in codes.values())
    about_y = sum(
        c / total * math.log2((c / total) / (codes[row] / total * classes[label] / total))
        for (row, label), c in joint.items()
    )
    return about_x, about_y


@pytest.mark.parametrize("units", [1, 3, 10])
def test_equals_a_slow_reference(units: int) -> None:
    draw = np.random.default_rng(units)
    values = np.tanh(draw.normal(size=(500, units)).astype(np.float32).astype(np.float64))
    labels, edges = draw.integers(0, 3, 500), np.linspace(-1, 1, 30)
    expected = reference(values, labels, edges)
    assert information(codes(values, edges), labels)[:2] == pytest.approx(expected, abs=1e-10)


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2))


LAYERS = ("1", "3", "4")


def test_a_network_against_the_reference_layer_by_layer() -> None:
    net = network()
    table, _ = plane(net, layers=LAYERS)
    assert table.axes["layer"] == ("1", "3", "4 (softmax)")
    with torch.no_grad():
        tanh = net[:2](PATTERNS)
        relu, logits = net[:4](PATTERNS), net(PATTERNS)
    for name, values, low, high in (
        ("1", tanh, -1, 1),
        ("3", relu, float(relu.min()), float(relu.max())),
        ("4 (softmax)", logits.softmax(1), 0, 1),
    ):
        edges = np.linspace(low, high, 30)
        expected = reference(values.double().numpy(), PARITY.numpy(), edges)
        output = [table.at(layer=name, quantity=entry).value for entry in ("I(X;T)", "I(T;Y)")]
        assert output == pytest.approx(expected, abs=2e-2)  # a value at an edge may fall to either side
        assert f"{name} [{low:.6g}, {high:.6g}]" in table.estimator


def test_does_not_depend_on_batches() -> None:
    first, other = (plane(network(), layers=LAYERS, batch_size=size)[0].values for size in (4096, 700))
    assert np.allclose(first, other, atol=5e-3)
    assert_metric(MutualInformationPlane)


def test_layers_that_know_less_lie_below_those_before_them() -> None:
    net = nn.Sequential(
        Given(lambda x: x), Given(lambda x: x[:, :4]), Given(lambda x: x[:, :2]), nn.Linear(2, 2)
    )
    values = plane(net, layers=("0", "1", "2"))[0].values
    assert (np.diff(values[:, 0]) <= 0).all() and (np.diff(values[:, 1]) <= 1e-12).all()


def test_saturation_is_told() -> None:
    cells = [plane(layered(lambda x, n=n: x[:, :n]))[0].at(layer="0", quantity="I(X;T)") for n in (12, 11)]
    assert [cell.status for cell in cells] == ["degenerate", "ok"]
    assert cells[0].reason == "4,096 codes for 4,096 examples: within 0.1 bits of log2 N"
    assert plane(layered(lambda x: x[:, :11]), saturation=1.5)[0].cells[0].status == "degenerate"


def test_bins_are_those_that_were_asked_for() -> None:
    ramp = layered(lambda x: torch.linspace(-1, 1, len(x))[:, None])
    table, numbers = plane(ramp, edges=3, batch_size=4096)
    assert numbers.cells[0].value == 3.0  # [-1, 0), [0, 1), and 1 itself
    assert table.cells[0].value == pytest.approx(entropy(np.array([2048, 2047, 1])))
    small = layered(lambda x: x[:, :1] * 0.01)
    assert [plane(small, range=kind)[0].cells[0].value for kind in ("tanh", "adapted")] == [0.0, 1.0]
    assert "[-0.01, 0.01]" in plane(small, range="adapted")[0].estimator


def test_an_example_that_comes_twice_is_refused() -> None:
    metric = MutualInformationPlane()
    state = metric.update(
        metric.init(), torch.tensor([0, 0]), torch.tensor([0, 1]), torch.zeros(2, 2), {"0": torch.zeros(2, 3)}
    )
    with pytest.raises(DataError, match="occurred twice"):
        metric.finalize(state, {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"edges": 1}, "'edges' must be a whole number from 2"),
        ({"range": "relu"}, "'range' must be one of tanh, adapted"),
        ({"saturation": -1}, "'saturation' must be a number from 0"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MutualInformationPlane(**settings)


def test_a_last_layer_that_is_not_looked_at_is_refused() -> None:
    with pytest.raises(UsageError, match="last='fc' is not among the layers 0"):
        plane(layered(lambda x: x), last="fc")


def test_no_examples_and_no_units() -> None:
    tables = MutualInformationPlane().finalize(MutualInformationPlane().init(), {"a": None})
    assert [cell.status for table in tables for cell in table.cells] == ["undefined"] * 3
    assert entropy(np.array([], dtype=np.int64)) == 0.0
    assert codes(np.zeros((3, 0)), np.linspace(-1, 1, 3)).tolist() == [0, 0, 0]
