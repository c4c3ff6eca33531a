"""What stands beside weights: read, agreed with the caller's own words, and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import compatkit as ck
from compatkit.components.adopting import adopt
from compatkit.components.checkpoints.snapshot import read_snapshot
from compatkit.errors import FormatError, UsageError
from compatkit_plugins.networks import build

MODEL = "resnet8_cifar"
NAMES = ["cat", "dog", "bird"]
TIMM = {
    "architecture": MODEL,
    "num_classes": 3,
    "label_names": NAMES,
    "pretrained_cfg": {
        "input_size": [3, 24, 24],
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "crop_mode": "center",
    },
}
PROCESSOR = {
    "do_normalize": True,
    "image_mean": [0.1, 0.2, 0.3],
    "image_std": [0.4, 0.5, 0.6],
    "resample": 3,
    "size": {"shortest_edge": 32},
    "do_center_crop": True,
    "crop_size": {"height": 24, "width": 24},
}


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return build(MODEL, num_classes=3).state_dict()


@pytest.fixture
def folder(tmp_path: Path, state: dict[str, torch.Tensor]) -> Path:
    save_file(state, tmp_path / "model.safetensors")
    return tmp_path


def beside(folder: Path, config: Any = None, processor: Any = None) -> Path:
    for name, table in (("config.json", config), ("preprocessor_config.json", processor)):
        if table is not None:
            (folder / name).write_text(json.dumps(table))
    return folder


def facts(weights: Any, **more: Any) -> Any:
    return adopt(weights, cut="layer2", **more).parts["head"].contract.data


def test_a_folder_of_timm_says_everything(folder: Path):
    adopted = adopt(beside(folder, TIMM), cut="layer2")
    data = adopted.parts["head"].contract.data
    assert (data.mean, data.std, data.size) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), (24, 24))
    assert (data.interpolation, data.crop_pct, data.crop_mode) == ("bicubic", 0.9, "center")
    assert [label.name for label in data.labels or ()] == NAMES
    assert adopted.model == MODEL
    assert "mean 0.1, 0.2, 0.3: config.json" in adopted.notes
    assert "size 24, 24: config.json" in adopted.notes


def test_the_file_in_the_folder_has_the_same_beside_it(folder: Path):
    assert facts(beside(folder, TIMM) / "model.safetensors").mean == (0.1, 0.2, 0.3)


def test_a_processor_of_transformers_says_how_images_come(folder: Path):
    config = {
        "id2label": {"0": "cat", "1": "dog", "2": "bird"},
        "architectures": ["ResNetForImageClassification"],
    }
    adopted = adopt(beside(folder, config, PROCESSOR), model=MODEL, cut="layer2")
    data = adopted.parts["head"].contract.data
    assert (data.mean, data.std, data.size) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), (24, 24))
    assert (data.interpolation, data.crop_pct, data.crop_mode) == ("bicubic", 0.75, "center")
    assert [label.name for label in data.labels or ()] == NAMES
    assert "mean 0.1, 0.2, 0.3: preprocessor_config.json" in adopted.notes
    assert any("ResNetForImageClassification" in note for note in adopted.notes)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"size": {"height": 20, "width": 30}, "do_center_crop": False}, ((20, 30), 1.0, "squash")),
        ({"size": 40, "do_center_crop": False}, ((40, 40), 1.0, "squash")),
        ({"size": 32, "crop_size": 16}, ((16, 16), 0.5, "center")),
        (
            {"size": {"shortest_edge": 28}, "crop_pct": 0.875, "do_center_crop": False},
            ((28, 28), 0.875, "center"),
        ),
        (
            {"size": {"shortest_edge": 384}, "crop_pct": 0.9, "do_center_crop": False},
            ((384, 384), 1.0, "squash"),
        ),
    ],
)
def test_sizes_and_crops_of_processors(tmp_path: Path, change: Any, expected: Any):
    result = read_snapshot(beside(tmp_path, None, {**PROCESSOR, **change}) / "x.safetensors").metadata
    assert (result["size"], result["crop_pct"], result["crop_mode"]) == expected


def test_images_that_are_not_normalized_keep_their_values(tmp_path: Path):
    result = read_snapshot(
        beside(tmp_path, None, {**PROCESSOR, "do_normalize": False}) / "x.safetensors"
    ).metadata
    assert (result["mean"], result["std"]) == ((0.0,), (1.0,))


@pytest.mark.parametrize(
    "change",
    [
        {"do_rescale": False},
        {"rescale_factor": 1.0},
        {"rescale_factor": None},
        {"rescale_offset": True},
        {"offset": True},
        {"include_top": True},
        {"do_flip_channel_order": True},
        {"do_pad": True},
        {"do_thumbnail": True},
        {"size": {"shortest_edge": 32, "longest_edge": 64}},
        {"size": {"longest_edge": 64}},
        {"crop_size": None},
        {"resample": 4},
        {"size": {"shortest_edge": 32}, "do_center_crop": False},
        {"size": "large"},
        {"image_mean": "none"},
    ],
)
def test_preparation_that_no_contract_describes_is_refused(tmp_path: Path, change: Any):
    with pytest.raises(UsageError) as error:
        read_snapshot(beside(tmp_path, None, {**PROCESSOR, **change}) / "x.safetensors")
    assert error.value.subject


def test_steps_that_change_nothing_here_are_noted(folder: Path):
    processor = {**PROCESSOR, "do_resize": False, "do_convert_rgb": False, "do_flip_channel_order": False}
    notes = read_snapshot(beside(folder, None, processor)).notes
    assert [line.split()[2] for line in notes if line.startswith("not applied")] == [
        "do_resize",
        "do_convert_rgb",
    ]


WRITTEN = {"0": "cat", "1": "dog", "2": "bird"}


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"id2label": WRITTEN, "label2id": {"cat": 1, "dog": 0, "bird": 2}}, "labels"),
        ({"id2label": WRITTEN, "label2id": {"cat": 0, "dog": 1}}, "labels"),
        ({"id2label": WRITTEN, "label2id": {"cat": 0, "dog": 1, "bird": 2, "fish": 3}}, "labels"),
        ({"id2label": {"0": "bird", "1": "dog", "2": "cat"}}, "labels"),
        ({"pretrained_cfg": {"label_names": ["bird", "dog", "cat"]}}, "labels"),
        ({"num_classes": 4}, "num_classes"),
        ({"num_labels": 4}, "num_classes"),
        ({"pretrained_cfg": {"num_classes": 4}}, "num_classes"),
        ({"pretrained_cfg": {"num_classes": 1000}}, "num_classes"),
        ({"label_names": ["cat", "dog"]}, "num_classes"),
    ],
)
def test_entries_of_one_file_that_contradict_each_other_are_refused(folder: Path, change: Any, fact: str):
    with pytest.raises(UsageError) as error:
        read_snapshot(beside(folder, {**TIMM, **change}))
    assert error.value.subject == fact and "config.json" in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"id2label": WRITTEN, "label2id": {"cat": 0, "dog": 1, "bird": 2}},
        {"id2label": WRITTEN, "label2id": {"cat": "0", "dog": "1", "bird": "2"}},
        {"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}},
        {"pretrained_cfg": {"num_classes": 3, "label_names": NAMES}},
    ],
)
def test_entries_of_one_file_that_agree_are_taken(folder: Path, change: Any):
    result = read_snapshot(beside(folder, {**TIMM, **change})).metadata
    assert (result["labels"], result["num_classes"]) == (tuple(NAMES), 3)


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        ({"preprocessing": {"mean": (0.5,)}}, "mean"),
        ({"preprocessing": {"std": (0.4, 0.5, 0.7)}}, "std"),
        ({"preprocessing": {"interpolation": "bilinear"}}, "interpolation"),
        ({"preprocessing": {"crop_pct": 1.0}}, "crop_pct"),
        ({"size": (32, 32)}, "size"),
        ({"labels": ["dog", "cat", "bird"]}, "labels"),
        ({"model": "resnet18"}, "model"),
        ({"kwargs": {"num_classes": 4}}, "num_classes"),
        ({"kwargs": {"in_chans": 1}}, "in_chans"),
    ],
)
def test_what_the_caller_and_the_files_state_differently_is_refused(folder: Path, more: Any, fact: str):
    with pytest.raises(UsageError) as error:
        adopt(beside(folder, TIMM), cut="layer2", **more)
    assert error.value.subject == fact


def test_what_two_files_state_differently_is_refused(folder: Path):
    with pytest.raises(UsageError) as error:
        adopt(beside(folder, TIMM, {**PROCESSOR, "size": {"shortest_edge": 30}}), cut="layer2")
    assert error.value.subject == "crop_pct"


def test_the_same_stated_twice_is_no_contradiction(folder: Path):
    more: Any = {
        "model": f"{MODEL}.some_tag",
        "labels": NAMES,
        "size": (24, 24),
        "preprocessing": {"mean": (0.1, 0.2, 0.3)},
    }
    processor = {**PROCESSOR, "size": {"shortest_edge": 24}, "crop_pct": 0.9, "do_center_crop": False}
    with pytest.raises(UsageError):  # a tag is no network of ours
        facts(beside(folder, TIMM, processor), **more)
    assert facts(folder, **{**more, "model": MODEL}).mean == (0.1, 0.2, 0.3)


def test_the_classes_that_the_weights_have_win_over_nothing(folder: Path):
    config = {**TIMM, "num_classes": 5, "label_names": [*NAMES, "fish", "ant"]}
    with pytest.raises(ck.errors.CompatkitError) as error:
        adopt(beside(folder, config), cut="layer2")
    assert error.value.code == "checkpoint-mismatch"


def test_class_names_that_a_head_cannot_have_are_left_out_and_told(folder: Path):
    with pytest.warns(UserWarning, match="cat"):
        adopted = adopt(beside(folder, {**TIMM, "label_names": ["cat", "cat", "dog"]}), cut="layer2")
    assert adopted.parts["head"].contract.data.labels is None
    assert any("'cat' appears twice" in note for note in adopted.notes)
    with pytest.warns(UserWarning, match="cat"):
        assert [label.name for label in facts(folder, labels=["a", "b", "c"]).labels] == ["a", "b", "c"]


def test_without_a_word_on_images_it_is_said_that_they_are_assumed(folder: Path):
    notes = adopt(folder, model=MODEL, cut="layer2").notes
    for fact in ("mean", "std", "size", "interpolation", "crop_pct", "crop_mode"):
        assert any(line.startswith(f"{fact} ") and "assumed" in line for line in notes), fact


def test_pickled_weights_of_a_folder_are_read_as_tensors(tmp_path: Path, state: dict[str, torch.Tensor]):
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert facts(beside(tmp_path, TIMM)).mean == (0.1, 0.2, 0.3)
    save_file(state, tmp_path / "model.safetensors")
    assert any("not pytorch_model.bin" in note for note in adopt(tmp_path, cut="layer2").notes)


@pytest.mark.parametrize(
    "names",
    [
        ["a.safetensors", "b.safetensors"],
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ["model.safetensors.index.json"],
        ["notes.txt"],
        [],
    ],
)
def test_a_folder_without_one_file_of_weights_is_refused(tmp_path: Path, names: list[str]):
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError) as error:
        read_snapshot(tmp_path)
    assert error.value.subject == tmp_path


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"id2label": {"1": "a"}}', '{"mean": ["a"]}', '{"input_size": [3, 0, 0]}']
)
def test_a_damaged_config_is_refused(folder: Path, text: str):
    (folder / "config.json").write_text(text)
    with pytest.raises((FormatError, UsageError)):
        read_snapshot(folder)


def test_nothing_names_the_network(folder: Path):
    with pytest.raises(UsageError) as error:
        adopt(folder, cut="layer2")
    assert error.value.subject == "model"


def test_a_state_dict_is_adopted_as_its_file_would_be(
    folder: Path, state: dict[str, torch.Tensor], tmp_path: Path
):
    registry = ck.Registry.init(tmp_path / "parts")
    inputs = {f"backbone.{name}": value for name, value in state.items()}
    parts = registry.adopt(inputs, "zoo/a", model=MODEL, cut="layer2", rename={"backbone.": ""})
    loaded = registry.load(parts["extractor"]).state_dict()
    assert all(torch.equal(value, state[name]) for name, value in loaded.items())
    training = registry.store.manifest(parts["head"]).training["adopted"]
    assert training["format"] == "tensors" and "renamed 'backbone.' to ''" in training["steps"]


@pytest.mark.parametrize("rename", [{"nothing.": ""}, {"conv1.weight": "fc.weight"}])
def test_renames_that_do_nothing_or_join_two_tensors_are_refused(folder: Path, rename: dict[str, str]):
    with pytest.raises(UsageError):
        adopt(folder, model=MODEL, cut="layer2", rename=rename)
