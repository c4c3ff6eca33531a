"""A model that was not trained here: its own preprocessing, features of given images, parts that can be measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.components.splitting import publish_split, split
from compatkit.evaluation.feature_statistics import feature_moments

FEW = {"layers": [1, 1, 1, 1]}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_foreign_model_states_its_own_images_and_the_features_of_data_that_is_given(tmp_path: Path) -> None:
    data = data_set("left", channels=3).train
    parts = split(
        "resnet18",
        "layer1",
        kwargs=FEW,
        size=(32, 32),
        labels=[f"class {i}" for i in range(1000)],
        data=data,
        samples=9,
    )
    contract = parts["extractor"].contract
    result = contract.data
    assert (result.size, result.channels, result.labels) == ((32, 32), "RGB", None)
    assert (result.interpolation, result.crop_pct, result.crop_mode) == ("bicubic", 0.95, "center")
    assert result.mean == (0.485, 0.456, 0.406)
    (stated,) = contract.statistical.features or ()
    assert stated.samples == 9 and parts["head"].contract.statistical.features == (stated,)
    assert [label.name for label in parts["head"].contract.data.labels or ()][:2] == ["class 0", "class 1"]
    registry = ck.Registry.init(tmp_path / "parts")
    published = publish_split(registry.store, parts, "zoo/resnet18")
    loaded = registry.load(published["extractor"])
    (again,) = feature_moments(loaded, contract.structural.outputs, data, result, samples=9)
    assert again.statistics() == stated
    assert registry.store.read_blob(stated.per_channel["blob"]) == again.blob  # type: ignore[index]


def test_resnet18_with_its_bicubic_crop_can_be_measured(tmp_path: Path) -> None:
    data, names = data_set("left", channels=3, count=24), ("0", "1", "2")
    parts = split("resnet18", "layer3", kwargs={"num_classes": 3, **FEW}, size=(32, 32), labels=names)
    registry = ck.Registry.init(tmp_path / "parts")
    publish_split(registry.store, parts, "zoo/resnet18")
    matrix = registry.matrix("zoo/*.extractor", "zoo/*.head", {"zoo/*": data.test}, bn_policy="running")
    (cell,) = matrix.cells
    assert cell.own and cell.restricted is not None and cell.restricted.count == 24


def test_without_data_and_labels_nothing_is_claimed() -> None:
    parts = split("resnet8_cifar", "layer2", size=(16, 16))
    assert {part.contract.statistical.features for part in parts.values()} == {None}
    assert {part.contract.data.labels for part in parts.values()} == {None}
    assert all(part.contract.statistical.probe is not None for part in parts.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": ["a", "b"]}, "one label for each of the 10 outputs of .*, got 2"),
        ({"kwargs": {"in_chans": 4}}, "takes images of 4 channels"),
    ],
)
def test_what_a_contract_cannot_state_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ck.errors.UsageError, match=message):
        split("resnet8_cifar", "layer2", size=(16, 16), **settings)


def test_public_parts_run_publish_and_give_a_task_its_weights(tmp_path: Path) -> None:
    cuts_found = ck.cuts("resnet8_cifar", size=(16, 16))
    assert "layer2" in [point.name for point in cuts_found.usable] and "layer2 " in str(cuts_found)
    parts = ck.split("resnet8_cifar", "layer2", kwargs={"num_classes": 3}, size=(16, 16), seed=3)
    images = torch.rand(2, 3, 16, 16)
    registry = ck.Registry.init(tmp_path / "parts")
    published = registry.publish(parts, "nets/small")
    loaded = registry.load(published["head"])
    assert torch.equal(loaded(parts.extractor(images)), parts.head(parts.extractor(images)))
    task = ck.Task("a", data_set("a", channels=3), "resnet8_cifar", "layer2", size=16, weights=parts.weights)
    fit = quick(steps=0).fit([task])
    assert torch.equal(fit.weights("a")["conv1.weight"], parts.weights["conv1.weight"])


@pytest.mark.parametrize(
    ("name", "meant"), [("backbone", "'model'"), ("split", "'cut'"), ("pretrained", "weights=")]
)
def test_another_word_for_an_argument_of_a_task_is_answered(name: str, meant: str) -> None:
    with pytest.raises(ck.errors.UsageError, match=meant) as caught:
        ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", **{name: "x"})
    assert caught.value.subject == name
