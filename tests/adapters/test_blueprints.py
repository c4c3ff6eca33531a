"""Blueprints: a part is rebuilt from its blueprint and its weights alone, and seeds decide initial weights."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import attrs
import pytest
import timm
import torch

from compatkit.adapters.blueprints import build, build_pair, with_classes
from compatkit.adapters.builders import create
from compatkit.adapters.cutting.planning import plan
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.initialization import without_draws
from compatkit.errors import CutError, EnvironmentFailure, FormatError, UnknownName, UsageError
from compatkit.registry.weights.tensorfile import deserialize, serialize

SWIN = {"depths": [1, 2, 1, 1], "embed_dim": 24}
CASES = [
    ("resnet20_cifar", "layer2", None, {}),
    ("resnet20_cifar", "forward_features", None, {}),
    ("simple_cnn", "blocks.1", (20, 24), {}),
    ("mobilenetv3_small_100", "blocks.2", (64, 64), {}),
    ("vit_tiny_patch16_224", "blocks.1", (64, 64), {"depth": 3}),
    ("vit_tiny_patch16_224", "forward_features", (64, 64), {"depth": 3}),
    ("swin_tiny_patch4_window7_224", "forward_features", (56, 56), SWIN),
]


def test_a_plan_says_what_a_manifest_needs():
    planned = plan("resnet20_cifar", "layer2", kwargs={"in_chans": 1, "num_classes": 10})
    result = planned.extractor
    assert (result.builder, result.library, result.model) == (
        "compatkit",
        f"compatkit {version('compatkit')}",
        "resnet20_cifar",
    )
    assert (result.cut, result.side, result.approach) == ("layer2", "extractor", "fx")
    assert (result.traced_size, result.cut_outputs) == ((32, 32), 1)
    assert dict(result.kwargs) == {"in_chans": 1, "num_classes": 10}
    assert planned.head == attrs.evolve(result, side="head")
    assert planned.class_layer == ("fc.",)
    assert planned.parameters == (65_264, 204_170)
    assert (planned.input.size, planned.input.channels, planned.input.mean) == ((32, 32), 1, (0.5,))


def test_the_input_of_a_timm_model_is_its_own():
    planned = plan("convnext_atto", "forward_features", kwargs={"in_chans": 1}, size=(64, 48))
    assert planned.input.size == planned.extractor.traced_size == (64, 48)
    assert planned.input.mean == pytest.approx((sum((0.485, 0.456, 0.406)) / 3,))
    assert planned.input.interpolation == "bicubic"
    assert planned.class_layer == ("head.fc.",)
    assert planned.extractor.approach == "canonical"


def test_a_backbone_of_fixed_size_is_built_for_the_size_asked_for():
    planned = plan("vit_tiny_patch16_224", "blocks.4", kwargs={}, size=(64, 32))
    assert planned.extractor.kwargs["img_size"] == [64, 32]
    assert planned.extractor.traced_size == (64, 32)
    own = plan("lenet", "pool2", kwargs={"img_size": 28})
    assert own.input.size == (28, 28)


@pytest.mark.parametrize(("model", "cut", "size", "small"), CASES)
def test_rebuilt_from_blueprint_and_bytes_a_part_is_the_same(model, cut, size, small):
    planned = plan(model, cut, kwargs={"num_classes": 5, **small}, size=size)
    _, extractor, head = build_pair(planned.extractor, planned.head, seed=3)
    with torch.no_grad():
        for parameter in (*extractor.parameters(), *head.parameters()):
            parameter.add_(0.01 * signal(parameter.shape, 5))
    state = torch.get_rng_state()
    rebuilt = [
        build(blueprint, state=deserialize(serialize(part.state_dict())))
        for blueprint, part in ((planned.extractor, extractor), (planned.head, head))
    ]
    other = build(planned.extractor, seed=11)
    other.load_state_dict(extractor.state_dict(), strict=True)
    assert torch.equal(torch.get_rng_state(), state)
    images = signal((2, 3, *planned.input.size))
    with torch.no_grad():
        features = extractor.eval()(images)
        assert torch.equal(rebuilt[0].eval()(images), features)
        assert torch.equal(other.eval()(images), features)
        assert torch.equal(rebuilt[1].eval()(features), head.eval()(features))


def test_a_seed_decides_the_weights_and_the_global_state_is_untouched():
    planned = plan("resnet20_cifar", "layer2", kwargs={})
    state = torch.get_rng_state()
    first, again, other = (build(planned.head, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])
    _, _, head = build_pair(planned.extractor, planned.head, seed=0)
    assert all(torch.equal(first[name], value) for name, value in head.state_dict().items())


def test_without_a_seed_the_global_state_decides():
    planned = plan("lenet", "pool2", kwargs={})
    torch.manual_seed(5)
    first = build(planned.head).state_dict()
    torch.manual_seed(5)
    assert torch.equal(first["fc.weight"], build(planned.head).state_dict()["fc.weight"])


def test_a_built_part_holds_nothing_of_the_other_side():
    planned = plan("resnet20_cifar", "layer2", kwargs={})
    head = build(planned.head, seed=0)
    assert {name.split(".")[0] for name in head.state_dict()} == {"layer3", "fc"}
    assert sum(p.numel() for p in head.parameters()) == planned.parameters[1]


def test_skipping_the_draws_draws_nothing():
    state = torch.get_rng_state()
    with without_draws():
        timm.create_model("vit_tiny_patch16_224", img_size=32)
        torch.nn.init.kaiming_normal_(torch.empty(3, 3))
    assert torch.equal(torch.get_rng_state(), state)


def test_with_classes_changes_the_class_layer_only():
    planned = plan("resnet20_cifar", "layer2", kwargs={"in_chans": 1, "num_classes": 10})
    more = with_classes(planned.head, 4)
    assert more == attrs.evolve(planned.head, kwargs={"in_chans": 1, "num_classes": 4})
    ten, four = build(planned.head, seed=0).state_dict(), build(more, seed=0).state_dict()
    assert four["fc.weight"].shape == (4, 64)
    assert all(torch.equal(ten[name], four[name]) for name in ten if not name.startswith("fc."))


def test_weights_of_another_part_are_refused():
    planned = plan("resnet20_cifar", "layer2", kwargs={})
    state = build(planned.extractor, seed=0).state_dict()
    with pytest.raises(
        CutError,
        match=r"not those of the head of resnet20_cifar at 'layer2': 38 tensors are missing: layer3.0.conv1",
    ):
        build(planned.head, state=state)
    with pytest.raises(CutError, match=r"another shape: conv1.weight is 1 where 16x3x3x3 is expected"):
        build(planned.extractor, state={**state, "conv1.weight": torch.zeros(1)})


def test_whole_weights_come_from_a_file_and_the_class_layer_may_differ(tmp_path: Path):
    planned = plan("lenet", "pool2", kwargs={"num_classes": 3})
    source = create("timm", "lenet", {"num_classes": 7})
    path = tmp_path / "lenet.safetensors"
    path.write_bytes(serialize(source.state_dict()))
    whole, extractor, _ = build_pair(planned.extractor, planned.head, seed=0, weights=path)
    assert torch.equal(extractor.state_dict()["conv1.weight"], source.conv1.weight)
    assert torch.equal(whole.dense2.weight, source.dense2.weight)
    drawn = build_pair(planned.extractor, planned.head, seed=0)[0]
    assert torch.equal(whole.fc.weight, drawn.fc.weight)


def test_bad_weight_files_are_refused(tmp_path: Path):
    planned = plan("lenet", "pool2", kwargs={})
    with pytest.raises(EnvironmentFailure, match=r"no such file.*'pretrained' or the path"):
        build_pair(planned.extractor, planned.head, weights=tmp_path / "none.safetensors")
    (tmp_path / "bad").write_bytes(b"no safetensors at all")
    with pytest.raises(FormatError):
        build_pair(planned.extractor, planned.head, weights=tmp_path / "bad")
    with pytest.raises(CutError, match="not those of lenet"):
        build_pair(planned.extractor, planned.head, weights={"conv1.weight": torch.zeros(6, 3, 5, 5)})


def test_parts_of_different_networks_are_no_pair():
    planned = plan("resnet20_cifar", "layer2", kwargs={})
    with pytest.raises(UsageError, match="cut from one network"):
        build_pair(planned.extractor, with_classes(planned.head, 3))


@pytest.mark.parametrize(
    ("model", "kwargs", "error", "message"),
    [
        ("resnet20_cifer", {}, UnknownName, "did you mean resnet20_cifar"),
        ("hf-hub:somebody/model", {}, UnknownName, "No model is called"),
        ("resnet20_cifar", {"depht": 1}, UsageError, "depht=1"),
        ("resnet20_cifar", {"pretrained": True}, UsageError, "weights='pretrained'"),
        ("resnet20_cifar", {"width": {1, 2}}, UsageError, "must be JSON values"),
        ("resnet20_cifar", {"drop_rate": float("nan")}, UsageError, "must be JSON values"),
    ],
)
def test_models_and_arguments_that_do_not_exist(model, kwargs, error, message):
    with pytest.raises(error, match=message):
        plan(model, "layer2", kwargs=kwargs)


def test_unknown_builders_and_approaches_are_refused():
    with pytest.raises(UnknownName, match="No builder is called 'keras'; known are compatkit, timm"):
        plan("resnet20_cifar", "layer2", kwargs={}, builder="keras")
    planned = plan("resnet20_cifar", "layer2", kwargs={})
    with pytest.raises(UnknownName, match="Unknown approach 'replay'"):
        build(attrs.evolve(planned.head, approach="replay"))


def test_images_that_a_network_does_not_take_are_refused():
    with pytest.raises(CutError, match="vgg16_cifar does not take 3 x 16 x 16 images"):
        plan("vgg16_cifar", "stage2", kwargs={}, size=(16, 16))
