"""torchvision's classifiers: built with their class layer known, without downloads, and with weights only if asked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision

from compatkit.adapters.blueprints import build_pair
from compatkit.adapters.builders import create
from compatkit.adapters.cutting.planning import plan
from compatkit.adapters.cutting.proof import prove
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.initialization import seeded, without_draws
from compatkit.adapters.modelconfig import class_layer, config_of, input_of
from compatkit.errors import CutError, EnvironmentFailure, UnknownName, UsageError
from compatkit_plugins.networks import torchvision as plugin

FEW = [
    ("squeezenet1_1", "features.5", "classifier.1."),
    ("shufflenet_v2_x0_5", "stage3", "fc."),
    ("mobilenet_v3_small", "features.3", "classifier.3."),
    ("resnet18", "layer2", "fc."),
]
FAMILIES = [
    ("alexnet", "features.5", 64),
    ("convnext_tiny", "features.3", 32),
    ("densenet121", "features.transition2", 32),
    ("efficientnet_b0", "features.3", 32),
    ("efficientnet_v2_s", "features.3", 33),
    ("googlenet", "maxpool3", 32),
    ("inception_v3", "Mixed_5d", 75),
    ("maxvit_t", "blocks.0", 224),
    ("mnasnet0_5", "layers.9", 32),
    ("mobilenet_v2", "features.6", 32),
    ("mobilenet_v3_large", "features.6", 32),
    ("regnet_y_400mf", "trunk_output.block2", 32),
    ("resnext50_32x4d", "layer2", 32),
    ("swin_t", "features.3", 32),
    ("swin_v2_t", "features.3", 32),
    ("vgg11", "features.10", 32),
    ("vit_b_32", "encoder.layers.encoder_layer_5", 32),
]


def built(model: str, **kwargs: Any) -> torch.nn.Module:
    with seeded(0), without_draws():
        return create("torchvision", model, kwargs)


def width(network: torch.nn.Module) -> int:
    (layer,) = class_layer(network)
    return network.state_dict()[f"{layer}weight"].shape[0]


@pytest.mark.parametrize(("model", "cut", "layer"), FEW)
def test_a_classifier_is_planned_and_cut_with_its_class_layer(model: str, cut: str, layer: str) -> None:
    planned = plan(model, cut, kwargs={"num_classes": 7}, size=(64, 64), builder="torchvision")
    assert planned.class_layer == (layer,)
    assert planned.extractor.library == f"torchvision {torchvision.__version__.split('+')[0]}"
    whole, extractor, head = build_pair(planned.extractor, planned.head, seed=0)
    assert head.eval()(extractor.eval()(signal((2, 3, 64, 64)))).shape == (2, 7)
    prove(whole, extractor, head, (64, 64), 3)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "cut", "size"), FAMILIES)
def test_the_smallest_of_each_family_is_planned_and_cut(model: str, cut: str, size: int) -> None:
    planned = plan(model, cut, kwargs={"num_classes": 7}, size=(size, size), builder="torchvision")
    assert len(planned.class_layer) == 1
    whole, extractor, head = build_pair(planned.extractor, planned.head, seed=0)
    prove(whole, extractor, head, (size, size), 3)


@pytest.mark.slow
@pytest.mark.parametrize("model", plugin.build.names)
def test_every_classifier_is_built_with_the_class_layer_found(model: str) -> None:
    network = built(model, num_classes=7)
    assert width(network) == 7
    shapes, layers = {name: value.shape for name, value in network.state_dict().items()}, class_layer(network)
    del network  # the largest has 640 million parameters
    again = {name: value.shape for name, value in built(model, num_classes=9).state_dict().items()}
    differing = dict(shapes.items() ^ again.items())
    assert differing and all(name.startswith(layers) for name in differing)


def test_without_arguments_there_are_the_classes_of_imagenet() -> None:
    assert width(built("squeezenet1_1")) == 1000


def test_the_configuration_is_read_from_the_metadata_of_the_default_weights() -> None:
    config = config_of(built("resnet50"))
    assert (config["input_size"], config["fixed_input_size"]) == ((3, 224, 224), False)
    assert config["mean"] == (0.485, 0.456, 0.406) and config["std"] == (0.229, 0.224, 0.225)
    assert (config["interpolation"], config["crop_pct"]) == ("bilinear", 224 / 232)
    inputs = input_of(built("efficientnet_b1"), {}, None)
    assert (inputs.size, inputs.channels, inputs.crop_mode) == ((240, 240), 3, "center")


@pytest.mark.parametrize("model", ["googlenet", "inception_v3"])
def test_there_are_no_auxiliary_outputs(model: str) -> None:
    network = built(model, num_classes=4).train()
    assert isinstance(network(signal((2, 3, 96, 96))), torch.Tensor)
    with pytest.raises(UsageError, match="gives a named tuple in train mode"):
        built(model, aux_logits=True)


def test_the_configuration_takes_the_place_of_transform_input() -> None:
    """Images normalized as the configuration says, or ImageNet's way and then by the network: the same logits."""
    with seeded(3):
        network = create("torchvision", "googlenet", {"num_classes": 4}).eval()
    inside = built("googlenet", num_classes=4, transform_input=True).eval()
    inside.load_state_dict(network.state_dict())
    assert config_of(network)["mean"] == (0.5, 0.5, 0.5)
    assert config_of(inside)["mean"] == (0.485, 0.456, 0.406)
    pixels = signal((2, 3, 32, 32)).abs()
    ours, theirs = (
        item(
            (pixels - torch.tensor(config_of(item)["mean"])[:, None, None])
            / torch.tensor(config_of(item)["std"])[:, None, None]
        )
        for item in (network, inside)
    )
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_vision_transformer_is_built_for_the_size_asked_for() -> None:
    planned = plan("vit_b_32", "encoder.layers.encoder_layer_0", size=(64, 64), builder="torchvision")
    assert planned.extractor.kwargs == {"img_size": [64, 64]}
    assert config_of(built("vit_b_32", img_size=64))["input_size"] == (3, 64, 64)
    assert config_of(built("vit_b_32"))["input_size"] == (3, 224, 224)
    with pytest.raises(UsageError, match="builds it for square images; got 64 x 32"):
        built("vit_b_32", img_size=[64, 32])


