"""Ports are measured: sizes that follow the image, fixed sizes, layout, range, tokens."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compatkit.adapters.blueprints import build_pair, structural, with_classes
from compatkit.adapters.cutting.planning import plan
from compatkit.adapters.ports.sizerules import MAX_STRIDE, SizeRule
from compatkit.contracts.contract import Port, Scaled, Structural
from compatkit.errors import CutError, UsageError

FEW = {
    "resnet18": {"layers": [1, 1, 1, 1]},
    "convnext_atto": {"depths": [1, 1, 1, 1]},
    "swin_tiny_patch4_window7_224": {"depths": [1, 1, 1, 1]},
    "vit_tiny_patch16_224": {"depth": 3},
}
"""Fewer blocks: their count changes neither channels nor sizes."""


def ports(
    model: str, cut: str, size: tuple[int, int] | None = None, **kwargs
) -> tuple[Structural, Structural]:
    planned = plan(model, cut, kwargs={"num_classes": 10, **FEW.get(model, {}), **kwargs}, size=size)
    _, extractor, head = build_pair(planned.extractor, planned.head, seed=0)
    left = structural(extractor, planned.extractor)
    return left, structural(head, planned.head, feature_ports=left.outputs)


def test_resnet20_at_layer2_is_the_example_of_the_contract():
    extractor, head = ports("resnet20_cifar", "layer2", in_chans=1)
    assert extractor.inputs == (Port("image", ("N", 1, "H", "W")),)
    (features,) = extractor.outputs
    assert features.shape == ("N", 32, Scaled("H", 1, 2, 0), Scaled("W", 1, 2, 0))
    assert (features.layout, features.range, features.pooled) == ("NCHW", "nonnegative", False)
    assert features.measured["32x32"] == (16, 16)
    assert all(
        seen == (Scaled("H", 1, 2).at(int(h)), Scaled("W", 1, 2).at(int(w)))
        for (h, w), seen in ((size.split("x"), seen) for size, seen in features.measured.items())
    )
    (entry,) = head.inputs
    assert entry.shape == ("N", 32, "H", "W")
    assert (entry.name, entry.range, entry.measured) == ("features", "nonnegative", {"32x32": (16, 16)})
    assert head.outputs == (Port("logits", ("N", 10), layout="NC", pooled=True),)


@pytest.mark.parametrize(
    ("model", "cut", "size", "shape", "layout", "sign"),
    [
        ("wide_resnet16_4_cifar", "layer2", None, (128, (1, 2, 0)), "NCHW", "signed"),
        ("lenet", "pool2", None, (16, (0, 4, -3)), "NCHW", "nonnegative"),
        ("vgg16_cifar", "stage3", None, (256, (0, 8, 0)), "NCHW", "nonnegative"),
        ("mobilenetv2_cifar", "blocks.10", None, (96, (3, 4, 0)), "NCHW", "signed"),
        ("simple_cnn", "blocks.1", None, (16, (0, 1, 0)), "NCHW", "nonnegative"),
        ("resnet18", "layer4", (64, 64), (512, (31, 32, 0)), "NCHW", "nonnegative"),
        ("convnext_atto", "stages.2", (64, 64), (160, (0, 16, 0)), "NCHW", "signed"),
        ("swin_tiny_patch4_window7_224", "patch_embed", (56, 56), None, "NHWC", "signed"),
    ],
)
def test_features_of_known_networks(model, cut, size, shape, layout, sign):
    (features,) = ports(model, cut, size)[0].outputs
    assert (features.layout, features.range, features.pooled) == (layout, sign, False)
    if shape is None:
        assert features.shape == ("N", 14, 14, 96)
    else:
        channels, (add, div, plus) = shape
        assert features.shape == ("N", channels, Scaled("H", add, div, plus), Scaled("W", add, div, plus))


@pytest.mark.parametrize(
    ("size", "width", "map_size"),
    [((128, 64), 24, (32, 16)), ((64, 64), 16, (16, 16)), ((96, 96), 24, (24, 24))],
)
def test_maps_of_a_fixed_network_have_their_channels_where_its_layers_work(size, width, map_size):
    small = {"embed_dim": width, "num_heads": [1, 2, 4, 8]}
    (features,) = ports("swin_tiny_patch4_window7_224", "layers.0", size, **small)[0].outputs
    assert (features.shape, features.layout) == (("N", *map_size, width), "NHWC")


def test_a_head_that_flattens_wants_fixed_sizes():
    extractor, head = ports("simple_cnn", "blocks.2", size=(12, 16))
    assert extractor.inputs[0].shape == ("N", 3, "H", "W")
    assert head.inputs[0].shape == ("N", 16, 12, 16)


@pytest.mark.case("F")
def test_tokens_count_their_prefix_and_images_are_fixed():
    extractor, head = ports("vit_tiny_patch16_224", "blocks.1", size=(64, 48))
    assert extractor.inputs[0].shape == ("N", 3, 64, 48)
    (features,) = extractor.outputs
    assert (features.shape, features.layout, features.prefix_tokens) == (("N", 13, 192), "NLC", 1)
    assert features.measured == {"64x48": (13,)}
    assert head.inputs[0].shape == ("N", "L", 192)
    assert head.inputs[0].prefix_tokens == 1


def test_patches_before_the_class_token_have_no_prefix():
    (features,) = ports("vit_tiny_patch16_224", "patch_embed", size=(64, 48))[0].outputs
    assert (features.shape, features.prefix_tokens) == (("N", 12, 192), 0)


def test_a_dynamic_transformer_has_a_free_count_of_tokens():
    extractor, _ = ports(
        "vit_tiny_patch16_224", "forward_features", size=(32, 32), dynamic_img_size=True, dynamic_img_pad=True
    )
    assert extractor.inputs[0].shape == ("N", 3, "H", "W")
    assert extractor.outputs[0].shape == ("N", "L", 192)


def test_a_soft_activation_that_is_large_everywhere_is_still_signed():
    soft = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1, bias=False), torch.nn.GELU())
    with torch.no_grad():
        soft[0].weight.mul_(1e4)
    planned = plan("resnet20_cifar", "layer2", kwargs={})
    (features,) = structural(soft, planned.extractor).outputs
    assert features.range == "signed"


@pytest.mark.case("F")
@pytest.mark.parametrize(
    ("cut", "shape", "pooled", "layout"),
    [("global_pool", ("N", 64, 1, 1), True, "NCHW"), ("head_drop", ("N", 64), True, "NC")],
)
def test_after_pooling_the_features_are_pooled(cut, shape, pooled, layout):
    extractor, head = ports("resnet20_cifar", cut)
    (features,) = extractor.outputs
    assert (features.shape, features.pooled, features.layout) == (shape, pooled, layout)
    assert extractor.inputs[0].shape == ("N", 3, "H", "W")
    assert head.outputs[0].shape == ("N", 10)


def test_a_flattened_map_is_a_vector_of_a_fixed_image_size_and_not_pooled():
    extractor, head = ports("lenet", "flatten")
    assert extractor.inputs[0].shape == ("N", 3, 32, 32)
    assert (extractor.outputs[0].shape, extractor.outputs[0].pooled) == (("N", 400), False)
    assert head.inputs[0].shape == ("N", 400)


def test_a_head_alone_learns_its_shape_from_an_extractor_of_its_own():
    planned = plan("resnet20_cifar", "layer2", kwargs={})
    _, _, head = build_pair(planned.extractor, planned.head, seed=0)
    (entry,) = structural(head, planned.head).inputs
    assert (entry.shape, entry.range) == (("N", 32, "H", "W"), "any")


def test_an_auxiliary_head_is_measured_on_the_same_port():
    planned = plan("resnet20_cifar", "layer2", kwargs={})
    _, extractor, _ = build_pair(planned.extractor, planned.head, seed=0)
    blueprint = with_classes(planned.head, 4)
    port = structural(extractor, planned.extractor).outputs[0]
    _, _, head = build_pair(with_classes(planned.extractor, 4), blueprint, seed=0)
    assert structural(head, blueprint, feature_ports=[port]).outputs[0].shape == ("N", 4)


def test_measuring_leaves_mode_buffers_and_random_state_alone():
    planned = plan("resnet20_cifar", "layer2", kwargs={})
    _, extractor, _ = build_pair(planned.extractor, planned.head, seed=0)
    before, state = {n: v.clone() for n, v in extractor.state_dict().items()}, torch.get_rng_state()
    structural(extractor.train(), planned.extractor)
    assert extractor.training and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in extractor.state_dict().items())


def test_a_head_without_one_vector_an_image_is_refused():
    planned = plan("resnet20_cifar", "layer2", kwargs={})
    port = Port("features", ("N", 32, "H", "W"), measured={"32x32": (16, 16)})
    with pytest.raises(CutError, match="A head must return one vector for each image"):
        structural(torch.nn.Conv2d(32, 10, 1), planned.head, feature_ports=[port])
    with pytest.raises(UsageError, match="unknown for images of 32x32"):
        structural(
            torch.nn.Conv2d(32, 10, 1), planned.head, feature_ports=[Port("features", ("N", 32, "H", "W"))]
        )


@settings(max_examples=30, deadline=None)
@given(
    layers=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=4
    ),
    base=st.integers(40, 80),
)
def test_a_rule_is_found_for_every_chain_of_convolutions(layers, base):
    """Kernel, stride, padding of each; the slow truth is the chain itself."""

    def chain(size: int) -> int:
        for kernel, stride, padding in layers:
            size = (size + 2 * padding - kernel) // stride + 1
        return size

    assume(prod(stride for _, stride, _ in layers) <= MAX_STRIDE)
    rule, sizes = SizeRule("H"), range(base, base + 2 * MAX_STRIDE + 1)
    rule.add(base, chain(base))
    while (size := rule.next_size(sizes)) is not None:
        rule.add(size, chain(size))
    if len({chain(size) for size in sizes}) > 1:
        assert rule.rule is not None
        assert all(rule.rule.at(size) == chain(size) for size in sizes)
        assert len(rule.measured) <= 14
