"""Weights by the names that timm's users know: files, folders, the hub; with the images that their config states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from small import data_set, quick
from timm import create_model
from timm.data import create_transform, resolve_data_config
from timm.models import save_for_hf  # pyright: ignore[reportPrivateImportUsage]
from torch import nn

import compatkit as ck
from compatkit.adapters import timm as door
from compatkit.errors import CompatkitError, EnvironmentFailure, FormatError, UsageError
from compatkit.evaluation.preprocessing import fitting, normalize
from compatkit.training.networks import prepare_task
from compatkit.training.precision import Precision
from compatkit.training.task_state import TaskState

CPU = Precision.choose("cpu", "float32", False)
NAME = "mobilenetv3_small_050"
STATED = {
    "mean": (0.1, 0.2, 0.3),
    "std": (0.4, 0.5, 0.6),
    "interpolation": "bicubic",
    "crop_pct": 0.8,
    "crop_mode": "center",
    "input_size": (3, 32, 32),
}


def task(weights: Any, model: str = NAME, cut: str = "blocks.3", **settings: Any) -> ck.Task:
    data = data_set("a", channels=settings.pop("channels", 3), size=(40, 32))
    return ck.Task("a", data, model, cut, weights=weights, **settings)


def saved(folder: Path, **settings: Any) -> nn.Module:
    """Save a network as timm does, and return it."""
    torch.manual_seed(3)
    network = create_model(NAME, num_classes=7, pretrained_cfg_overlay=STATED, **settings)
    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    save_for_hf(network, str(folder), safe_serialization=True)
    return network.eval()


def assert_body(state: TaskState, network: nn.Module) -> None:
    """The class layer is drawn anew, for other classes."""
    result = {**state.extractor.state_dict(), **state.head.state_dict()}
    for name, value in network.state_dict().items():
        if not name.startswith("classifier."):
            assert torch.equal(result[name], value), name
    assert result["classifier.weight"].shape[0] == 3


@pytest.mark.parametrize("say", [str, Path, lambda folder: f"local-dir:{folder}"])
def test_a_folder_as_timm_saves_it(tmp_path: Path, say: Callable[[Path], Any]) -> None:
    network = saved(tmp_path / "net")
    state = prepare_task(task(say(tmp_path / "net")), 0, CPU)
    assert_body(state, network)
    assert state.data.size == (32, 32) and state.data.mean == (0.1, 0.2, 0.3)
    assert state.data.std == (0.4, 0.5, 0.6)
    assert (state.data.interpolation, state.data.crop_pct, state.data.crop_mode) == ("bicubic", 0.8, "center")


def test_images_are_prepared_as_timm_does(tmp_path: Path) -> None:
    network = saved(tmp_path)
    state = prepare_task(task(tmp_path), 0, CPU)
    config = resolve_data_config({}, model=network)
    transform: Any = create_transform(**config)
    images = state.task.data.test.images[:4]
    expected = torch.stack([transform(Image.fromarray(image)) for image in images])
    loaded = fitting(state.task.data.test.take(range(4)), state.data)
    ours = normalize(torch.from_numpy(loaded.images).permute(0, 3, 1, 2), state.data)
    gray_level = 1 / 255 / min(state.data.std)
    assert ours.shape == expected.shape and float((ours - expected).abs().max()) < 1.01 * gray_level


def test_a_file_alone_says_nothing_of_images(tmp_path: Path) -> None:
    network = saved(tmp_path)
    state = prepare_task(task(tmp_path / "model.safetensors", size=32), 0, CPU)
    assert_body(state, network)
    (tmp_path / "config.json").unlink()
    again = prepare_task(task(tmp_path, size=32), 0, CPU)
    assert_body(again, network)
    assert state.data == again.data and state.data.interpolation == "bilinear"
    assert state.data.mean != (0.1, 0.2, 0.3)


def test_arguments_of_the_network_are_those_of_its_config_and_what_a_task_says_wins(tmp_path: Path) -> None:
    network = saved(tmp_path, act_layer="gelu", drop_path_rate=0.1)
    request = task(tmp_path, kwargs={"drop_path_rate": 0.2}, normalize={"mean": 0.5, "std": 0.25}, size=64)
    state = prepare_task(request, 0, CPU)
    assert_body(state, network)
    assert any("GELU" in type(module).__name__ for module in state.extractor.modules())
    assert state.extractor_blueprint.kwargs["drop_path_rate"] == 0.2
    assert state.data.mean == (0.5,) * 3 and state.data.size == (64, 64)


def test_gray_images_become_color_where_the_weights_want_it(tmp_path: Path) -> None:
    saved(tmp_path)
    assert prepare_task(task(tmp_path, channels=1), 0, CPU).data.channels == "RGB"


def test_our_own_networks_start_from_a_file(tmp_path: Path) -> None:
    fit = quick(steps=1).fit([task(None, "resnet8_cifar", "layer2", size=32)]).weights("a")
    save_file(fit, tmp_path / "net.safetensors")  # which takes contiguous tensors alone
    state = prepare_task(task(tmp_path / "net.safetensors", "resnet8_cifar", "layer2", size=32), 1, CPU)
    assert all(torch.equal(value, fit[name]) for name, value in state.extractor.state_dict().items())


def test_the_run_states_the_images_and_trains_again_from_the_start(tmp_path: Path) -> None:
    """With weights that are drawn again: those of the folder."""
    saved(tmp_path)
    fit = quick(steps=1).fit([task(tmp_path)], ["identical_init"])
    result = fit.run["tasks"][0]
    assert result["resized"] == {"interpolation": "bicubic", "crop_pct": 0.8, "crop_mode": "center"}
    assert result["normalisation"] == {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    plain = quick(steps=0).fit([task(None, size=32)]).run["tasks"][0]
    assert "resized" not in plain and "normalisation" not in plain


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the hub's cache for ``user/net``."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(door, "reachable", lambda: False)
    place = tmp_path / "hub" / "models--user--net"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("a" * 40)
    folder = place / "snapshots" / ("a" * 40)
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("name", ["user/net", f"user/net@{'a' * 40}"])
def test_a_repository_of_the_hub_is_found_in_the_cache_without_a_network(cache: Path, name: str) -> None:
    network = saved(cache)
    state = prepare_task(task(f"hf-hub:{name}"), 0, CPU)
    assert_body(state, network)
    assert state.data.crop_pct == 0.8


@pytest.mark.usefixtures("cache")
def test_what_is_not_in_the_cache_is_said_so_where_nobody_answers() -> None:
    with pytest.raises(
        EnvironmentFailure, match="weights of 'user/other' are not in the cache, and"
    ) as caught:
        prepare_task(task("hf-hub:user/other"), 0, CPU)
    assert caught.value.code == "weights-unavailable" and caught.value.subject == "user/other"


class RemoteEntryNotFoundError(Exception):
    """As of the hub's library."""