@pytest.mark.parametrize("size", ["64", 64.0, 0, True, [64], [64, [64]], None, {"height": 64}])
def test_a_size_is_one_or_two_whole_numbers(size: Any) -> None:
    with pytest.raises(UsageError, match=r"img_size is one whole number or two \(height, width\), got"):
        built("vit_b_32", img_size=size)


def test_maxvit_says_which_sizes_it_takes() -> None:
    with pytest.raises(UsageError, match="not divisible by partition size"):
        built("maxvit_t", img_size=64)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"in_chans": 1}, "take RGB images, in_chans=3; got 1"),
        ({"num_classes": 0}, "'num_classes' must be a whole number from 1 up; got 0"),
        ({"num_classes": "7"}, "'num_classes' must be a whole number from 1 up; got '7'"),
        ({"depht": 3}, "torchvision does not build 'resnet18' with depht=3"),
        ({"img_size": 64}, "img_size=64"),
        ({"norm_layer": "os.system"}, "torchvision does not build 'resnet18'"),
        ({"progress": True}, "progress cannot be part of a blueprint"),
        ({"weights": "DEFAULT"}, "weights cannot be part of a blueprint"),
        ({"weights_backbone": "DEFAULT"}, "weights_backbone cannot be part of a blueprint"),
        ({"pretrained": True}, "pass weights='pretrained'"),
    ],
)
def test_arguments_that_a_network_does_not_take_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        built("resnet18", **kwargs)


def test_three_channels_may_be_said() -> None:
    assert width(built("squeezenet1_1", in_chans=3)) == 1000


def test_only_classifiers_are_known_and_near_names_suggested() -> None:
    assert len(plugin.build.names) >= 80
    assert "resnet18" in plugin.build.names
    with pytest.raises(UnknownName, match="did you mean resnet18"):
        built("resnet19")
    for other in ("ResNet18", "resnet18.IMAGENET1K_V1", "fasterrcnn_resnet50_fpn"):
        with pytest.raises(UnknownName, match="No model is called"):
            built(other)


def test_a_network_without_a_version_in_its_state_dict_is_loaded() -> None:
    """MNASNet's own loader asks for a version, which safetensors does not keep."""
    network = built("mnasnet0_5")
    network.load_state_dict({name: value.clone() for name, value in network.state_dict().items()})


@pytest.mark.timeout(20)
def test_weights_that_are_drawn_again_until_they_fit_do_not_wait_for_ever() -> None:
    with without_draws():
        torch.nn.init.trunc_normal_(torch.full((4,), 9.0), mean=5.0, a=4.0, b=6.0)


def checkpoint(model: str, state: Any) -> Path:
    """Put a file where torch keeps the default weights that it fetched."""
    name = plugin._weights(model).url.rsplit("/", 1)[1]
    path = Path(os.environ["TORCH_HOME"]) / "hub" / "checkpoints" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)
    return path


def test_pretrained_weights_are_loaded_from_the_cache() -> None:
    with seeded(1):
        source = create("torchvision", "shufflenet_v2_x0_5", {})
    state = {name: value for name, value in source.state_dict().items() if "num_batches" not in name}
    checkpoint("shufflenet_v2_x0_5", state)
    with seeded(2):
        network = create("torchvision", "shufflenet_v2_x0_5", {"num_classes": 3}, pretrained=True)
    assert torch.equal(network.state_dict()["conv1.0.weight"], state["conv1.0.weight"])
    assert width(network) == 3
    checkpoint("shufflenet_v2_x0_5", {**state, "conv1.0.weight": torch.zeros(1)})
    with pytest.raises(CutError, match="not those of shufflenet_v2_x0_5"):
        create("torchvision", "shufflenet_v2_x0_5", {}, pretrained=True)


def test_old_names_and_auxiliary_layers_of_checkpoints_are_understood() -> None:
    dense = built("densenet121")
    old = {
        name.replace(".norm1.", ".norm.1.").replace(".conv2.", ".conv.2."): value
        for name, value in dense.state_dict().items()
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    checkpoint("densenet121", old)
    assert set(plugin.pretrained("densenet121", dense)) == set(dense.state_dict())
    google = built("googlenet")
    checkpoint("googlenet", {**google.state_dict(), "aux1.fc1.weight": torch.zeros(1)})
    assert set(plugin.pretrained("googlenet", google)) == set(google.state_dict())


def test_without_a_cache_and_a_network_there_is_an_error_that_says_so() -> None:
    with pytest.raises(
        EnvironmentFailure, match=r"'resnet18' could not be fetched or read.*HF_HUB_OFFLINE is set"
    ):
        create("torchvision", "resnet18", {}, pretrained=True)


def test_a_fetch_that_fails_is_a_failure_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)
    with pytest.raises(EnvironmentFailure, match="no route to host"):
        create("torchvision", "resnet18", {}, pretrained=True)


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_what_a_checkpoint_pickles_besides_tensors_is_not_run(tmp_path: Path) -> None:
    checkpoint("resnet18", {"fc.weight": Trap(tmp_path / "sprung")})
    with pytest.raises(EnvironmentFailure, match="could not be fetched or read"):
        create("torchvision", "resnet18", {}, pretrained=True)
    assert not (tmp_path / "sprung").exists()
