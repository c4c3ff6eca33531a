"""What makes two runs of a sweep two: all that a recipe can say of a task and that changes a bit of its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from small import data_set

import compatkit as ck
from compatkit.contracts.manifest import About
from compatkit.experiments.recipes.recipe import PART_KEYS, FrozenParts, Recipe, task_keys
from compatkit.experiments.sweeps.jobs import Job
from compatkit.experiments.sweeps.sweep import _plan, _plan_task
from compatkit.foundation.codec import dumps

DATA = data_set("a", channels=3, size=(16, 16))
OTHER: dict[str, Any] = {
    "name": "b",
    "data": data_set("a", channels=3, size=(16, 16), seed=1),
    "model": "resnet20_cifar",
    "cut": "layer1",
    "builder": "torchvision",
    "kwargs": {"num_classes": 3},
    "size": 12,
    "weights": "pretrained",
    "augment": "flip",
    "smoothing": 0.1,
    "mixup": 0.2,
    "cutmix": 1.0,
    "loader": {"name": "mine", "workers": 1},
    "normalize": {"mean": 0.5, "std": 0.25},
    "width": 8,
    "rest": {"model": "resnet20_cifar", "cut": "layer2"},
    "own_head": False,
    "freeze_stages": 1,
}
"""A value of each key of a recipe's task that differs from that of ``PLAIN``."""
PLAIN = ck.Task("a", DATA, "resnet8_cifar", "layer2", size=16)


def test_there_is_an_example_of_every_key() -> None:
    """A sweep refuses tasks that start from components, which alone can have their extractor frozen."""
    assert {*OTHER, *PART_KEYS, "freeze_extractor", "recompute_activations"} == {*task_keys()}


@pytest.mark.parametrize("key", OTHER)
def test_a_task_that_differs_in_one_key_is_another(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compatkit.training.task.require", lambda *args: None)  # the plugin of the loader
    monkeypatch.setattr(
        "compatkit.training.task.check_model", lambda *arguments: None
    )  # of the other builder
    assert dumps(_plan_task(attrs.evolve(PLAIN, **{key: OTHER[key]}))) != dumps(_plan_task(PLAIN))


def test_what_changes_no_bit_is_the_same_run_and_found_again() -> None:
    plain = _plan_task(PLAIN)
    assert plain == _plan_task(attrs.evolve(PLAIN, recompute_activations=True))
    assert {*plain} == {
        *("name", "backbone", "split", "builder", "size", "augment", "kwargs", "weights", "data")
    }


def test_a_cache_that_changes_pixels_is_another_run() -> None:
    def decides(**settings: Any) -> bytes:
        plan = Recipe(
            Path("r"), "p", ck.Trainer(steps=1, **settings), (), (), FrozenParts(), About(), (PLAIN,)
        )
        job = Job(
            **dict.fromkeys(field.name for field in attrs.fields(Job))
            | {"run": "r", "tables": {"prefix": "p"}}
        )
        return dumps(_plan(job, plan, {}))

    assert decides() == decides(cache="off") == decides(workers=0) != decides(cache="on")