class RepositoryNotFoundError(OSError):
    """As of the hub's library."""


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            RemoteEntryNotFoundError(),
            UsageError,
            "no repository 'user/net' with config.json and model.safetensors",
        ),
        (
            RepositoryNotFoundError(),
            UsageError,
            "model.safetensors that you may read",
        ),
        (OSError("no route"), EnvironmentFailure, "and could not be fetched: no route. Connect to"),
    ],
)
def test_what_the_hub_refuses(
    error: Exception, kind: type[CompatkitError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> str:
        raise error

    monkeypatch.setattr(door, "download_from_hf", fail)
    monkeypatch.setattr(door, "reachable", lambda: True)
    with pytest.raises(kind) as caught:
        prepare_task(task("hf-hub:user/net"), 0, CPU)
    assert message in str(caught.value) and caught.value.subject == "user/net"


def test_a_name_that_is_no_repository_is_refused() -> None:
    with pytest.raises(UsageError, match="Expected hf-hub:OWNER/NAME"):
        prepare_task(task("hf-hub:a/b/c"), 0, CPU)


def test_a_folder_without_safetensors_is_refused_and_no_pickle_is_opened(tmp_path: Path) -> None:
    save_for_hf(create_model(NAME, num_classes=7), str(tmp_path), safe_serialization=False)
    expected = r"has no model.safetensors .it holds config.json, pytorch_model.bin.; .* never loaded"
    with pytest.raises(UsageError, match=expected) as caught:
        prepare_task(task(tmp_path), 0, CPU)
    assert caught.value.subject == tmp_path
    with pytest.raises(EnvironmentFailure, match="The weights cannot be used"):
        prepare_task(task(f"local-dir:{tmp_path / 'none'}"), 0, CPU)


def test_another_architecture_is_refused_by_both_names(tmp_path: Path) -> None:
    saved(tmp_path)
    expected = rf"the model resnet18 of timm, but its weights .* are of timm's {NAME}, as their config.json"
    with pytest.raises(UsageError, match=expected) as caught:
        prepare_task(task(tmp_path, "resnet18", "layer2"), 0, CPU)
    assert caught.value.subject == "a"


def test_shapes_that_do_not_fit_are_named(tmp_path: Path) -> None:
    saved(tmp_path)
    expected = r"conv_stem.weight is 16x3x3x3 where 16x1x3x3 is expected\. Give weights of this architecture"
    with pytest.raises(CompatkitError, match=expected) as caught:
        prepare_task(task(tmp_path / "model.safetensors", channels=1, size=32), 0, CPU)
    assert caught.value.code == "cut" and caught.value.subject == NAME


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        json.dumps({"architecture": NAME, "pretrained_cfg": {"mean": "high"}}),
        '{"architecture": 3',
    ],
)
def test_a_config_that_says_nothing_is_refused(tmp_path: Path, text: str) -> None:
    saved(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(FormatError, match=r"config\.json is not a configuration as timm writes it") as caught:
        prepare_task(task(tmp_path), 0, CPU)
    assert caught.value.subject == tmp_path


def test_a_crop_that_no_contract_describes_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"center"', '"border"'))
    with pytest.raises(UsageError, match="has crop_mode 'border'; only 'center'"):
        prepare_task(task(tmp_path), 0, CPU)
