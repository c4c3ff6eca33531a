"""Widths: a 1x1 convolution behind an extractor and before a head, rebuilt from the blueprint alone."""

from __future__ import annotations

import attrs
import pytest
import torch
import torch.nn.functional as F

from compatkit.adapters.blueprints import build, build_pair, own_width_of, structural
from compatkit.adapters.cutting.planning import CutPlan, plan
from compatkit.adapters.cutting.proof import prove
from compatkit.adapters.fingerprint import probe, same_probe
from compatkit.contracts.contract import Blueprint
from compatkit.errors import CutError
from compatkit.foundation.codec import structure, unstructure


@pytest.fixture(scope="module")
def planned() -> CutPlan:
    return plan("resnet8_cifar", "layer2", kwargs={"num_classes": 3, "in_chans": 1}, size=(16, 16))


def wide(planned: CutPlan, width: int) -> tuple[Blueprint, Blueprint]:
    return attrs.evolve(planned.extractor, width=width), attrs.evolve(planned.head, width=width)


@pytest.mark.parametrize(("width", "names"), [(8, ["to_width", "from_width"]), (32, ["to_width"])])
def test_parts_of_a_width_are_the_network_and_its_convolutions(
    planned: CutPlan, width: int, names: list[str]
) -> None:
    """The network's own width is 32: a head of it begins as it is."""
    left, right = wide(planned, width)
    whole, extractor, head = build_pair(left, right, seed=5)
    prove(whole, extractor, head, (16, 16), 1)
    bare, bare_extractor, bare_head = build_pair(planned.extractor, planned.head, seed=5)
    own, state = bare.state_dict(), whole.state_dict()
    assert all(torch.equal(state[name], value) for name, value in own.items())
    assert sorted({name.partition(".")[0] for name in state.keys() - own.keys()}) == sorted(names)
    images = torch.randn(2, 1, 16, 16)
    made = F.conv2d(bare_extractor.eval()(images), state["to_width.weight"], state["to_width.bias"])
    assert torch.equal(extractor.eval()(images), made) and made.shape == (2, width, 8, 8)
    if "from_width" in names:
        made = F.conv2d(made, state["from_width.weight"], state["from_width.bias"])
    assert torch.equal(whole.eval()(images), bare_head.eval()(made))


def test_a_part_comes_back_from_blueprint_and_weights(planned: CutPlan) -> None:
    left, right = wide(planned, 8)
    for blueprint, shape in ((left, (2, 1, 16, 16)), (right, (2, 8, 8, 8))):
        part = build(blueprint, seed=1)
        again = build(structure(Blueprint, unstructure(blueprint), "x"), state=part.state_dict())
        assert same_probe(probe(part, shape), probe(again, shape))
    with pytest.raises(CutError, match=r"2 tensors are missing: to_width.weight, to_width.bias"):
        build(left, state=build(planned.extractor, seed=1).state_dict())


def test_ports_stand_behind_and_before_the_convolutions(planned: CutPlan) -> None:
    left, right = wide(planned, 8)
    inputs = structural(build(left, seed=0), left).outputs
    (taken,) = structural(build(right, seed=0), right, feature_ports=inputs).inputs
    assert inputs[0].channels == taken.channels == 8
    assert inputs[0].range == "signed"  # a convolution stands behind the ReLU
    assert taken.shape == ("N", 8, "H", "W")


def test_a_manifest_names_a_width_only_where_there_is_one(planned: CutPlan) -> None:
    assert "width" not in unstructure(planned.extractor)
    assert unstructure(wide(planned, 8)[0])["width"] == 8


def test_a_width_needs_maps() -> None:
    tokens = plan("test_vit", "blocks.1")
    with pytest.raises(CutError, match=r"needs features \(N, C, H, W\); test_vit returns"):
        own_width_of(tokens.extractor)
    assert own_width_of(plan("test_resnet", "layer2", size=(64, 64)).extractor) == 48
