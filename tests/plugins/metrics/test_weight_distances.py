"""Weight deviation and weight map: sums of norms by hand, distances, planes that keep them, trained networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Table
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics.weight_deviation import WeightDeviation
from compatkit_plugins.metrics.weight_map import WeightMap, classical_scaling


def network(classes: int = 2) -> nn.Sequential:
    made = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, classes))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(1.0)
    return made.eval()


def deviation(net: nn.Module, start: nn.Module, examples: int, **more: Any) -> Table:
    return ck.measure(net, None, [WeightDeviation(examples=examples)], other=start, **more).table(
        "weight_deviation"
    )


def test_a_sum_of_norms_over_the_root_of_the_examples_by_hand() -> None:
    net, start = network(), network()
    with torch.no_grad():
        net[0].weight += 1.0  # type: ignore[operator]
        net[3].weight[0, 0] += 4.0  # type: ignore[index]
        net[3].bias += 7.0  # type: ignore[operator]
        net[1].weight += 7.0  # type: ignore[operator]
    table = deviation(net, start, 25)
    # 8 weights of the convolution moved by 1, one weight of the layer by 4; neither bias nor normalization counts.
    values = [table.at(layer=name, quantity="deviation").value for name in ("0", "3", "total")]
    assert values == pytest.approx([8**0.5 / 5, 4 / 5, (8**0.5 + 4) / 5])
    assert table.at(layer="total", quantity="norm of W0").value == pytest.approx((8**0.5 + 4) / 5)


def test_random_weights_of_the_same_norms_lie_at_the_root_of_both_squares() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net, start = nn.Sequential(nn.Linear(3000, 40)), nn.Sequential(nn.Linear(3000, 40))
    table = deviation(net, start, 1)
    own, other = (float(item[0].weight.detach().norm()) for item in (net, start))
    assert table.at(layer="0", quantity="random weights").value == pytest.approx(
        np.hypot(own, other), rel=0.02
    )


def test_a_head_of_other_classes_is_left_out_by_name() -> None:
    table = deviation(network(3), network(), 4)
    assert table.at(layer="3", quantity="deviation").status == "undefined"
    total = table.at(layer="total", quantity="deviation")
    assert (total.status, total.value) == ("approximate", 0.0) and "3" in total.reason


def test_deviation_grows_along_training_from_the_initial_weights() -> None:
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=12)
    start, totals = quick(steps=1, lr=1e-9).fit([task]).tasks["a"], []
    for steps in (2, 8):
        net = quick(steps=steps).fit([task]).tasks["a"]
        table = deviation(net, start, 48, layers=["*"])  # type: ignore[arg-type]
        totals.append(table.at(layer="total", quantity="deviation").value)
        assert "fc" in table.axes["layer"] and "layer1.0.conv1" in table.axes["layer"]
    assert 0 < totals[0] < totals[1]  # type: ignore[operator]


def test_another_network_is_needed() -> None:
    with pytest.raises(UsageError):
        ck.measure(network(), None, [WeightDeviation(examples=3)])
    with pytest.raises(UsageError) as caught:
        WeightDeviation(examples=0)
    assert caught.value.subject == "examples"


def moved(by: float, axis: int) -> dict[str, Tensor]:
    state = {name: value.clone() for name, value in network().state_dict().items()}
    state["3.weight"][0, axis] += by
    return state


def test_distances_and_their_plane() -> None:
    runs = {"right": moved(3, 0), "up": moved(4, 1), "both": moved(3, 0)}
    runs["both"]["3.weight"][0, 1] += 4
    table = ck.measure(network(), None, [WeightMap(networks=runs)])
    distances = table.table("weight_map/distance")
    assert distances.at(network="this", **{"from": "both"}).value == pytest.approx(5)
    assert distances.at(network="right", **{"from": "up"}).value == pytest.approx(5)
    points = table.table("weight_map").values[0]
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
    assert np.allclose(apart, distances.values, atol=1e-9)
    assert table.table("weight_map/kept").cells[0].value == pytest.approx(1)
    assert np.isfinite(table.table("weight_map").values[1]).all()


def test_classical_scaling_says_what_a_plane_loses() -> None:
    corners = np.eye(4)
    points, saved = classical_scaling(np.linalg.norm(corners[:, None] - corners[None], axis=-1))
    assert saved == pytest.approx(2 / 3) and points.shape == (4, 2)


def test_t_sne_separates_two_families_and_needs_four_networks() -> None:
    draw = torch.Generator().manual_seed(0)
    families: dict[str, dict[str, Tensor]] = {}
    for place in range(10):
        state = moved(50.0 * (place % 2), 0)
        state["3.weight"] += torch.randn(2, 8, generator=draw)
        families[f"{place % 2}/{place}"] = state
    table = ck.measure(network(), None, [WeightMap(networks=families, perplexity=3)]).table("weight_map")
    points = dict(zip(table.axes["network"], table.values[1], strict=True))
    for name in families:
        rest = [family for family in families if family != name]
        nearest = min(rest, key=lambda item: float(np.linalg.norm(points[name] - points[item])))
        assert nearest[0] == name[0]
    few = ck.measure(network(), None, [WeightMap(networks={"a": moved(1, 0)})]).table("weight_map")
    assert few.at(method="tsne", network="this", axis="1").status == "undefined"
    assert few.at(method="mds", network="this", axis="1").status == "ok"


def test_equal_networks_have_one_point() -> None:
    table = ck.measure(network(), None, [WeightMap(networks={"a": moved(0, 0)})])
    assert not table.table("weight_map/distance").values.any()
    assert table.table("weight_map/kept").cells[0].status == "undefined"


def test_networks_of_another_architecture_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        ck.measure(network(), None, [WeightMap(networks={"a": network(3).state_dict()})])
    assert caught.value.subject == "3.weight"
    for wrong in ({}, [network().state_dict()], {"a": 3}):
        with pytest.raises(UsageError):
            WeightMap(networks=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        WeightMap(networks={"a": {}}, perplexity=2.0)
    assert caught.value.subject == "perplexity"


def test_weights_that_are_not_finite_have_no_distance() -> None:
    broken = moved(0, 0)
    broken["3.weight"][0, 0] = float("nan")
    with pytest.raises(DataError, match="not finite"):
        ck.measure(network(), None, [WeightMap(networks={"a": broken})])
    other = network()
    other.load_state_dict(broken)
    table = ck.measure(other, None, [WeightDeviation(examples=5)], other=network()).table("weight_deviation")
    assert table.at(layer="3", quantity="deviation").status == "undefined"
    assert table.at(layer="total", quantity="deviation").status == "approximate"


def test_they_conform() -> None:
    assert_metric(WeightDeviation, examples=5)
    first = {"hidden.weight": torch.zeros(6, 192), "fc.weight": torch.zeros(5, 6)}
    assert_metric(WeightMap, networks={"a": first})
