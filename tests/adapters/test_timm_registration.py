"""Our networks are timm models once the adapter is imported, and timm's errors become clear ones."""

from __future__ import annotations

import pytest
import timm
import torch

from compatkit.adapters import builders
from compatkit.adapters import timm as adapter
from compatkit.errors import UnknownName, UsageError


def test_every_small_network_is_a_timm_model():
    assert {
        "resnet20_cifar",
        "wide_resnet28_10_cifar",
        "simple_cnn",
        "lenet",
        "vgg16_cifar",
        "mobilenetv2_cifar",
    } <= set(timm.list_models())
    assert all(timm.is_model(entry.__name__) for entry in adapter.OURS)


def test_create_model_passes_arguments_and_fills_the_configuration():
    network = timm.create_model("resnet20_cifar", num_classes=10, in_chans=1)
    assert network(torch.zeros(2, 1, 32, 32)).shape == (2, 10)
    config = timm.data.resolve_model_data_config(network)
    assert config["input_size"] == (1, 32, 32)
    assert network.pretrained_cfg["architecture"] == "resnet20_cifar"


def test_the_module_that_registers_a_network():
    assert adapter.module_of("resnet18") == adapter.module_of("resnet18.a1_in1k") == "timm.models.resnet"
    assert (
        adapter.module_of("resnet20_cifar").startswith("compatkit.") and adapter.module_of("nonesuch") == ""
    )


def test_there_are_no_pretrained_weights_for_small_networks():
    with pytest.raises(UsageError, match="no pretrained weights for 'resnet20_cifar'"):
        timm.create_model("resnet20_cifar", pretrained=True)
    with pytest.raises(UsageError, match="Leave weights out"):
        adapter.create("resnet20_cifar", pretrained=True)


def test_arguments_that_a_model_does_not_take_are_refused():
    with pytest.raises(UsageError, match="'resnet20_cifar' with depht=3"):
        builders.create("timm", "resnet20_cifar", {"depht": 3})


def test_an_unknown_tag_lists_the_known_ones():
    with pytest.raises(UnknownName, match=r"no weights tagged 'nope'.*resnet18\.a1_in1k"):
        adapter.create("resnet18.nope")


def test_the_library_names_its_version():
    assert adapter.library() == f"timm {timm.__version__}"
