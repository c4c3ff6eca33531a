"""The small networks: sizes known from the papers, shortcuts by hand, timm's interface, initial weights."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compatkit.errors import UsageError
from compatkit_plugins.networks.classifier import Classifier
from compatkit_plugins.networks.mobile import mobilenetv2_cifar
from compatkit_plugins.networks.plain import lenet, simple_cnn, two_layer_head, vgg16_cifar
from compatkit_plugins.networks.residual import (
    BasicBlock,
    ResidualCifar,
    ShortcutA,
    WideResidualCifar,
    resnet18_v2_cifar,
    resnet20_cifar,
    resnet32_cifar,
    resnet44_cifar,
    resnet56_cifar,
    resnet110_cifar,
    wide_resnet16_4_cifar,
    wide_resnet28_4_cifar,
    wide_resnet40_2_cifar,
)

SMALL = (
    resnet20_cifar,
    wide_resnet16_4_cifar,
    lenet,
    simple_cnn,
    vgg16_cifar,
    mobilenetv2_cifar,
    two_layer_head,
)


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (resnet20_cifar, 269_722),  # He et al. 2016, table 6: 0.27 M
        (resnet32_cifar, 464_154),  # 0.46 M
        (resnet44_cifar, 658_586),  # 0.66 M
        (resnet56_cifar, 853_018),  # 0.85 M
        (resnet110_cifar, 1_727_962),  # 1.7 M
        (wide_resnet16_4_cifar, 2_748_890),  # Zagoruyko and Komodakis 2016, table 4: 2.7 M
        (wide_resnet40_2_cifar, 2_243_546),  # 2.2 M
        (wide_resnet28_4_cifar, 5_849_050),  # 5.8 M
        # torchvision's resnet18 has 11,181,642 with 10 classes: 7,680 more in its first filters, of 7x7 for 3x3, and
        # 1,792 more of normalization, which also follows its shortcuts
        (resnet18_v2_cifar, 11_181_642 - 7_680 - 1_792),
        (mobilenetv2_cifar, 2_236_682),  # the 3.5 M of the paper with 10 classes in place of 1000
        # 14,714,688 in the 13 convolutions of VGG16-D, and 512 x 10 + 10 in the class layer
        (vgg16_cifar, 14_714_688 + 5_130),
    ],
)
def test_parameter_counts_are_those_of_the_papers(build, count):
    assert parameters(build()) == count


def test_wide_resnet_28_10_has_36_5_million_parameters():
    with torch.device("meta"):
        assert parameters(WideResidualCifar(28, 10)) == 36_479_194


def test_lenet_has_the_61706_parameters_of_its_seven_layers():
    # 6 (25 + 1) + 16 (150 + 1) + 120 (400 + 1) + 84 (120 + 1) + 10 (84 + 1)
    assert parameters(lenet(in_chans=1)) == 156 + 2416 + 48120 + 10164 + 850 == 61706


def test_simple_cnn_counts_follow_its_arguments():
    network = simple_cnn(convolutions=2, filters=4, units=8, img_size=6, in_chans=1, num_classes=3)
    assert parameters(network) == 4 * (9 + 1) + 4 * (36 + 1) + 8 * (4 * 36 + 1) + 3 * (8 + 1)


def test_a_two_layer_head_is_two_dense_layers_with_batch_normalization_on_the_mean_over_pixels():
    network = two_layer_head(channels=6, units=5, num_classes=3).eval()
    assert parameters(network.fc) == 5 * (6 + 1) + 2 * 5 + 3 * (5 + 1)
    first, norm, _, last = network.fc
    maps = torch.randn(2, 6, 4, 3, generator=torch.Generator().manual_seed(0))
    expected = last(F.leaky_relu(norm(first(maps.mean((2, 3)))), 0.01))
    assert torch.allclose(network.forward_head(maps), expected, atol=1e-6)


def test_shortcut_a_takes_every_second_pixel_and_adds_zero_channels():
    x = torch.arange(2 * 2 * 3 * 4, dtype=torch.float32).reshape(2, 2, 3, 4)
    out = ShortcutA(2, 4, 2)(x)
    assert out.shape == (2, 4, 2, 2)
    assert torch.equal(out[:, 1:3], x[:, :, ::2, ::2])
    assert out[:, 0].abs().sum() == out[:, 3].abs().sum() == 0
    # image 0, channel 0 of the input: rows 0 and 2, columns 0 and 2
    assert out[0, 1].tolist() == [[0.0, 2.0], [8.0, 10.0]]


def test_a_strided_block_is_its_two_convolutions_plus_the_shortcut():
    block = BasicBlock(2, 4, 2).double().eval()
    x = torch.randn(1, 2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inner = F.relu(F.conv2d(x, block.conv1.weight, stride=2, padding=1) / math.sqrt(1 + block.bn1.eps))
    inner = F.conv2d(inner, block.conv2.weight, padding=1) / math.sqrt(1 + block.bn2.eps)
    expected = inner.clone()
    expected[:, 1:3] += x[:, :, ::2, ::2]
    torch.testing.assert_close(block(x), F.relu(expected))


def test_shortcuts_of_option_a_have_no_parameters():
    assert all(not list(m.parameters()) for m in resnet20_cifar().modules() if isinstance(m, ShortcutA))


def test_a_width_factor_widens_all_three_stages():
    network = ResidualCifar(8, width=3)
    assert [entry["num_chs"] for entry in network.feature_info] == [48, 96, 192]
    assert network.forward_features(torch.zeros(1, 3, 8, 8)).shape == (1, 192, 2, 2)


def test_mobilenet_has_17_blocks_and_64_channels_after_the_10th_and_96_after_the_11th():
    network = mobilenetv2_cifar().eval()
    assert len(network.blocks) == 17
    seen = {}
    for number in (9, 10):
        network.blocks[number].register_forward_hook(
            lambda m, a, out, n=number: seen.update({n: out.shape[1:]})
        )
    with torch.no_grad():
        network(torch.zeros(1, 3, 32, 32))
    assert seen == {9: (64, 8, 8), 10: (96, 8, 8)}


@pytest.mark.parametrize("build", SMALL)
@pytest.mark.parametrize("channels", [1, 3])
def test_timm_interface(build, channels):
    network: Classifier = build(num_classes=7, in_chans=channels).eval()
    config = network.pretrained_cfg
    assert config["input_size"] == (channels, 32, 32)
    assert len(config["mean"]) == len(config["std"]) == channels
    assert network.get_submodule(config["classifier"]) is network.get_classifier()
    assert isinstance(network.get_submodule(config["first_conv"]), nn.Conv2d)
    x = torch.rand(2, channels, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = network.forward_features(x)
        hidden = network.forward_head(features, pre_logits=True)
        assert features.shape[1] == network.num_features
        assert hidden.shape == (2, network.head_hidden_size)
        assert torch.equal(network(x), network.get_classifier()(hidden))
        assert network(x).shape == (2, 7)


@pytest.mark.parametrize("build", SMALL)
def test_feature_info_names_modules_with_these_channels_and_reductions(build):
    network = build().eval()
    for entry in network.feature_info:
        shapes = []
        hook = network.get_submodule(entry["module"]).register_forward_hook(
            lambda m, a, out, shapes=shapes: shapes.append(out.shape)
        )
        with torch.no_grad():
            network(torch.zeros(1, 3, 32, 32))
        hook.remove()
        assert len(shapes) == 1
        assert shapes[0][1] == entry["num_chs"]
        assert shapes[0][2] in (
            32 // entry["reduction"],
            (32 - 12) // entry["reduction"],
            28 // entry["reduction"],
        )


def test_reset_classifier_replaces_only_the_class_layer():
    network = resnet20_cifar()
    body = {name: value.clone() for name, value in network.state_dict().items() if not name.startswith("fc.")}
    network.reset_classifier(4)
    assert network.num_classes == 4
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 4)
    assert all(
        torch.equal(network.state_dict()[name], value)
        for name, value in body.items()
        if "running" not in name and "tracked" not in name
    )
    network.reset_classifier(0)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 64)


def test_initial_weights_are_he_normal_with_zero_biases():
    torch.manual_seed(0)
    network = vgg16_cifar()
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 30_000:
            expected = math.sqrt(2 / (9 * module.in_channels))
            assert module.weight.std().item() == pytest.approx(expected, rel=0.02)
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert module.bias is not None
            assert module.bias.abs().max() == 0
    assert network.get_classifier().weight.std().item() == pytest.approx(math.sqrt(1 / 512), rel=0.05)


@pytest.mark.parametrize("build", [resnet20_cifar, mobilenetv2_cifar, simple_cnn])
def test_the_body_does_not_depend_on_the_count_of_classes(build):
    bodies = []
    for classes in (2, 10):
        torch.manual_seed(3)
        state = build(num_classes=classes).state_dict()
        bodies.append({name: value for name, value in state.items() if value.shape[:1] != (classes,)})
    assert bodies[0].keys() == bodies[1].keys()
    assert all(torch.equal(bodies[0][name], bodies[1][name]) for name in bodies[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResidualCifar(21), "6 n \\+ 2 layers"),
        (lambda: WideResidualCifar(20, 2), "6 n \\+ 4 layers"),
        (lambda: ResidualCifar(20, width=0), "'width' must be a whole number from 1"),
        (lambda: resnet20_cifar(in_chans=0), "in_chans"),
        (lambda: resnet20_cifar(num_classes=-1), "num_classes"),
        (lambda: simple_cnn(filters=1.5), "filters"),
        (lambda: simple_cnn(img_size=(1, 2, 3)), "img_size"),
        (lambda: lenet(img_size=12), "at least 16x16"),
        (lambda: two_layer_head(units=0), "'units' must be a whole number from 1"),
        (lambda: resnet20_cifar().reset_classifier(2, "max"), "global_pool"),
    ],
)
def test_what_cannot_be_built_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_group_normalization_of_resnet18_v2_mixes_no_images():
    network = resnet18_v2_cifar(width=8).train()
    images = torch.randn(3, 3, 32, 32)
    alone = torch.cat([network(image[None]) for image in images])
    torch.testing.assert_close(network(images), alone, rtol=1e-4, atol=1e-5)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def test_max_pooling_of_a_simple_cnn_halves_the_map_and_rounds_up():
    network = simple_cnn(max_pool=True, img_size=9, filters=4, units=8)
    maps = network.forward_features(torch.randn(2, 3, 9, 9))
    wanted = F.max_pool2d(maps, 3, 2, 1).flatten(1)
    assert wanted.shape == (2, 4 * 5 * 5)
    torch.testing.assert_close(network.pool(maps), F.relu(network.dense(wanted)))
