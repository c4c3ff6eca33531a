"""Identical initial weights: the same start whatever the count of classes, in this run and in a later one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.errors import PluginError
from compatkit.registry.weights.tensorfile import serialize

Start = dict[str, dict[str, torch.Tensor]]


def start(tasks: list[ck.Task], uses: list[Any], seed: int = 0) -> Start:
    """Return the weights of every task before the first step."""
    seen: Start = {}

    class Record:
        @ck.hookimpl
        def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
            if step.number == 0:
                both = {**step.task.extractor.state_dict(), **step.task.head.state_dict()}
                seen[step.task.name] = {key: value.clone() for key, value in both.items()}
            return batch

    quick(steps=1, seed=seed).fit(tasks, [*uses, "record"], factories={"record": Record})
    return seen


def task(name: str, classes: int = 3, **settings: Any) -> ck.Task:
    names = tuple(str(index) for index in range(classes))
    inputs = {"model": "resnet8_cifar", "cut": "layer2", "size": 16, **settings}
    return ck.Task(name, data_set(name, classes=names), **inputs)


def differing(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> set[str]:
    return {
        key for key in left if left[key].shape != right[key].shape or not torch.equal(left[key], right[key])
    }


def test_networks_and_heads_start_equal_and_without_the_plugin_they_differ() -> None:
    same = start([task("a"), task("b")], ["identical_init"])
    assert differing(same["a"], same["b"]) == set()
    apart = start([task("a"), task("b")], [])
    assert differing(apart["a"], apart["b"])


def test_another_count_of_classes_changes_the_class_layer_only() -> None:
    seen = start([task("a", 3), task("b", 5)], ["identical_init"])
    assert differing(seen["a"], seen["b"]) == {"fc.weight", "fc.bias"}


def test_a_named_seed_gives_the_same_start_in_another_run() -> None:
    use = ck.use("identical_init", seed=7)
    first, second = start([task("a")], [use], seed=0), start([task("b")], [use], seed=1)
    assert differing(first["a"], second["b"]) == set()


@pytest.mark.parametrize("kind", ["mapping", "path"])
def test_given_weights_are_the_identical_start_and_the_class_layer_is_drawn(
    kind: str, tmp_path: Path
) -> None:
    inputs = quick(steps=2).fit([task("old")]).weights("old")
    path = tmp_path / "old.safetensors"
    path.write_bytes(serialize(inputs))
    weights: Any = inputs if kind == "mapping" else path
    seen = start([task("a", weights=weights), task("b", weights=weights)], ["identical_init"])
    assert differing(seen["a"], seen["b"]) == set()
    assert differing(seen["a"], inputs) == {"fc.weight", "fc.bias"} or differing(seen["a"], inputs) == {
        "fc.weight"
    }


def test_networks_of_another_architecture_are_refused() -> None:
    with pytest.raises(PluginError, match=r"one architecture.*'a' is resnet8_cifar.*'b' is resnet20_cifar"):
        start([task("a"), task("b", model="resnet20_cifar")], ["identical_init"])


def test_class_layers_of_their_own_differ_and_nothing_else_does() -> None:
    own = start([task("a"), task("b")], [ck.use("identical_init", class_layer="own")])
    assert differing(own["a"], own["b"]) == {"fc.weight"}
    same = start([task("a"), task("b")], ["identical_init"])
    assert differing(own["a"], same["a"]) == {"fc.weight"}  # the body is that of the same stream
    with pytest.raises(PluginError) as result:
        start([task("a"), task("b")], [ck.use("identical_init", class_layer="names")])
    assert "class_layer" in str(result.value)
