"""Weights from a safetensors file: all of them, but for the class layer, which is drawn anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small import data_set, quick
from timm import create_model
from timm.models import save_for_hf  # pyright: ignore[reportPrivateImportUsage]

import compatkit as ck
from compatkit.errors import CompatkitError, FormatError
from compatkit.training.networks import prepare_task
from compatkit.training.precision import Precision

CPU = Precision.choose("cpu", "float32", False)
NAME = "mobilenetv3_small_050"


def task(weights: Any, model: str = NAME, cut: str = "blocks.3", **settings: Any) -> ck.Task:
    data = data_set("a", channels=settings.pop("channels", 3), size=(40, 32))
    return ck.Task("a", data, model, cut, weights=weights, **settings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as timm saves a network."""
    torch.manual_seed(3)
    network = create_model(NAME, num_classes=7)
    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    save_for_hf(network, str(tmp_path), safe_serialization=True)
    torch.save(network.state_dict(), tmp_path / "state.pt")
    return tmp_path


@pytest.mark.parametrize("say", [str, Path])
def test_a_file_as_timm_saves_it(folder: Path, say: Any) -> None:
    state = prepare_task(task(say(folder / "model.safetensors"), size=32), 0, CPU)
    found = {**state.extractor.state_dict(), **state.head.state_dict()}
    for name, value in torch.load(folder / "state.pt", weights_only=True).items():
        if not name.startswith("classifier."):
            assert torch.equal(found[name], value), name
    assert found["classifier.weight"].shape[0] == 3


def test_our_own_networks_start_from_a_file(tmp_path: Path) -> None:
    fit = quick(steps=1).fit([task(None, "resnet8_cifar", "layer2", size=32)]).weights("a")
    save_file(fit, tmp_path / "net.safetensors")  # which takes contiguous tensors alone
    state = prepare_task(task(tmp_path / "net.safetensors", "resnet8_cifar", "layer2", size=32), 1, CPU)
    assert all(torch.equal(value, fit[name]) for name, value in state.extractor.state_dict().items())


def test_a_folder_is_no_file(folder: Path) -> None:
    with pytest.raises(FormatError, match="expected a safetensors file, got a folder; name the file"):
        prepare_task(task(folder, size=32), 0, CPU)


def test_shapes_that_do_not_fit_are_named(folder: Path) -> None:
    expected = r"conv_stem.weight is 16x3x3x3 where 16x1x3x3 is expected\. Give weights of this architecture"
    with pytest.raises(CompatkitError, match=expected) as caught:
        prepare_task(task(folder / "model.safetensors", channels=1, size=32), 0, CPU)
    assert caught.value.code == "cut" and caught.value.subject == NAME
