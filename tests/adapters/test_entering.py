"""Entry layers of another width: built from the blueprint alone, and refused where they cannot be."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from torch import nn

from compatkit.adapters.blueprints import build, structural
from compatkit.adapters.cutting.planning import CutPlan, plan
from compatkit.adapters.stitching.widths import widen_entry
from compatkit.contracts.contract import Blueprint, Contract, Data, Protocol
from compatkit.contracts.contract_rules import check_new_contract
from compatkit.errors import CutError, FormatError
from compatkit.foundation.codec import structure, unstructure

DATA = Data((32, 32), "L", (0.5,), (0.5,))


@pytest.fixture(scope="module")
def planned() -> CutPlan:
    return plan("lenet", "pool1", kwargs={"num_classes": 3, "in_chans": 1}, size=(32, 32))


def test_a_head_of_other_entry_layers_comes_back_from_blueprint_and_weights(planned: CutPlan) -> None:
    wider = attrs.evolve(planned.head, entries=(("conv2", 9),))
    assert "entries" not in unstructure(planned.head) and unstructure(wider)["entries"] == [["conv2", 9]]
    before = torch.random.get_rng_state()
    head = build(wider, seed=3)
    assert torch.equal(before, torch.random.get_rng_state())
    own = build(planned.head, seed=3).state_dict()
    changed = {name for name, value in head.state_dict().items() if not torch.equal(value, own[name])}
    assert changed == {"conv2.weight", "conv2.bias"}
    assert all(bool(parameter.detach().any()) for parameter in head.get_submodule("conv2").parameters())
    again = build(structure(Blueprint, unstructure(wider), "x"), state=head.state_dict())
    features = torch.randn(2, 9, 14, 14)
    assert torch.equal(head.eval()(features), again.eval()(features))
    (port,) = structural(build(planned.extractor, seed=0), planned.extractor).outputs
    port = attrs.evolve(port, shape=(port.shape[0], 9, *port.shape[2:]))
    assert structural(head, wider, feature_ports=[port]).inputs[0].channels == 9


def test_the_old_layer_keeps_its_weights() -> None:
    old = nn.Conv2d(4, 6, 3, bias=False)
    head = nn.Sequential(old, nn.Flatten())
    new = widen_entry(head, "0", 7)
    assert head[0] is new and (new.in_channels, old.in_channels) == (7, 4)
    assert old.bias is None and old.weight.shape == (6, 4, 3, 3) and new.weight.shape == (6, 7, 3, 3)


@pytest.mark.parametrize(
    ("path", "actual"), [("none", "nothing"), ("1", "Flatten"), ("2", "Conv2d"), ("", "Sequential")]
)
def test_what_is_no_linear_layer_is_refused(path: str, actual: str) -> None:
    head = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Conv2d(4, 4, 3, groups=4))
    with pytest.raises(CutError, match=f"the head has {actual} at '{path}'"):
        widen_entry(head, path, 7)


@pytest.mark.parametrize(
    ("side", "entries", "says"),
    [
        ("extractor", (("conv1", 9),), "no entries except in a head of one input, got 'conv1'"),
        ("head", (("conv2", 0),), "int >= 1, got 0"),
        ("head", ((" ", 9),), "a name of 1 to"),
        ("head", (("conv2", 9), ("conv2", 8)), "every layer once"),
    ],
)
def test_entries_that_no_head_has_are_refused(planned: CutPlan, side: str, entries: Any, says: str) -> None:
    wrong = attrs.evolve(getattr(planned, side), entries=entries)
    part = build(getattr(planned, side), seed=0)
    contract = Contract(structural(part, getattr(planned, side)), DATA, Protocol("none"))
    with pytest.raises(FormatError, match=rf"entries(\[0\])*(\[1\])?: expected .*{says}"):
        check_new_contract(contract, wrong, "x")
