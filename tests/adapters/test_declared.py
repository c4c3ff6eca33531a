"""Cuts that more than one tensor crosses: tuples are declared, numbers follow from sizes, the rest is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from compatkit.adapters.blueprints import build, build_pair
from compatkit.adapters.cutting.planning import CutPlan, plan
from compatkit.adapters.cutting.proof import prove
from compatkit.adapters.cutting.signals import signal
from compatkit.errors import CutError


def parts(model: str, cut: str, awkward: str) -> tuple[CutPlan, nn.Module, nn.Module, nn.Module]:
    planned = plan(model, cut, builder=awkward)
    whole, extractor, head = build_pair(planned.extractor, planned.head, seed=0)
    return planned, whole, extractor.eval(), head.eval()


@pytest.mark.parametrize(
    ("model", "cut", "names"),
    [
        ("skips", "second", ("features", "first")),
        ("image", "second", ("features", "image")),
        ("tuples", "both", ("features.0", "features.1")),
        ("changed", "pair", ("features.0", "features.1")),
        ("changed", "stage", ("features.0", "features.1")),
        ("bias", "second", ("features", "bias")),
        ("bias", "first", ("features",)),
        ("sizes", "second", ("features",)),
        ("rotary", "first", ("features",)),
        ("rotary", "second", ("features",)),
        ("tokens", "mix", ("features",)),
        ("unpacks", "first", ("features",)),
        ("unpacks", "second", ("features",)),
    ],
)
def test_what_crosses_is_declared_and_the_parts_reproduce_the_whole(awkward, model, cut, names):
    planned, whole, extractor, head = parts(model, cut, awkward)
    assert extractor.port_names == head.port_names == names
    assert planned.extractor.cut_outputs == len(names)
    prove(whole, extractor, head, (8, 8), planned.input.channels)


def test_several_tensors_are_one_tuple_for_extractor_and_head(awkward):
    _, whole, extractor, head = parts("skips", "second", awkward)
    x = signal((2, 3, 8, 8))
    features = extractor(x)
    assert isinstance(features, tuple)
    assert torch.equal(features[0], whole.second(whole.first(x)))
    assert torch.equal(features[1], whole.first(x))
    assert torch.equal(head(features), whole.eval()(x))


@pytest.mark.parametrize(("model", "cut"), [("skips", "second"), ("bias", "second"), ("changed", "stage")])
def test_gradients_reach_both_parts_through_every_tensor(awkward, model, cut):
    _, whole, extractor, head = parts(model, cut, awkward)
    twin, x = copy.deepcopy(whole).train(), signal((2, 3, 8, 8))
    twin(x).square().sum().backward()
    head.train()(extractor.train()(x)).square().sum().backward()
    expected = {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}
    output = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    assert output.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in output.items())


def test_a_parameter_belongs_to_one_part_where_what_it_makes_crosses(awkward):
    _, whole, extractor, head = parts("bias", "second", awkward)
    assert "bias.values" in extractor.state_dict()
    assert "bias.values" not in head.state_dict()
    assert extractor.state_dict().keys() | head.state_dict().keys() == whole.state_dict().keys()


@pytest.mark.parametrize(("model", "cut"), [("sizes", "second"), ("rotary", "second"), ("skips", "second")])
def test_numbers_that_follow_from_what_crosses_serve_every_image_size(awkward, model, cut):
    _, whole, extractor, head = parts(model, cut, awkward)
    x = signal((3, 3, 12, 20))
    assert torch.equal(head(extractor(x)), whole.eval()(x))


def test_a_head_that_needs_a_size_which_nothing_shows_holds_for_the_traced_one_and_says_so(awkward):
    _, _whole, extractor, head = parts("tokens", "mix", awkward)
    assert extractor(signal((2, 3, 12, 20))).shape == (2, 240, 6)
    with pytest.raises(CutError, match=r"cut for one image size: it takes \(64, 6\).*got \(240, 6\)"):
        head(signal((2, 240, 6)))


def test_code_behind_the_cut_that_branches_on_a_size_holds_for_the_traced_one_and_says_so(awkward):
    planned, _, extractor, _ = parts("unpacks", "first", awkward)
    assert planned.extractor.approach == "declared"
    with pytest.raises(CutError, match="cut for one image size"):
        extractor(signal((2, 3, 4, 4)))


@pytest.mark.parametrize("side", [3, 4, 7, 20])
def test_code_before_the_cut_that_branches_on_a_size_runs_as_it_is(awkward, side):
    planned, whole, extractor, head = parts("unpacks", "second", awkward)
    assert planned.extractor.approach == "stopped"
    x = signal((2, 3, side, side + 1))
    assert torch.equal(head(extractor(x)), whole.eval()(x))
    assert not any(extractor.fc.state_dict()) and "fc.weight" in head.state_dict()
    twin = copy.deepcopy(extractor)
    assert torch.equal(twin(x), extractor(x))


@pytest.mark.parametrize(("model", "cut"), [("skips", "second"), ("rotary", "first"), ("tokens", "mix")])
def test_parts_are_built_alone_from_their_blueprints(awkward, model, cut):
    planned, whole, extractor, head = parts(model, cut, awkward)
    x = signal((2, 3, 8, 8))
    left = build(planned.extractor, state=extractor.state_dict()).eval()
    right = build(planned.head, state=head.state_dict()).eval()
    assert torch.equal(right(left(x)), whole.eval()(x))


def test_a_crossing_tensor_that_is_changed_in_place_is_copied_first(awkward):
    _, _, extractor, head = parts("changed", "pair", awkward)
    features = extractor(signal((2, 3, 8, 8)))
    before = [feature.clone() for feature in features]
    head(features)
    assert all(map(torch.equal, features, before))


@pytest.mark.parametrize(("model", "size"), [("steps", (128, 64)), ("pads", (17, 19))])
def test_numbers_that_only_some_sizes_move_never_give_a_wrong_answer(awkward, model, size):
    _, whole, extractor, head = parts(model, "first", awkward)
    x = signal((2, 3, *size))
    try:
        output = head(extractor(x))
    except CutError as error:
        assert "cut for one image size" in str(error)
    else:
        assert torch.equal(output, whole.eval()(x))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("temperature", "depends on the network's own parameters"),
        ("switched", "depends on the network's own parameters"),
        ("layerdrop", "draws random numbers"),
        ("detached", "disables gradients"),
    ],
)
def test_what_a_trace_would_freeze_is_refused(awkward, model, message):
    with pytest.raises(CutError, match=message):
        plan(model, "first", builder=awkward)


def test_cutting_leaves_nothing_of_the_trace_on_the_network(awkward):
    planned, whole, _, _ = parts("remembers", "first", awkward)
    assert planned.extractor.approach == "fx"
    assert whole.last is None and whole.cache is None


def test_counts_that_change_before_the_cut_are_kept(awkward):
    _, whole, extractor, head = parts("counts", "first", awkward)
    prove(whole, extractor, head, (8, 8), 3)
    extractor.train()(signal((2, 3, 8, 8)))
    assert int(extractor.seen) == 1


def test_an_own_train_method_is_not_overruled_by_the_proof(awkward):
    planned = plan("stubborn", "first", builder=awkward)
    with pytest.raises(CutError, match="In train mode the parts do not"):
        prove(*build_pair(planned.extractor, planned.head, seed=0), (8, 8), 3)
