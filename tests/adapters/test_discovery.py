"""Cut points are found by watching one forward pass: what crosses, and what lies on each side."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from compatkit.adapters.blueprints import build_pair
from compatkit.adapters.cutting.discovery import CutPoint, find_cut_points
from compatkit.adapters.cutting.planning import cuts, plan
from compatkit.adapters.cutting.proof import prove


@cache
def points(model: str) -> dict[str, CutPoint]:
    return {point.name: point for point in cuts(model, {"num_classes": 10})}


def usable(result: dict[str, CutPoint]) -> list[CutPoint]:
    return [point for point in result.values() if point.own and not point.refused]


@pytest.mark.parametrize(
    "model", ["resnet20_cifar", "lenet", pytest.param("mobilenetv2_cifar", marks=pytest.mark.slow)]
)
def test_every_point_that_is_listed_can_be_cut_and_counts_are_those_of_the_parts(model):
    listed = usable(points(model))
    assert any(point.approach == "canonical" for point in listed)
    for point in listed[:: max(1, len(listed) // 3)]:
        planned = plan(model, point.name, kwargs={"num_classes": 10})
        _, extractor, _ = pair = build_pair(planned.extractor, planned.head, seed=0)
        prove(*pair, (32, 32), 3)
        assert planned.parameters == point.parameters
        assert planned.extractor.approach == point.approach
        with torch.no_grad():
            assert extractor.eval()(torch.zeros(1, 3, 32, 32)).shape[1:] == point.crossing[0][1]


def test_points_are_those_where_nothing_but_the_modules_own_output_crosses():
    result = points("resnet20_cifar")
    names = [point.name for point in usable(result)]
    assert {
        "conv1",
        "act1",
        "layer1",
        "layer2",
        "layer2.0",
        "layer3.2",
        "global_pool",
        "forward_features",
    } <= {*names}
    assert names.index("layer1") < names.index("layer2.0") < names.index("layer2")
    inner = result["layer2.0.conv1"]
    assert (inner.own, [name for name, _ in inner.crossing]) == (False, ["layer2.0.conv1", "layer1"])
    assert result["fc"].refused == "no later code uses its output"


def test_modules_that_end_at_one_place_name_the_outermost():
    result = points("resnet20_cifar")
    assert result["layer1.2"].same_as == "layer1"
    assert result["layer1"].same_as == result["layer1.0"].same_as == ""
    assert result["bn1"].same_as == ""  # the activation after it makes another value


def test_flops_count_multiplications_and_additions_of_one_image():
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(4 * 8 * 8, 10))
    first, second, last = find_cut_points(network, (3, 8, 8))
    convolution, linear = 2 * 3 * 9 * 4 * 64, 2 * 256 * 10
    assert (first.flops, second.flops, last.flops) == (
        (convolution, linear),
        (convolution, linear),
        (convolution + linear, 0),
    )
    assert (first.parameters, first.crossing) == ((108, 2570), (("0", (4, 8, 8)),))


def test_attention_is_counted():
    cuts_found = cuts("vit_tiny_patch16_224", {"depth": 2}, size=(32, 32))
    (listed,) = [point for point in cuts_found if point.name == "blocks.0"]
    tokens, width = 5, 192
    linears = 2 * tokens * (3 * width * width + width * width + 8 * width * width) + 2 * 4 * 768 * width
    attention = 2 * 2 * tokens * tokens * width
    assert listed.flops[0] == linears + attention


def test_a_tuple_that_a_module_gives_is_one_point(awkward):
    result = {point.name: point for point in cuts("tuples", builder=awkward)}["both"]
    assert result.own and not result.refused and result.approach == "declared"
    assert [shape for _, shape in result.crossing] == [(6, 8, 8), (6, 8, 8)]


def test_what_cannot_be_cut_says_why(awkward):
    def reason(model: str, name: str) -> str:
        return {point.name: point.refused for point in cuts(model, builder=awkward)}[name]

    assert reason("twice", "second") == "called 2 times"
    assert "9 tensors cross; at most 8" in reason("many", "copies")
    assert "cannot be traced" in reason("branches", "first")
    assert "used before and after" in reason("tied", "first") or "used on both sides" in reason(
        "tied", "first"
    )


def test_watching_leaves_modes_buffers_and_methods_alone():
    planned = plan("resnet20_cifar", "layer2", kwargs={})
    whole = build_pair(planned.extractor, planned.head, seed=0)[0]
    before, attributes = {n: v.clone() for n, v in whole.state_dict().items()}, set(vars(whole))
    whole.train()
    find_cut_points(whole, (3, 32, 32))
    assert whole.training and set(vars(whole)) == attributes
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items())
