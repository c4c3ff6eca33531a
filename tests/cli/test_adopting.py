"""adopt: what was taken off and read is reported, both parts are published, and a misfit leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from savedfiles import touching

import compatkit as ck

COMMON = ("--model", "resnet8_cifar", "--cut", "layer2", "--name", "zoo/small", "--size", "16")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights of a small network with 3 classes, wrapped, in the current folder; the registry is made when needed."""
    from compatkit.adapters.builders import create

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPATKIT_REGISTRY", str(tmp_path / "parts"))
    torch.manual_seed(0)
    state = create("timm", "resnet8_cifar", {"num_classes": 3}).state_dict()
    save_file({f"module.{name}": value for name, value in state.items()}, tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def test_what_was_done_is_told_and_both_parts_are_published(run: Any, file: Path) -> None:
    result = run("--registry", "parts", "adopt", "net.safetensors", *COMMON)
    text = " ".join(result.out.split())
    assert result.code == 0, result.err
    assert text.startswith("net.safetensors (safetensors), ")
    assert "removed the prefix 'module.' num_classes 3 read from fc.weight" in text
    assert "resnet8_cifar cut at layer2: head(extractor(x)) equals the network bitwise" in text
    assert "published zoo/small.extractor@1.0.0 published zoo/small.head@1.0.0" in text
    assert "next: compatkit --registry parts check zoo/small.extractor@1.0.0 '*.head'" in text
    shown = " ".join(run("--registry", "parts", "show", "zoo/small.head").out.split())
    assert "adopted from net.safetensors (file:sha256:" in shown


def test_programs_get_everything(run: Any, file: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("cat\ndog\nbird\n")
    images = (
        "--mean",
        "0.1,0.2,0.3",
        "--std",
        ".5",
        "--interpolation",
        "bicubic",
        "--crop-pct",
        "0.9",
    )
    result = run("--registry", "parts", "adopt", file, *COMMON, "--labels", labels, *images, "--json")
    document = result.json
    assert document["published"] == {
        "extractor": "zoo/small.extractor@1.0.0",
        "head": "zoo/small.head@1.0.0",
    }
    assert document["adopted"]["file"] == "net.safetensors" and document["kwargs"]["num_classes"] == 3
    data = document["parts"]["head"]["contract"]["data"]
    assert (data["mean"], data["std"]) == ([0.1, 0.2, 0.3], [0.5, 0.5, 0.5])  # one number is for all channels
    assert (data["interpolation"], data["crop_pct"]) == ("bicubic", 0.9)
    assert [label["name"] for label in data["labels"]] == ["cat", "dog", "bird"]


def test_a_folder_says_how_images_come_and_prefixes_are_renamed(run: Any, file: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    state = {f"encoder.{name.removeprefix('module.')}": value for name, value in load_file(file).items()}
    save_file(state, snapshot / "model.safetensors")
    config = {"architecture": "resnet8_cifar", "num_classes": 3, "label_names": ["cat", "dog", "bird"]}
    config["pretrained_cfg"] = {"mean": [0.1, 0.2, 0.3], "std": [0.5] * 3, "input_size": [3, 16, 16]}
    (snapshot / "config.json").write_text(json.dumps(config))
    words = ("--registry", "parts", "adopt", snapshot, "--cut", "layer2", "--name", "zoo/small")
    refused = run(*words, "--rename", "encoder.=", "--mean", ".5", "--json").json["error"]
    assert refused["code"] == "usage" and "config.json" in refused["message"]
    result = run(*words, "--rename", "encoder.=")
    assert result.code == 0, result.err
    assert "mean 0.1, 0.2, 0.3: config.json" in result.out and "size 16, 16: config.json" in result.out
    assert "labels cat, dog, bird, ... (3 names): config.json" in result.out
    assert "renamed 'encoder.' to ''" in result.out and "interpolation bilinear: assumed" in result.out
    assert run(*words, "--rename", "encoder").code == 2


def test_classes_of_a_data_set(run: Any, file: Path, trained: Path) -> None:
    data = ("--data", trained / "left.npz", "--dataset-labels")
    result = run("--registry", "parts", "adopt", file, *COMMON, *data, "--json")
    contract = result.json["parts"]["head"]["contract"]
    assert [label["name"] for label in contract["data"]["labels"]] == ["0", "1", "2"]
    assert contract["statistical"]["features"][0]["samples"] == 48


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--dataset-labels",), 2, "--dataset-labels needs --data"),
        (("--mean", "gray"), 2, "expected numbers separated by commas"),
        (("--mean", ".5,.4"), 2, "mean: expected a number for each of 3 channels, or one for all"),
        (("--model", "resnet9_cifar"), 2, "did you mean resnet"),
        (("--model", "resnet20_cifar"), 2, "does not contain the weights of resnet20_cifar of compatkit"),
        (("--name", "Zoo"), 2, "Zoo"),
        (("--key", "ema"), 2, "no entry 'ema'"),
        (("--cut", "layer7"), 2, "layer7"),
    ],
)
def test_what_does_not_fit_leaves_nothing_behind(
    run: Any, file: Path, tmp_path: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    result = run("--registry", "parts", "adopt", file, *COMMON, *words)
    assert result.code == code and message in " ".join(result.err.split())
    assert not (tmp_path / "parts").exists()


def test_code_is_refused_with_integrity_as_the_reason(run: Any, file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "evil.pth").write_bytes(touching(mark)())
    result = run("--registry", "parts", "adopt", "evil.pth", *COMMON, "--json")
    assert result.code == 3 and result.json["error"]["code"] == "unsafe-checkpoint"
    assert "posix.system" in result.json["error"]["message"] and not mark.exists()
    assert not (tmp_path / "parts").exists()


def test_the_parts_can_be_measured_like_any_other(run: Any, file: Path, trained: Path) -> None:
    assert run("--registry", "parts", "adopt", file, *COMMON, "--kwargs", "{}").code == 0
    pair = ("--registry", "parts", "recombine", "zoo/small.extractor", "zoo/small.head")
    refused = run(*pair, "--json")
    assert refused.code == 2 and "has no record of its training images" in refused.json["error"]["message"]
    assert (
        "--data with a name, path or address" in refused.json["error"]["message"]
        and "--no-measure" in refused.json["error"]["message"]
    )
    result = run(*pair, "--no-measure", "--json")
    assert result.code == 0 and result.json["check"]["wiring"] == "direct"
    assert ck.Registry.open("parts").store.names() == ["zoo/small.extractor", "zoo/small.head"]


def test_an_export_says_network_and_cut_itself_and_other_files_do_not(run: Any, file: Path) -> None:
    assert run("--registry", "parts", "adopt", "net.safetensors", *COMMON).code == 0
    assert (
        run(
            *("--registry", "parts", "recombine", "zoo/small.extractor", "zoo/small.head", "--no-measure"),
            *("--publish", "pairs/small"),
        ).code
        == 0
    )
    assert run("--registry", "parts", "export", "pairs/small", "small.safetensors").code == 0
    result = run("--registry", "other", "adopt", "small.safetensors", "--name", "zoo/again")
    assert result.code == 0, result.err
    assert "exported by compatkit from pairs/small@1.0.0" in result.out
    assert "resnet8_cifar cut at layer2" in result.out
    missing = run(
        "--registry",
        "other",
        "adopt",
        "net.safetensors",
        "--name",
        "zoo/x",
        "--model",
        "resnet8_cifar",
        "--json",
    )
    assert missing.code == 2 and "cut" in missing.err + missing.out
