"""Heads for more classes: rows, biases and names of the old ones stay; what cannot be extended says what came."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch
from fleets import ALL, published
from small import data_set, quick
from torch import nn

import compatkit as ck
from compatkit.components.extension import extend
from compatkit.components.loading import load
from compatkit.errors import UsageError, VersionTooSmall


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    return published(tmp_path_factory.mktemp("extended") / "parts")


def test_old_rows_and_names_stay_and_new_rows_come_from_the_seed(released: ck.Registry) -> None:
    old = released.load("fleet/shared.dcc").state_dict()
    states = []
    for place, seed in enumerate((0, 0, 1)):
        name = released.extend("fleet/shared.dcc", ["frog", "truck"], f"seeds/{place}.head", seed=seed)
        assert name == f"seeds/{place}.head@1.0.0"
        states.append(released.load(name).state_dict())
    layer = "classifier.weight", "classifier.bias"
    for made in states:
        assert made.keys() == old.keys()
        assert all(torch.equal(made[key], value) for key, value in old.items() if key not in layer)
        assert all(torch.equal(made[key][:3], old[key]) for key in layer)
        assert made["classifier.weight"].shape == (5, 1280)
    same, other = (torch.equal(states[0][layer[0]], state[layer[0]]) for state in states[1:])
    assert same and not other
    drawn = states[0][layer[0]][3:]
    assert 0.5 < float(drawn.std() / old[layer[0]].std()) < 2  # drawn as the head's own rows were
    manifest = released.store.manifest("seeds/2.head")
    assert [label.name for label in manifest.contract.data.labels or ()] == list(ALL)
    before = released.store.resolve("fleet/shared.dcc")
    assert [(parent.relation, parent.component) for parent in manifest.parents] == [
        ("extended_from", str(before.digest))
    ]
    assert manifest.training["extension"] == {"classes": ["frog", "truck"], "seed": 1}
    assert (manifest.kind, manifest.contract.structural.outputs[0].channels) == ("head", 5)
    assert manifest.contract.protocol == released.store.manifest("fleet/shared.dcc").contract.protocol


def test_answers_for_the_old_classes_are_those_of_the_old_head(released: ck.Registry) -> None:
    features = torch.randn(2, 16, 4, 4)
    name = released.extend("fleet/shared.dcc", ["frog"], "answers/four.head")
    old, new = released.load("fleet/shared.dcc"), released.load(name)
    assert torch.allclose(new(features)[:, :3], old(features), atol=1e-6)
    assert released.check("fleet/desk.extractor", name).promise == "shared-head"
    five = released.extend(name, ["truck"], "answers/five.head")
    assert torch.allclose(released.load(five)(features)[:, :4], new(features), atol=1e-6)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["frog", "zero"], "'zero' cannot be added .*: output 0 has this class already, as '0'"),
        (["car", "automobile"], "'automobile' cannot be added .*: output 3 has this class already, as 'car'"),
        ([], "expects the names of at least one new class"),
        ("frog", "expects the names of at least one new class"),
        (b"frog", "expects the names of at least one new class"),
        (None, "expects the names of at least one new class"),
        (3, "at least one new class, .*; got 3"),
        (["frog", 3], "at least one new class, .*; got 3"),
        ([" "], "at least one new class"),
    ],
)
def test_a_class_is_there_once_under_whatever_name(
    released: ck.Registry, classes: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        released.extend("fleet/shared.dcc", classes, "x/x.head")


def test_a_seed_is_a_whole_number(released: ck.Registry) -> None:
    with pytest.raises(UsageError) as caught:
        released.extend("fleet/shared.dcc", ["frog"], "x/x.head", seed="zero")  # type: ignore[arg-type]
    assert caught.value.subject == "zero"


def test_what_is_no_head_of_one_class_layer_is_refused(released: ck.Registry) -> None:
    with pytest.raises(UsageError, match=r"is of kind extractor, which has no classes"):
        released.extend("fleet/desk.extractor", ["frog"], "x/x.head")
    part = load(released.store, released.store.resolve("fleet/shared.dcc"))
    with pytest.raises(UsageError, match="have no class names"):
        extend(attrs.evolve(part, manifest=_without_labels(part.manifest)), ["frog"])
    part.module.classifier = nn.Sequential(nn.Linear(1280, 8), nn.Linear(8, 3))
    with pytest.raises(UsageError, match=r"one linear layer .* got classifier \(Sequential of 10,275 param"):
        extend(part, ["frog"])


def test_heads_that_tell_no_classes_apart_are_refused(released: ck.Registry) -> None:
    with pytest.raises(
        UsageError,
        match=r"fleet/shared\.rotation@1\.0\.0 was trained by rotation_prediction; its outputs \(0 degrees, 90 deg",
    ):
        released.extend("fleet/shared.rotation", ["frog"], "x/x.head")
    assert not released.search(pattern="x/*")
    part = load(released.store, released.store.resolve("fleet/shared.rotation"))
    names = dict(part.manifest.training) | {
        "plugin": "mine",
        "plugins": [{"as": "mine", "name": "regularizers.own"}],
    }
    for training in (names, {}):  # of somebody else's regularizer, and of nobody knows which
        made = extend(
            attrs.evolve(part, manifest=attrs.evolve(part.manifest, training=training)), ["45 degrees"]
        )
        assert made.manifest.contract.structural.outputs[0].channels == 5


def test_a_network_whose_class_layer_is_a_convolution(tmp_path: Path) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    data = data_set("c", size=(32, 32), channels=3, count=24)
    task = ck.Task("c", data, "squeezenet1_1", "features.9", builder="torchvision", size=64)
    parts = registry.publish(quick(steps=1).fit([task]), prefix="c")
    old = registry.load(parts["c.head"]).state_dict()
    new = registry.load(registry.extend(parts["c.head"], ["frog"], "c/four.head")).state_dict()
    grown = [key for key in old if old[key].shape != new[key].shape]
    assert sorted(grown) == ["classifier.1.bias", "classifier.1.weight"]
    assert all(torch.equal(new[key][: len(value)], value) for key, value in old.items())


def _without_labels(manifest: object) -> object:
    contract = manifest.contract  # type: ignore[attr-defined]
    bare = attrs.evolve(contract, data=attrs.evolve(contract.data, labels=None))
    return attrs.evolve(manifest, contract=bare)  # type: ignore[type-var]


def test_under_the_name_of_the_old_head_it_is_a_major_step(released: ck.Registry) -> None:
    first = released.extend("fleet/shared.dcc", ["frog"], "steps/step.head")
    with pytest.raises(VersionTooSmall, match=r"2\.0\.0"):
        released.extend(first, ["truck"], "steps/step.head", version="1.1.0")
    assert released.extend(first, ["truck"], "steps/step.head") == "steps/step.head@2.0.0"
    labels = [
        change
        for change in released.diff(first, "steps/step.head@2.0.0").changes
        if "labels" in change.location
    ]
    assert labels and {label.bump for label in labels} == {"minor"}
