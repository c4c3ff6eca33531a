"""Cutting: parts reproduce the whole bit for bit in both modes, and what cannot be cut is refused clearly.

More networks of the same kinds: ``pytest -m slow tests/adapters/test_cutting.py``.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compatkit.adapters.blueprints import build_pair
from compatkit.adapters.cutting.cut import sides_of
from compatkit.adapters.cutting.planning import CutPlan, plan
from compatkit.adapters.cutting.proof import prove
from compatkit.adapters.cutting.signals import signal
from compatkit.errors import CutError, IntegrityError, UnknownName

SMALL = [
    ("resnet20_cifar", "conv1"),
    ("resnet20_cifar", "layer2"),
    ("resnet20_cifar", "layer3.1"),
    ("resnet20_cifar", "global_pool"),
    ("resnet20_cifar", "forward_features"),
    ("wide_resnet16_4_cifar", "layer2"),
    ("simple_cnn", "blocks.1"),
    ("simple_cnn", "blocks.0.conv"),
    ("vgg16_cifar", "stage3"),
    ("lenet", "pool1"),
    ("lenet", "flatten"),
    ("mobilenetv2_cifar", "blocks.10"),
    ("mobilenetv2_cifar", "forward_features"),
]
ZOO = [
    ("resnet18", "layer3"),
    ("resnet18", "layer1.0"),
    ("resnet18", "forward_features"),
    ("resnet50", "layer2"),
    ("densenet121", "features.denseblock2"),
    ("convnext_atto", "stages.2"),
    ("convnext_atto", "stages.2.blocks.1"),
    ("convnext_atto", "forward_features"),
    ("mobilenetv2_100", "blocks.3"),
    ("efficientnet_b0", "blocks.4"),
    ("regnety_002", "s2"),
    ("mobilenetv3_small_100", "blocks.3"),
    ("mobilenetv3_small_100", "forward_features"),
    ("vit_tiny_patch16_224", "blocks.1"),
    ("vit_tiny_patch16_224", "patch_embed"),
    ("vit_tiny_patch16_224", "forward_features"),
]
BREADTH = {
    ("vgg16_cifar", "stage3"),
    ("resnet18", "layer1.0"),
    ("resnet18", "forward_features"),
    ("resnet50", "layer2"),
    ("convnext_atto", "stages.2"),
    ("mobilenetv2_100", "blocks.3"),
    ("efficientnet_b0", "blocks.4"),
    ("regnety_002", "s2"),
}
"""Slow: an ordinary run shows another network of the same kind."""
NAMES: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"drop_rate": 0.2, "proj_drop_rate": 0.2, "depth": 3},
    "densenet121": {"drop_rate": 0.2, "block_config": [2, 3, 2, 2]},
    "efficientnet_b0": {"drop_path_rate": 0.3},
    "convnext_atto": {"drop_path_rate": 0.3},
}


def pair(model: str, cut: str, **inputs: Any) -> tuple[CutPlan, nn.Module, nn.Module, nn.Module]:
    size = (32, 32) if (model, cut) in SMALL else (64, 64)
    kwargs = {"num_classes": 10, **NAMES.get(model, {})}
    planned = plan(model, cut, kwargs=kwargs, size=inputs.pop("size", size))
    return planned, *build_pair(planned.extractor, planned.head, seed=1)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def step(whole: nn.Module, function: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """One pass in train mode: output, gradients, buffers."""
    whole.zero_grad()
    torch.manual_seed(7)
    output = function(x.clone())
    (output * signal(output.shape, 9)).sum().backward()
    return output.detach(), gradients(whole), {name: b.clone() for name, b in whole.named_buffers()}


@pytest.mark.parametrize(
    ("model", "cut"),
    [pytest.param(*entry, marks=[pytest.mark.slow] * (entry in BREADTH)) for entry in SMALL + ZOO],
)
def test_parts_equal_the_whole_in_both_modes_with_gradients_and_buffers(model, cut):
    planned, whole, extractor, head = pair(model, cut)
    size, channels = planned.input.size, planned.input.channels
    prove(whole, extractor, head, size, channels)

    twin, images = copy.deepcopy(whole).train(), signal((3, channels, *size))
    extractor.train()
    head.train()
    expected = step(twin, twin, images)
    output = step(whole, lambda x: head(extractor(x)), images)
    assert torch.equal(output[0], expected[0])
    assert output[1].keys() == expected[1].keys()
    assert all(torch.equal(value, expected[1][name]) for name, value in output[1].items())
    assert all(torch.equal(value, expected[2][name]) for name, value in output[2].items())

    own, other = extractor.state_dict(), head.state_dict()
    assert not own.keys() & other.keys()
    assert own.keys() | other.keys() == whole.state_dict().keys()
    count = sum(p.numel() for p in whole.parameters())
    assert sum(planned.parameters) == count


@pytest.mark.parametrize(
    ("model", "cut", "shape"),
    [
        ("resnet20_cifar", "layer2", (5, 3, 33, 46)),
        ("mobilenetv2_cifar", "forward_features", (1, 3, 40, 32)),
        ("resnet18", "layer3", (1, 3, 65, 81)),
        ("convnext_atto", "stages.1", (2, 3, 96, 64)),
    ],
)
def test_other_batch_and_image_sizes(model, cut, shape):
    _, whole, extractor, head = pair(model, cut)
    for module in (whole, extractor, head):
        module.eval()
    x = signal(shape)
    with torch.no_grad():
        assert torch.equal(head(extractor(x)), whole(x))


def test_parts_hold_the_parameters_of_the_whole_and_only_their_own_modules():
    _, whole, extractor, head = pair("resnet20_cifar", "layer2")
    parameters = dict(whole.named_parameters())
    for part in (extractor, head):
        assert all(parameter is parameters[name] for name, parameter in part.named_parameters())
    assert [name for name, _ in extractor.named_children()] == ["conv1", "bn1", "act1", "layer1", "layer2"]
    assert {name for name, _ in head.named_children()} == {"layer3", "global_pool", "fc", "head_drop"}


def test_a_canonical_part_keeps_neither_layers_nor_tensors_of_the_other_side():
    _, whole, extractor, head = pair("vit_tiny_patch16_224", "forward_features")
    assert {name for name, p in head.named_parameters()} == {"head.weight", "head.bias"}
    assert not hasattr(extractor, "head")
    assert head.pos_embed is None
    assert isinstance(whole.pos_embed, nn.Parameter)


def test_cutting_leaves_the_whole_as_it_was():
    planned = plan("resnet20_cifar", "layer2", kwargs={})
    whole, _, _ = build_pair(planned.extractor, planned.head, seed=0)
    whole.layer1.eval()
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    attributes = set(vars(whole))
    for approach in ("fx", "canonical"):
        sides_of(whole, "layer2", approach, (3, 32, 32))
    assert set(vars(whole)) == attributes
    assert whole.training and not whole.layer1.training
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items())


def test_a_copied_part_runs_on_its_own_weights():
    _, _, extractor, _ = pair("resnet20_cifar", "layer2")
    twin = copy.deepcopy(extractor).eval()
    extractor.eval()
    x = signal((2, 3, 32, 32))
    with torch.no_grad():
        assert torch.equal(twin(x), extractor(x))
        twin.conv1.weight.zero_()
        assert not torch.equal(twin(x), extractor(x))


def test_functional_dropout_direct_tensors_and_unused_state(awkward):
    planned = plan("drops", "norm", builder=awkward)
    whole, extractor, head = build_pair(planned.extractor, planned.head, seed=0)
    prove(whole, extractor, head, (8, 8), 3)
    assert {"early", "norm.weight"} <= extractor.state_dict().keys()
    assert {"late", "kept", "unused.weight"} <= head.state_dict().keys()
    assert "ramp" not in head.state_dict()
    assert "ramp" in dict(head.named_buffers())
    torch.manual_seed(0)
    x = signal((2, 3, 8, 8))
    assert not torch.equal(extractor.train()(x), extractor(x))
    assert torch.equal(extractor.eval()(x), extractor(x))


@pytest.mark.parametrize(
    ("model", "cut", "message"),
    [
        ("many", "copies", "9 tensors cross the cut 'copies' of Many: the output of copies"),
        ("twice", "second", "'second' is called 2 times"),
        ("tiny", "act.nothing", None),
        ("tied", "first", "scale: used before and after"),
        ("branches", "first", "cannot be traced down to 'first'"),
        ("drops", "unused", "'unused' is called 0 times"),
        ("tiny", "forward_features", "no forward_features and forward_head"),
    ],
)
def test_what_cannot_be_cut_is_refused_and_says_what_crosses(awkward, model, cut, message):
    with pytest.raises(CutError if message else UnknownName, match=message):
        plan(model, cut, builder=awkward)


def test_an_in_place_layer_after_the_cut_gets_a_copy(awkward):
    planned = plan("inplace", "first", builder=awkward)
    whole, extractor, head = build_pair(planned.extractor, planned.head, seed=0)
    prove(whole, extractor, head, (8, 8), 3)
    features = extractor(signal((2, 3, 8, 8))).detach()
    before = features.clone()
    head(features)
    assert torch.equal(features, before)


def test_an_in_place_layer_hidden_in_a_block_is_refused(awkward):
    planned = plan("inplace", "first", kwargs={"hidden": True}, builder=awkward)
    with pytest.raises(CutError, match="changes its input in place"):
        prove(*build_pair(planned.extractor, planned.head, seed=0), (8, 8), 3)


def test_an_unknown_split_point_suggests_near_ones():
    with pytest.raises(UnknownName, match=r"no module 'layer3\.7'.*did you mean layer3\.2"):
        plan("resnet20_cifar", "layer3.7", kwargs={})
    with pytest.raises(
        UnknownName, match=r"to cut after; top-level modules are .*`compatkit cuts MODEL` lists"
    ):
        plan("resnet20_cifar", "zzzzzz", kwargs={})


def test_prove_finds_a_part_with_other_weights():
    _, whole, extractor, head = pair("resnet20_cifar", "layer2")
    other = copy.deepcopy(head)
    with torch.no_grad():
        other.fc.bias.add_(1e-3)
    with pytest.raises(CutError, match="In eval mode the parts do not reproduce the whole"):
        prove(whole, extractor, other, (32, 32), 3)


def test_prove_finds_a_part_that_only_differs_in_train_mode():
    _, whole, extractor, head = pair("resnet20_cifar", "layer2")
    other = copy.deepcopy(head)
    other.head_drop.p = 0.5
    with pytest.raises(CutError, match="In train mode"):
        prove(whole, extractor, other, (32, 32), 3)


def test_prove_leaves_modes_buffers_and_random_state_alone():
    _, whole, extractor, head = pair("resnet20_cifar", "layer2")
    whole.train()
    head.layer3.eval()
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    state = torch.get_rng_state()
    prove(whole, extractor, head, (32, 32), 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items())
    assert whole.training and not head.layer3.training


class Writes(nn.Conv2d):
    """Changes its weight while it runs: seen by autograd, or not."""

    unseen = False

    def forward(self, input: Tensor) -> Tensor:
        y = super().forward(input)
        weight = self.weight.data if self.unseen else self.weight
        with torch.no_grad():
            weight.mul_(0.99)
        return y


@pytest.mark.parametrize("unseen", [False, True])
def test_a_parameter_that_the_forward_pass_writes_into_is_named(unseen: bool) -> None:
    writes = Writes(4, 2, 1)
    writes.unseen = unseen
    whole = nn.Sequential(nn.Conv2d(3, 4, 1), writes)
    with pytest.raises(CutError, match="writes into its parameter") as caught:
        prove(whole, *whole, (8, 8), 3)
    assert caught.value.subject == "1.weight"


def test_outputs_that_are_not_finite_are_told_with_the_largest_weights() -> None:
    large = nn.Conv2d(3, 4, 1)
    nn.init.constant_(large.weight, 3e38)
    whole = nn.Sequential(large, nn.Conv2d(4, 2, 1))
    with pytest.raises(IntegrityError) as caught:
        prove(whole, *whole, (8, 8), 3)
    assert caught.value.subject == "0.weight"
