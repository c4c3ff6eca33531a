"""The images of an extractor go by its version: two versions of one name may have been trained on different subsets."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from handmade import Hand, part
from small import data_set

import compatkit as ck
from compatkit.components import images
from compatkit.components.images import held_out, images_again
from compatkit.components.loading import PartLoader
from compatkit.contracts.manifest import About
from compatkit.data.dataset import DataSet

NAME = "digits/left.extractor"


@pytest.fixture
def versions(tmp_path: Path) -> tuple[ck.Registry, dict[str, DataSet]]:
    """Two versions of one extractor, and the data set of each by its training images."""
    registry = ck.Registry.init(tmp_path / "parts")
    hand = Hand(registry.store.root)
    sets = {entry.train.digest: entry for entry in (data_set("left", seed=seed) for seed in (0, 1))}
    for number, digest in enumerate(sets):
        facts = {"data": {"name": "left/train", "digest": digest}}
        manifest = attrs.evolve(part("extractor", training=facts), about=About(title=str(number)))
        hand.publish(NAME, f"1.0.{number}", hand.put(manifest))
    return registry, sets


def test_each_version_is_measured_on_its_own_test_set(
    versions: tuple[ck.Registry, dict[str, DataSet]], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, sets = versions
    monkeypatch.setattr(images, "_recorded", lambda store, name, digest: sets[digest])
    places = [registry.store.resolve(f"{NAME}@1.0.{number}") for number in (0, 1)]
    result = images_again(registry.store, places, "")
    assert result == dict(zip((f"{NAME}@1.0.0", f"{NAME}@1.0.1"), sets.values(), strict=True))


def test_a_mapping_may_name_a_version(versions: tuple[ck.Registry, dict[str, DataSet]]) -> None:
    registry, sets = versions
    tests = [entry.test for entry in sets.values()]
    old, new = (
        PartLoader(registry.store).component(registry.store.resolve(f"{NAME}@1.0.{number}"))
        for number in (0, 1)
    )
    settings = {"digits/*": tests[0], new.reference: tests[1]}
    assert held_out(old, settings) is tests[0] and held_out(new, settings) is tests[1]
    with pytest.raises(ck.errors.DataError):
        held_out(old, {new.reference: tests[1]})
