"""Checkpoints of timm and torchvision become parts whose recombination is the network they were saved from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from savedfiles import saved
from small import data_set
from torch import Tensor

import compatkit as ck
from compatkit.adapters.cutting.signals import signal
from compatkit.errors import (
    CheckpointMismatch,
    CutError,
    FormatError,
    IntegrityError,
    InvalidName,
    UnknownName,
    UsageError,
)
from compatkit.reports.contracts import summary

State = dict[str, Tensor]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def registry(tmp_path: Path) -> ck.Registry:
    return ck.Registry.init(tmp_path / "parts")


NETWORKS: dict[str, tuple[Callable[[], torch.nn.Module], dict[str, Any]]] = {
    "resnet18": (
        lambda: timm.create_model("resnet18", num_classes=7),
        {"model": "resnet18", "cut": "layer3"},
    ),
    "mobilenet_v3_small": (
        lambda: torchvision.models.mobilenet_v3_small(num_classes=5),
        {"model": "mobilenet_v3_small", "builder": "torchvision", "cut": "features.8"},
    ),
}
FORMATS = {".pth": "zip", ".pt": "legacy", ".safetensors": "safetensors"}


def write(path: Path, state: State) -> Path:
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        path.write_bytes(saved(state, old=path.suffix == ".pt"))
    return path


@pytest.mark.parametrize(
    ("network", "suffix"),
    [
        ("resnet18", ".pth"),
        pytest.param("resnet18", ".pt", marks=pytest.mark.slow),
        pytest.param("resnet18", ".safetensors", marks=pytest.mark.slow),
        pytest.param("mobilenet_v3_small", ".pth", marks=pytest.mark.slow),
        ("mobilenet_v3_small", ".pt"),
        ("mobilenet_v3_small", ".safetensors"),
    ],
)
def test_the_recombination_of_adopted_parts_is_the_network(
    registry: ck.Registry, tmp_path: Path, network: str, suffix: str
) -> None:
    torch.manual_seed(1)
    make, names = NETWORKS[network]
    whole = make().eval()
    file = write(tmp_path / f"net{suffix}", whole.state_dict())
    parts = registry.adopt(file, "zoo/net", size=(32, 32), **names)
    assert parts == {"extractor": "zoo/net.extractor@1.0.0", "head": "zoo/net.head@1.0.0"}
    made = registry.recombine(parts["extractor"], parts["head"])
    for batch in (1, 3):
        images = signal((batch, 3, 32, 32))
        with torch.no_grad():
            assert torch.equal(made(images), whole(images))
    for side in parts.values():
        manifest = registry.store.manifest(side)
        adopted = manifest.training["adopted"]
        assert adopted["file"] == file.name and adopted["format"] == FORMATS[suffix]
        assert adopted["bytes"] == file.stat().st_size and adopted["digest"].startswith("file:sha256:")
        assert any(step.startswith("num_classes") for step in adopted["steps"])
        assert manifest.contract.statistical.probe is not None
        assert summary(manifest)["adopted from"].startswith(f"{file.name} (file:sha256:")
    head = registry.store.manifest(parts["head"])
    assert head.parents[0].component == registry.store.resolve(parts["extractor"]).digest
    if suffix == ".safetensors":
        again = registry.adopt(file, "zoo/net", size=32, **names)
        assert again == parts, "the same file again is the same part"


SMALL = {"model": "resnet8_cifar", "cut": "layer2", "size": (16, 16)}


@pytest.fixture(scope="module")
def state() -> State:
    """A small network of ours, for what does not depend on the library; 10 classes, as it is built by itself."""
    from compatkit.adapters.builders import create

    torch.manual_seed(0)
    return create("timm", "resnet8_cifar", {}).state_dict()


def adopted(registry: ck.Registry, folder: Path, state: State, **more: Any) -> dict[str, str]:
    file = folder / "net.safetensors"
    save_file(state, file)
    return registry.adopt(file, "zoo/small", **{**SMALL, **more})


@pytest.mark.parametrize("size", [0, (16,), (16.0, 16), True, "16", 9999], ids=repr)
def test_a_size_that_is_none_is_refused(
    registry: ck.Registry, tmp_path: Path, state: State, size: Any
) -> None:
    """Wherever a size is an argument; one number stands for both sides."""
    for refused in (
        lambda: adopted(registry, tmp_path, state, size=size),
        lambda: ck.split("resnet8_cifar", "layer2", size=size),
        lambda: ck.cuts("resnet8_cifar", size=size),
    ):
        with pytest.raises(UsageError) as error:
            refused()
        assert error.value.subject == size and error.value.code == "usage"


def test_one_number_is_the_size_of_a_square(registry: ck.Registry, tmp_path: Path, state: State) -> None:
    parts = adopted(registry, tmp_path, state, size=16)
    assert registry.store.manifest(parts["extractor"]).contract.data.size == (16, 16)
    assert ck.cuts("resnet8_cifar", size=16) == ck.cuts("resnet8_cifar", size=(16, 16))


def test_prefixes_are_taken_off_and_told(registry: ck.Registry, tmp_path: Path, state: State) -> None:
    wrapped = {f"module._orig_mod.{name}": value for name, value in state.items()}
    parts = adopted(registry, tmp_path, wrapped)
    steps = registry.store.manifest(parts["head"]).training["adopted"]["steps"]
    assert steps[:2] == ["removed the prefix 'module.'", "removed the prefix '_orig_mod.'"]
    assert steps[2] == "mean 0.5, 0.5, 0.5: assumed, from compatkit's own configuration of resnet8_cifar"
    loaded = registry.load(parts["extractor"]).state_dict()
    assert all(torch.equal(value, state[name]) for name, value in loaded.items())


def test_classes_and_channels_are_read_from_the_weights(registry: ck.Registry, tmp_path: Path) -> None:
    torch.manual_seed(0)
    gray = timm.create_model("resnet18", num_classes=4, in_chans=1, layers=[1, 1, 1, 1])
    save_file(gray.state_dict(), tmp_path / "gray.safetensors")
    parts = registry.adopt(
        tmp_path / "gray.safetensors",
        "zoo/gray",
        model="resnet18",
        cut="layer2",
        kwargs={"layers": [1, 1, 1, 1]},
        size=(32, 32),
        labels=["a", "b", "c", "d"],
        preprocessing={"mean": [0.1], "std": [0.3], "interpolation": "bilinear", "crop_pct": 1.0},
    )
    head = registry.store.manifest(parts["head"])
    assert head.blueprint.kwargs == {"layers": [1, 1, 1, 1], "num_classes": 4, "in_chans": 1}
    assert [label.name for label in head.contract.data.labels or ()] == ["a", "b", "c", "d"]
    data = head.contract.data
    assert (data.channels, data.mean, data.std, data.interpolation) == ("L", (0.1,), (0.3,), "bilinear")
    steps = head.training["adopted"]["steps"]
    assert steps == [
        "num_classes 4 read from fc.weight",
        "in_chans 1 read from conv1.weight",
        "mean 0.1: as given",
        "std 0.3: as given",
        "size 32, 32: as given",
        "interpolation bilinear: as given",
        "crop_pct 1: as given",
        "crop_mode center: assumed, from timm's own configuration of resnet18",
    ]


def test_half_precision_is_converted_and_told(registry: ck.Registry, tmp_path: Path, state: State) -> None:
    half = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    parts = adopted(registry, tmp_path, half)
    assert "float16 to float32" in str(registry.store.manifest(parts["head"]).training["adopted"]["steps"])
    loaded = registry.load(parts["extractor"]).state_dict()
    assert all(torch.equal(value, half[name].to(value.dtype)) for name, value in loaded.items())


def test_features_of_given_images_are_stated(registry: ck.Registry, tmp_path: Path, state: State) -> None:
    data = data_set("left", channels=3, count=24).train
    parts = adopted(registry, tmp_path, state, data=data)
    (features,) = registry.store.manifest(parts["extractor"]).contract.statistical.features or ()
    assert features.samples == 24


def test_another_network_is_refused_with_what_differs(
    registry: ck.Registry, tmp_path: Path, state: State
) -> None:
    with pytest.raises(CheckpointMismatch) as raised:
        adopted(registry, tmp_path, state, model="resnet20_cifar")
    text = str(raised.value)
    assert "does not contain the weights of resnet20_cifar of compatkit" in text
    assert "tensors are missing: layer1.1.conv1.weight, layer1.1.bn1.weight, layer1.1.bn1.bias and" in text
    assert not registry.store.names()


def test_a_misspelt_model_is_refused_before_the_file_is_read(registry: ck.Registry, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean resnet18"):
        registry.adopt(tmp_path / "nowhere", "zoo/x", model="resnt18", cut="layer2")
    with pytest.raises(UnknownName, match="torchvision has one of this name"):
        registry.adopt(tmp_path / "nowhere", "zoo/x", model="mobilenet_v3_small", builder="timm", cut="a")
    with pytest.raises(UnknownName, match="No builder is called"):
        registry.adopt(tmp_path / "nowhere", "zoo/x", model="resnet18", builder="keras", cut="layer2")
    with pytest.raises(InvalidName):
        registry.adopt(tmp_path / "nowhere", "Zoo/X", model="resnet18", cut="layer2")


def test_weights_that_are_not_finite_are_refused(registry: ck.Registry, tmp_path: Path, state: State) -> None:
    bad = {name: value.clone() for name, value in state.items()}
    bad["conv1.weight"][0] = float("nan")
    with pytest.raises(IntegrityError, match=r"net.safetensors: the tensor 'conv1.weight' .* not finite"):
        adopted(registry, tmp_path, bad)
    assert not registry.store.names()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensors: tensors.numpy(),
        lambda item: item.tolist(),
        lambda tensors: None,
        lambda tensors: tensors.to("meta"),
        lambda entry: entry.to_sparse(),
    ],
    ids=["numpy", "list", "None", "meta", "sparse"],
)
@pytest.mark.parametrize("prefix", ["", "module."])
def test_values_that_hold_no_numbers_are_named(
    registry: ck.Registry, state: State, spoil: Callable[[Tensor], Any], prefix: str
) -> None:
    spoiled = {f"{prefix}{name}": value for name, value in state.items()}
    spoiled[f"{prefix}conv1.weight"] = spoil(state["conv1.weight"])
    with pytest.raises(CheckpointMismatch) as caught:
        registry.adopt(spoiled, name="a", model="resnet8_cifar", cut="layer2")
    mismatch = caught.value.subject
    assert list(mismatch.missing) == ["conv1.weight"]
    assert not mismatch.kinds and not mismatch.unknown


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"cut": "layer9"}, UnknownName, "layer9"),
        ({"labels": ["a"]}, UsageError, "one label for each of the 10 outputs of .*, got 1"),
        (
            {"preprocessing": {"mean": [0.5, 0.4]}},
            UsageError,
            "mean: expected a number for each of 3 channels",
        ),
        ({"preprocessing": {"std": [0.5, 0.0, 1.0]}}, UsageError, "std: expected a number above 0"),
        ({"preprocessing": {"mean": [float("nan")] * 3}}, UsageError, "mean: expected a number"),
        ({"preprocessing": {"mean": [123.7, 116.3, 103.5]}}, UsageError, "divide them by 255"),
        ({"preprocessing": {"std": [58.4]}}, UsageError, "divide them by 255"),
        ({"preprocessing": {"interpolation": "best"}}, UsageError, "'interpolation' must be one of"),
        ({"preprocessing": {"crop_pct": 0}}, UsageError, "Expected crop_pct above 0"),
        ({"preprocessing": {"color": "red"}}, UsageError, "'color' is not a known setting of preprocessing"),
        ({"key": "model_ema"}, UsageError, "no entry 'model_ema'"),
        ({"kwargs": {"checkpoint_path": "/etc/passwd"}}, UsageError, "cannot be part of a blueprint"),
        ({"kwargs": {"num_classes": 3}}, CheckpointMismatch, "fc.weight is 10x64 where 3x64 is expected"),
    ],
)
def test_what_does_not_fit_is_refused(
    registry: ck.Registry, tmp_path: Path, state: State, more: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        adopted(registry, tmp_path, state, **more)
    assert not registry.store.names()


def test_old_files_without_counters_are_completed(
    registry: ck.Registry, tmp_path: Path, state: State
) -> None:
    old = {name: value for name, value in state.items() if "num_batches" not in name}
    parts = adopted(registry, tmp_path, old)
    assert "which old files lack" in str(registry.store.manifest(parts["head"]).training["adopted"]["steps"])


def test_auxiliary_outputs_of_torchvision_are_left_out() -> None:
    from compatkit_plugins.networks.torchvision import renamed

    state = {
        "conv.weight": torch.zeros(1),
        "aux1.fc.weight": torch.zeros(1),
        "aux2.fc.weight": torch.zeros(1),
    }
    result, message = renamed("googlenet", state)
    assert set(result) == {"conv.weight"}
    assert message == ("left out 2 tensors of auxiliary outputs, which are used in training only",)
    old = {"features.denseblock1.denselayer1.norm.1.weight": torch.zeros(1)}
    assert renamed("densenet121", old) == (
        {
            "features.denseblock1.denselayer1.norm1.weight": old[
                "features.denseblock1.denselayer1.norm.1.weight"
            ]
        },
        ("renamed 1 tensors as torchvision does",),
    )
    assert renamed("resnet18", state) == (state, ())


def test_a_folder_or_another_format_is_refused(registry: ck.Registry, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected one file of weights"):
        registry.adopt(tmp_path, "zoo/x", **SMALL)
    (tmp_path / "x.pth").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(FormatError, match="a GGUF file"):
        registry.adopt(tmp_path / "x.pth", "zoo/x", **SMALL)


def test_weights_and_pretrained_ones_exclude_each_other(state: State) -> None:
    from compatkit.components.splitting import split

    with pytest.raises(UsageError, match="exclude each other"):
        split("resnet8_cifar", "layer2", pretrained=True, weights=state)


def test_adopted_parts_travel_with_their_provenance(
    registry: ck.Registry, tmp_path: Path, state: State
) -> None:
    adopted(registry, tmp_path, state)
    other = ck.Registry.init(tmp_path / "other")
    other.maintenance.import_from(registry.store, ["zoo/*"])
    shutil.rmtree(registry.store.root)
    assert other.store.manifest("zoo/small.head").training["adopted"]["file"] == "net.safetensors"
    assert other.maintenance.verify().sound


def test_errors_are_told_apart() -> None:
    assert issubclass(CheckpointMismatch, UsageError) and issubclass(CutError, UsageError)
