"""A part is rebuilt alone: nothing drawn, nothing of the other half kept, buffers outside the file right."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from compatkit.adapters.blueprints import build, build_pair
from compatkit.adapters.cutting.planning import plan
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.initialization import without_draws
from compatkit.errors import CutError


def parts(model: str, cut: str, **kwargs):
    planned = plan(model, cut, **kwargs)
    whole, extractor, head = build_pair(planned.extractor, planned.head, seed=3)
    return planned, whole.eval(), extractor.eval(), head.eval()


def test_no_random_number_is_drawn_where_weights_are_given():
    planned, _, extractor, _ = parts("resnet20_cifar", "layer2")
    state, before = extractor.state_dict(), torch.get_rng_state()
    build(planned.extractor, state=state)
    assert torch.equal(torch.get_rng_state(), before)


def test_truncated_normals_are_not_drawn_again_and_again():
    with without_draws():
        weight = torch.full((100,), float("nan"))
        nn.init.trunc_normal_(weight, std=0.01, a=-2, b=2)
    assert weight.isnan().all()
    assert not nn.init.trunc_normal_(weight, std=0.01, a=-2, b=2).isnan().any()


@pytest.mark.parametrize("cut", ["layer2", "forward_features"])
def test_the_other_half_is_not_kept_in_memory(cut):
    planned, _, extractor, head = parts("resnet20_cifar", cut)
    for blueprint, part in ((planned.extractor, extractor), (planned.head, head)):
        gc.freeze()  # what is there by now is neither searched nor listed
        rebuilt = build(blueprint, state=part.state_dict())
        gc.collect()
        fresh = [get_object for get_object in gc.get_objects() if type(get_object) is nn.Parameter]
        assert {id(entry) for entry in fresh} == {id(parameter) for parameter in rebuilt.parameters()}


@pytest.mark.case("G")
@pytest.mark.parametrize(
    ("model", "cut", "size", "small"),
    [
        ("swin_tiny_patch4_window7_224", "layers.1", (56, 56), {"depths": [1, 2, 1, 1], "embed_dim": 24}),
        ("levit_128s", "stages.0", (224, 224), {}),
        ("vit_small_patch16_dinov3", "blocks.1", (32, 32), {"depth": 3, "embed_dim": 96}),
    ],
)
def test_buffers_that_no_file_holds_are_made_again(model, cut, size, small):
    planned, whole, extractor, head = parts(model, cut, size=size, kwargs={"num_classes": 3, **small})
    assert set(dict(whole.named_buffers())) - set(whole.state_dict())
    left, right = (
        build(blueprint, state=part.state_dict()).eval()
        for blueprint, part in ((planned.extractor, extractor), (planned.head, head))
    )
    x = signal((2, 3, *size))
    with torch.no_grad():
        assert torch.equal(right(left(x)), whole(x))


@pytest.mark.case("G")
def test_weights_of_another_part_are_refused_with_what_is_missing():
    planned, _, extractor, head = parts("resnet20_cifar", "layer2")
    with pytest.raises(CutError, match="at 'layer2': 78 tensors are missing"):
        build(planned.extractor, state=head.state_dict())
    fewer = dict(extractor.state_dict())
    del fewer["conv1.weight"]
    with pytest.raises(CutError, match=r"missing: conv1.weight"):
        build(planned.extractor, state=fewer)
