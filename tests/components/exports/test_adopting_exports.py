"""What compatkit exported is adopted again without a word about the network, bit for bit, or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import data_set

import compatkit as ck
from compatkit.components.splitting import publish_split, split
from compatkit.errors import CheckpointMismatch, FormatError, IntegrityError, UnsafeCheckpoint, UsageError

CLASSES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    made = ck.Registry.init(tmp_path_factory.mktemp("exported") / "parts")
    models = {"a": "resnet8_cifar", "b": "resnet8_cifar", "deeper": "resnet20_cifar"}
    for seed, (name, model) in enumerate(models.items()):
        parts = split(
            model,
            "layer2",
            kwargs={"num_classes": 3},
            size=(16, 20),
            labels=CLASSES,
            seed=seed,
            preprocessing={
                "mean": (0.1, 0.2, 0.3),
                "std": (0.5,),
                "interpolation": "bicubic",
                "crop_pct": 0.875,
            },
        )
        publish_split(made.store, parts, f"nets/{name}")
    return made


@pytest.fixture
def exported(registry: ck.Registry, tmp_path: Path) -> Path:
    """A safetensors export."""
    made = registry.recombine("nets/a.extractor", "nets/b.head", bn_policy="running")
    return registry.export(made, tmp_path / "ab.safetensors").path


@pytest.fixture
def folder(registry: ck.Registry, tmp_path: Path) -> Path:
    """A folder laid out as one of MLflow."""
    made = registry.recombine("nets/a.extractor", "nets/b.head", bn_policy="running")
    place = tmp_path / "folder"
    (place / "data").mkdir(parents=True)
    (place / "MLmodel").write_text("flavors: {python_function: {loader_module: os, code: code}}\n")
    written = registry.export(made, place / "data" / "model.pt2", format="torch_export")
    extra: dict[str, Any] = {"compatkit.json": ""}
    torch.export.load(written.path, extra_files=extra)
    (place / "compatkit-export.json").write_text(extra["compatkit.json"])
    return place


def payload(registry: ck.Registry, reference: str) -> tuple[Any, ...]:
    manifest = registry.store.manifest(registry.store.resolve(reference))
    return manifest.payload.tensors, manifest.blueprint, manifest.contract.data, manifest.contract.structural


@pytest.mark.parametrize("form", ["exported", "folder"])
def test_the_parts_are_those_of_the_registry(
    registry: ck.Registry, form: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(form)
    other = ck.Registry.init(tmp_path / "other")
    published = other.adopt(path, "zoo/ab")
    for side, source in {"extractor": "nets/a.extractor", "head": "nets/b.head"}.items():
        assert payload(other, published[side]) == payload(registry, source)
    steps = other.store.manifest(other.store.resolve("zoo/ab.head")).training["adopted"]["steps"]
    assert any(step.startswith("exported by compatkit") for step in steps)


@pytest.mark.parametrize("policy", ["batch", "reestimate"])
def test_the_statistics_are_those_of_the_export(registry: ck.Registry, policy: str, tmp_path: Path) -> None:
    images = data_set("left", size=(16, 20), channels=3).test if policy == "reestimate" else None
    made = registry.recombine("nets/a.extractor", "nets/b.head", bn_policy=policy, data=images)
    registry.export(made, tmp_path / "ab.safetensors")
    other = ck.Registry.init(tmp_path / "other")
    other.adopt(tmp_path / "ab.safetensors", "zoo/ab")
    state = load_file(tmp_path / "ab.safetensors")
    parts = {**other.load("zoo/ab.extractor").state_dict(), **other.load("zoo/ab.head").state_dict()}
    assert state.keys() == parts.keys() and all(torch.equal(state[name], parts[name]) for name in state)
    steps = other.store.manifest(other.store.resolve("zoo/ab.head")).training["adopted"]["steps"]
    assert any("policy batch" in step for step in steps) == (policy == "batch")


def test_another_cut_may_be_chosen_and_another_network_may_not(exported: Path, tmp_path: Path) -> None:
    other = ck.Registry.init(tmp_path / "other")
    other.adopt(exported, "zoo/ab", cut="layer1")
    assert other.store.manifest(other.store.resolve("zoo/ab.head")).blueprint.cut == "layer1"
    contradictions: dict[str, dict[str, Any]] = {
        "model": {"model": "resnet20_cifar"},
        "builder": {"builder": "timm"},
        "mean": {"preprocessing": {"mean": (0.5,)}},
        "labels": {"labels": ("cat", "dog", "cow")},
        "size": {"size": (32, 32)},
    }
    for subject, arguments in contradictions.items():
        with pytest.raises(UsageError) as error:
            other.adopt(exported, "zoo/wrong", **arguments)
        assert error.value.subject == subject
    with pytest.raises(CheckpointMismatch):
        other.adopt(exported, "zoo/wrong", kwargs={"num_classes": 5})


def test_what_is_no_complete_network_is_refused(registry: ck.Registry, tmp_path: Path) -> None:
    other = ck.Registry.init(tmp_path / "other")
    modules: dict[str, Any] = {
        "head": "nets/a.head",
        "extractor": "nets/a.extractor",
        "two networks": registry.recombine("nets/a.extractor", "nets/deeper.head", bn_policy="running"),
    }
    for name, module in modules.items():
        path = registry.export(module, tmp_path / f"{name}.safetensors").path
        with pytest.raises(UsageError) as error:
            other.adopt(path, "zoo/wrong")
        assert error.value.subject == path
    assert not other.store.names()


def test_tensors_that_are_not_those_of_the_description_are_refused(
    exported: Path, folder: Path, tmp_path: Path
) -> None:
    other = ck.Registry.init(tmp_path / "other")
    from safetensors import safe_open

    with safe_open(exported, "pt") as file:
        metadata = file.metadata()
    state = load_file(exported)
    name = next(iter(state))
    save_file({**state, name: state[name] + 1}, exported, metadata=metadata)
    with pytest.raises(IntegrityError) as error:
        other.adopt(exported, "zoo/wrong")
    assert error.value.subject == str(exported)
    description = folder / "compatkit-export.json"
    facts = json.loads(description.read_text())
    for change in ({"tensors": "tensors:sha256:" + "0" * 64}, {"unknown": 1}, {"parts": []}):
        description.write_text(json.dumps({**facts, **change}))
        with pytest.raises(IntegrityError):
            other.adopt(folder, "zoo/wrong")
    description.write_bytes(b"\xff" * 100)
    with pytest.raises(FormatError):
        other.adopt(folder, "zoo/wrong")
    assert not other.store.names()


def test_folders_of_mlflow_by_others(registry: ck.Registry, folder: Path, tmp_path: Path) -> None:
    """Weights below data/ are found; a pickled network is refused; other flavours are named."""
    other = ck.Registry.init(tmp_path / "other")
    (folder / "compatkit-export.json").unlink()
    with pytest.raises(UsageError) as error:
        other.adopt(folder, "zoo/wrong")
    assert error.value.subject == "model"
    with pytest.raises(UsageError) as error:
        other.adopt(folder, "zoo/wrong", model="resnet8_cifar")
    assert error.value.subject == "cut"
    renamed = {"extractor.": "", "head.": ""}
    other.adopt(folder, "zoo/ab", model="resnet8_cifar", cut="layer2", size=(16, 20), rename=renamed)
    assert payload(other, "zoo/ab.head")[0] == payload(registry, "nets/b.head")[0]
    (folder / "data" / "model.pt2").unlink()
    torch.save(torch.nn.Linear(2, 2), folder / "data" / "model.pth")
    with pytest.raises(UnsafeCheckpoint):
        other.adopt(folder, "zoo/wrong", model="resnet8_cifar", cut="layer2")
    shutil.rmtree(folder / "data")
    with pytest.raises(UsageError) as error:
        other.adopt(folder, "zoo/wrong", model="resnet8_cifar", cut="layer2")
    assert error.value.subject == folder
