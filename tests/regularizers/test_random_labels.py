"""Random labels: a function of image and seed alone, any number of classes, fitted by the real trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick, write_pack

import compatkit as ck
from compatkit.errors import PluginError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.regularizers.random_labels import RandomLabels, randomly_labeled


def task(**settings: Any) -> ck.Task:
    inputs = {"kwargs": {"widths": [48], "img_size": [12, 12]}, **settings}
    return ck.Task("a", data_set("a"), "fully_connected", "blocks.0", **inputs)


def test_a_label_depends_on_image_and_seed_and_not_on_the_other_images() -> None:
    split = data_set("a", count=200).train
    whole = randomly_labeled(split, 7, seed=1)
    some = np.array([150, 3, 20])
    part = randomly_labeled(split.take(some), 7, seed=1)
    assert part.labels.tolist() == whole.labels[np.sort(some)].tolist()
    assert randomly_labeled(split, 7, seed=2).labels.tolist() != whole.labels.tolist()


def test_equal_images_have_equal_labels() -> None:
    split = data_set("a").train
    images = split.read(range(len(split)))
    twice = ck.Split(np.concatenate([images, images]), np.tile(split.labels, 2), split.classes, "twice")
    result = randomly_labeled(twice, 50, seed=0).labels
    assert result[: len(split)].tolist() == result[len(split) :].tolist()


@pytest.mark.parametrize("classes", [2, 5, 50])
def test_labels_are_even_and_independent_of_the_real_ones(classes: int) -> None:
    draw = np.random.default_rng(0)
    count = 4000
    images = draw.integers(0, 256, (count, 4, 4, 1)).astype(np.uint8)
    split = ck.Split(images, np.arange(count) % 10, tuple("0123456789"), "noise")
    result = randomly_labeled(split, classes, seed=0)
    assert result.classes[-1] == f"random-{classes - 1}" and len(result.classes) == classes
    table = np.zeros((10, classes))
    np.add.at(table, (split.labels, result.labels), 1)
    # chi-square of independence and evenness: mean 10 K - 1, deviation sqrt(2 (10 K - 1))
    expected = count / (10 * classes)
    chi = ((table - expected) ** 2 / expected).sum()
    free = 10 * classes - 1
    assert abs(chi - free) < 4 * np.sqrt(2 * free)


def test_a_network_is_built_for_the_random_classes_and_learns_them() -> None:
    fit = quick(steps=300, lr=0.003, evaluate_every=100, evaluate_on="train").fit(
        [task()], [ck.use("random_labels", classes=5, seed=4)]
    )
    state = fit.tasks["a"]
    assert [label.name for label in state.labels] == [f"random-{number}" for number in range(5)]
    with torch.no_grad():
        assert state.head(torch.zeros(1, 48)).shape == (1, 5)
    assert fit.evaluations[-1]["accuracy"] > 0.9
    assert fit.run["tasks"][0]["data"]["digest"] == randomly_labeled(task().data.train, 5, 4).digest
    # what was learned says nothing about images that were not seen
    table: Any = ck.measure(state, randomly_labeled(task().data.test, 5, 4), ["accuracy"])
    assert table["accuracy"].value < 0.6


def test_disjoint_subsets_share_no_image() -> None:
    split = data_set("a", count=60).train
    up, down = split.divide(20, 30, seed=1)
    images, seen = down.read(range(30)), {entry.tobytes() for entry in up.read(range(20))}
    assert (len(up), len(down)) == (20, 30) and not any(image.tobytes() in seen for image in images)


@pytest.mark.parametrize("classes", [1, 0, 2.0, True, "5"])
def test_counts_that_are_none_are_refused(classes: Any) -> None:
    with pytest.raises(PluginError) as caught:
        quick(steps=1).fit([task()], [ck.use("random_labels", classes=classes)])
    assert caught.value.code == "plugin"


def test_a_loader_is_refused() -> None:
    batch = torch.zeros(8, 1, 12, 12), torch.arange(8) % 3
    with pytest.raises(PluginError) as caught:
        quick(steps=1).fit([task(loader=[batch])], ["random_labels"])
    assert caught.value.code == "plugin"


def test_it_keeps_the_rules_of_plugins() -> None:
    assert_regularizer(RandomLabels, classes=4)


def test_a_sweep_may_vary_the_number_of_classes(tmp_path: Path) -> None:
    """The network has as many outputs."""
    write_pack(tmp_path, data_set("noise"))
    (tmp_path / "labels.toml").write_text(
        """
prefix = "labels"
regularizers = [{ name = "random_labels", classes = 2 }]
[trainer]
steps = 1
batch_size = 8
[[tasks]]
name = "a"
data = "noise"
model = "fully_connected"
cut = "blocks.0"
kwargs = { widths = [6], img_size = [12, 12] }
[sweep]
"regularizers.random_labels.classes" = [7]
"""
    )
    registry = ck.Registry.init(tmp_path / "parts")
    outcome = ck.Sweep.read(tmp_path / "labels.toml", root=str(tmp_path)).run(
        registry, out=tmp_path / "records"
    )
    outcome.check()
    heads = [registry.load(str(component.name)) for component in registry.search(kind="head")]
    assert sorted(head(torch.zeros(1, 6)).shape[1] for head in heads) == [7]
