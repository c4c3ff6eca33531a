"""Bridges between components of a registry: chosen, kept, loaded again as the same function."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from small import data_set

import compatkit as ck
from compatkit.errors import DataError, IncompatibleError, UsageError
from compatkit.evaluation.preprocessing import normalise, prepare
from compatkit.splitting import publish_split, split

NETWORKS: dict[str, tuple[str, str, dict[str, Any], tuple[int, int]]] = {
    "one": ("resnet8_cifar", "layer2", {}, (16, 16)),  # 32 channels of 8x8
    "two": ("resnet8_cifar", "layer2", {}, (16, 16)),
    "narrow": ("resnet8_cifar", "layer1", {}, (16, 16)),  # 16 channels of 16x16
    "convs": ("lenet", "pool1", {}, (32, 32)),  # 6 channels of 14x14, into one convolution
    "again": ("lenet", "pool1", {}, (32, 32)),
    "vector": ("lenet", "dense2", {}, (32, 32)),  # a vector of 84
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    registry = ck.Registry.init(tmp_path_factory.mktemp("bridges"), exist_ok=True)
    for seed, (name, (model, point, kwargs, size)) in enumerate(NETWORKS.items()):
        settings = {"in_chans": 1, "num_classes": 3, **kwargs}
        parts = split(model, point, kwargs=settings, size=size, seed=seed, labels=("0", "1", "2"))
        publish_split(registry, parts, f"zoo/{name}")
    return registry


@pytest.fixture
def registry(made: ck.Registry, tmp_path: Path) -> ck.Registry:
    """A copy to publish in."""
    return ck.Registry.open(shutil.copytree(made.store.root, tmp_path / "mine"))


@pytest.fixture(scope="module")
def images() -> ck.Split:
    return data_set("noise", size=(16, 16), count=60).train


def test_a_bridge_is_kept_with_its_statistics_contract_and_provenance(
    registry: ck.Registry, images: ck.Split, tmp_path: Path
) -> None:
    found = registry.bridge(
        "zoo/narrow.extractor", "zoo/one.head", images, rungs=["ridge", "ridge3x3"], until=None, test=images
    )
    assert [one.rung for one in found.steps] == ["ridge", "ridge3x3"]
    assert found.to_png(tmp_path / "ladder.png") == (tmp_path / "ladder.png").read_bytes() == found.to_png()
    assert found.to_png()[:8] == b"\x89PNG\r\n\x1a\n"
    names = registry.publish_bridge("pairs/bridge", found, rung="ridge3x3")
    assert names == {
        "adapter": "pairs/bridge.adapter@1.0.0",
        "recombination": "pairs/bridge@1.0.0",
    }
    again = registry.load_recombination(names["recombination"])
    step = found.step("ridge3x3")
    assert step.accuracy is not None and step.agreement is not None and step.candidate is not None
    right = int((again.predict(images).numpy() == images.labels).sum())
    # With the statistics that were estimated; tensors that lie elsewhere may turn a tie by their last bits.
    assert abs(right - step.accuracy.correct) <= 1
    adapter = registry.manifest(names["adapter"])
    digests = {
        name: str(registry.store.resolve(f"zoo/{name}").digest) for name in ("narrow.extractor", "one.head")
    }
    assert {(one.relation, one.component) for one in adapter.parents} >= {
        ("adapts", digests["narrow.extractor"]),
        ("head", digests["one.head"]),
    }
    facts = adapter.training
    assert facts["method"] == "ridge3x3" and facts["agreement"] == step.agreement.accuracy
    assert facts["data"]["images"] == 30 and facts["held_out"] == 30 and facts["seconds"] >= 0
    assert [one.model for one in again.contract.adapters] == ["resize", "project"]
    statistics = registry.manifest(names["recombination"]).training["statistics"]
    assert statistics["of"] == "head" and statistics["data"]["digest"] == facts["data"]["digest"]


def test_the_extractors_own_statistics_stay(registry: ck.Registry, images: ck.Split) -> None:
    found = registry.bridge("zoo/two.extractor", "zoo/one.head", images, rungs=["statistics"])
    model, own = found.recombination, registry.build("zoo/two.extractor").state_dict()
    assert all(torch.equal(value, own[name]) for name, value in model.extractor.state_dict().items())
    head = registry.build("zoo/one.head").state_dict()
    changed = {name for name, value in model.head.state_dict().items() if not torch.equal(value, head[name])}
    assert changed and all("running" in name or "num_batches" in name for name in changed)
    assert registry.publish_bridge("pairs/anew", found) == {"recombination": "pairs/anew@1.0.0"}
    assert registry.load_recombination("pairs/anew").estimated["of"] == "head"


def test_a_refitted_head_is_a_component_of_the_old_ones_blueprint(
    registry: ck.Registry, images: ck.Split
) -> None:
    found = registry.bridge("zoo/again.extractor", "zoo/convs.head", images, rungs=["absorbed"])
    names = registry.publish_bridge("pairs/absorbed", found)
    assert sorted(names) == ["head", "recombination"]
    manifest, old = registry.manifest(names["head"]), registry.manifest("zoo/convs.head")
    assert manifest.blueprint == old.blueprint and manifest.training["layers"] == ["conv2"]
    assert manifest.parents[0].relation == "initialised_from"
    assert not any(one.relation == "trained_with" for one in manifest.parents)
    again = registry.load_recombination(names["recombination"])
    pixels = normalise(prepare(images, again.data).images, again.data)
    torch.testing.assert_close(again(pixels), found.recombination(pixels), atol=1e-6, rtol=1e-6)
    assert len(again.contract.adapters) == 0


def test_a_head_refitted_to_another_width_is_built_again_from_its_blueprint(
    registry: ck.Registry, images: ck.Split
) -> None:
    found = registry.bridge("zoo/one.extractor", "zoo/convs.head", images, rungs=["absorbed"])
    names = registry.publish_bridge("pairs/wider", found)
    manifest, old = registry.manifest(names["head"]), registry.manifest("zoo/convs.head")
    assert manifest.blueprint == attrs.evolve(old.blueprint, entries=(("conv2", 32),))
    assert old.contract.structural.inputs[0].channels == 6
    given = registry.manifest("zoo/one.extractor").contract.structural.outputs[0]
    taken = manifest.contract.structural.inputs[0]
    assert (taken.channels, taken.range) == (32, given.range)
    again = registry.load_recombination(names["recombination"])
    assert [one.model for one in again.contract.adapters] == ["resize"]
    pixels = normalise(prepare(images, again.data).images, again.data)
    torch.testing.assert_close(again(pixels), found.recombination(pixels), atol=1e-6, rtol=1e-6)
    assert registry.check("zoo/again.extractor", names["head"]).wiring == "needs-adapter"  # 6 channels come


def test_vectors_are_bridged_and_what_needs_maps_is_left_out(registry: ck.Registry, images: ck.Split) -> None:
    found = registry.bridge(
        "zoo/one.extractor", "zoo/vector.head", images, rungs=["ridge", "ridge3x3"], until=None, images=10
    )
    assert found.chosen == "ridge"
    assert found.steps[1].note == "A 3x3 convolution needs maps; the features are NC. Take the rung ridge."
    assert found.to_json()["steps"][0]["says"] in ("fit", "doubtful", "no fit")
    assert "Rung ridge: agreement" in str(found)


def test_the_same_images_and_seed_give_the_same_bridge(made: ck.Registry, images: ck.Split) -> None:
    pair = "zoo/two.extractor", "zoo/one.head", images
    first, second = (made.bridge(*pair, rungs=["ridge", "stitch"], until=None) for _ in range(2))
    for rung in ("ridge", "stitch"):
        states = [one.step(rung).candidate.fitted.module.state_dict() for one in (first, second)]  # type: ignore[union-attr]
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    other = made.bridge(*pair, rungs=["ridge"], seed=1)
    assert other.step("ridge").candidate is not None


@pytest.mark.case("F")
def test_what_cannot_be_bridged_is_refused(made: ck.Registry, images: ck.Split) -> None:
    pair = "zoo/two.extractor", "zoo/one.head"
    with pytest.raises(UsageError, match=r"data= expects a Split of images, got a DataSet"):
        made.bridge(*pair, data_set("noise"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="until= is an agreement from 0 to 1, or None, got 80"):
        made.bridge(*pair, images, until=80)
    with pytest.raises(UsageError, match="are images with their classes; noise/train has none"):
        made.bridge(*pair, images, labels=images.unlabelled())
    with pytest.raises(DataError, match="a bridge needs 20 at least"):
        made.bridge(*pair, images.subset(12))
    with pytest.raises(IncompatibleError):
        made.bridge("zoo/vector.extractor", "zoo/one.head", images)
    found = made.bridge(*pair, images, rungs=["statistics"])
    with pytest.raises(UsageError, match="'ridge' was not climbed; climbed were statistics"):
        made.publish_bridge("pairs/none", found, rung="ridge")
    wide = made.bridge("zoo/narrow.extractor", "zoo/one.head", images, rungs=["direct", "ridge"], until=None)
    with pytest.raises(UsageError, match=r"direct was left out: .* 16 channels come and 32 are taken"):
        made.publish_bridge("pairs/none", wide, rung="direct")


def test_colour_images_reach_a_part_that_takes_grey_ones(made: ck.Registry) -> None:
    """Whatever an extractor cannot take is brought to its contract: size and channels."""
    colour = data_set("noise", size=(40, 24), count=40, channels=3).train
    found = made.bridge("zoo/again.extractor", "zoo/one.head", colour, rungs=["ridge"])
    assert found.step("ridge").agreement is not None
