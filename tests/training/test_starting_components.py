"""Tasks that start from components: bit for bit, on swapped parts, with new heads; and what is refused."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from adapted import BACKBONE, source
from small import data_set, quick

import compatkit as ck
from compatkit.errors import IncompatibleError, UsageError


@pytest.fixture(scope="module")
def start_parts(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    """Two networks of one architecture; nothing is published into it afterwards but under names of a test's own."""
    registry = ck.Registry.init(tmp_path_factory.mktemp("started") / "parts")
    fit = quick(steps=2).fit([source("left"), source("right", seed=1)])
    registry.publish(fit, prefix="d")
    return registry


def state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(value, right[name]) for name, value in left.items()
    )


class Seen:
    """Keeps the weights of the first step before anything moved."""

    def __init__(self) -> None:
        self.states: list[dict[str, torch.Tensor]] = []

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        for task in setup.tasks.values():
            self.states += [state(task.extractor), state(task.head)]


def test_the_first_step_sees_the_components_and_leaves_them_alone(start_parts: ck.Registry) -> None:
    seen = Seen()
    task = start_parts.task("x", data_set("right", seed=1), extractor="d/left.extractor", head="d/right.head")
    assert task.extractor is not None and task.head is not None
    before = state(task.extractor.module), state(task.head.module)
    fit = quick(steps=2).fit([task], ["seen"], factories={"seen": lambda: seen})
    assert equal(seen.states[0], state(start_parts.load("d/left.extractor")))
    assert equal(seen.states[1], state(start_parts.load("d/right.head")))
    assert equal(before[0], state(task.extractor.module)) and equal(before[1], state(task.head.module))
    assert not equal(seen.states[0], state(fit.tasks["x"].extractor))
    assert not equal(seen.states[1], state(fit.tasks["x"].head))
    contract = start_parts.store.manifest("d/left.extractor").contract
    assert (fit.tasks["x"].data.mean, fit.tasks["x"].data.size) == (contract.data.mean, contract.data.size)


def test_a_run_from_components_can_be_made_again(start_parts: ck.Registry, tmp_path: Path) -> None:
    def run(**settings: object) -> ck.Fit:
        task = start_parts.task(
            "x", data_set("right", seed=1), extractor="d/left.extractor", head="d/right.head"
        )
        return quick(**{"steps": 3, **settings}).fit([task])

    first, other = run(), run(checkpoint=tmp_path / "run.safetensors")
    assert first.plan == other.plan
    assert equal(state(first.tasks["x"].extractor), state(other.tasks["x"].extractor))
    assert first.run["tasks"][0]["started_from"] == {
        "extractor": str(start_parts.store.resolve("d/left.extractor").digest),
        "head": str(start_parts.store.resolve("d/right.head").digest),
    }


def test_published_parts_name_what_they_started_from(start_parts: ck.Registry) -> None:
    task = start_parts.task("x", data_set("right", seed=1), extractor="d/left.extractor", head="d/right.head")
    parts = start_parts.publish(quick(steps=1).fit([task]), prefix="swapped")
    left, right = (start_parts.store.manifest(parts[f"x.{side}"]) for side in ("extractor", "head"))
    digest = {
        name: str(start_parts.store.resolve(name).digest) for name in ("d/left.extractor", "d/right.head")
    }
    assert [(parent.relation, parent.component) for parent in left.parents] == [
        ("initialised_from", digest["d/left.extractor"])
    ]
    assert [(parent.relation, parent.component) for parent in right.parents] == [
        ("trained_with", str(start_parts.store.resolve(parts["x.extractor"]).digest)),
        ("initialised_from", digest["d/right.head"]),
    ]
    cell = start_parts.matrix(parts["x.extractor"], parts["x.head"], [data_set("right", seed=1).test]).cells[
        0
    ]
    assert cell.settings["own"]


def test_without_a_head_one_is_drawn_for_the_classes(start_parts: ck.Registry) -> None:
    data = data_set("five", classes=("a", "b", "c", "d", "e"), count=40)
    task = start_parts.task("x", data, extractor="d/left.extractor")
    fits = [quick(steps=1, seed=seed).fit([task]) for seed in (0, 0, 1)]
    heads = [state(fit.tasks["x"].head) for fit in fits]
    assert equal(heads[0], heads[1]) and not equal(heads[0], heads[2])
    parts = start_parts.publish(fits[0], prefix="five")
    assert [
        label.name for label in start_parts.store.manifest(parts["x.head"]).contract.data.labels or ()
    ] == list("abcde")
    assert start_parts.load(parts["x.head"])(torch.zeros(2, 32, 8, 8)).shape == (2, 5)


def test_a_two_layer_head_on_fixed_features_is_published_and_rebuilt(start_parts: ck.Registry) -> None:
    rest = {"model": "two_layer_head", "cut": "conv1", "kwargs": {"channels": 32, "units": 6}}
    settings = {"extractor": "d/left.extractor", "freeze_extractor": True}
    fit = quick(steps=2).fit([start_parts.task("two", data_set("two"), rest=rest, **settings)])
    assert fit.tasks["two"].class_layer == ("fc.",)
    parts = start_parts.publish(fit, prefix="two")
    module, features = start_parts.load(parts["two.head"]).eval(), torch.randn(2, 32, 8, 8)
    assert module.state_dict()["fc.0.weight"].shape == (6, 32)
    assert torch.equal(module(features), fit.tasks["two"].head.eval()(features))
    wrong = {**rest, "kwargs": {"channels": 16}}
    with pytest.raises(UsageError, match="does not take the features"):
        quick(steps=1).fit([start_parts.task("two", data_set("two"), rest=wrong, **settings)])


def test_classes_are_brought_into_the_order_of_the_head(start_parts: ck.Registry) -> None:
    data = data_set("left")
    order = np.array([2, 0, 1])
    turned = ck.DataSet(
        "left",
        *(
            attrs.evolve(item, labels=np.argsort(order)[item.labels], classes=("2", "zero", "1"))
            for item in (data.train, data.test)
        ),
    )
    plain, other = (
        start_parts.task("x", item, extractor="d/left.extractor", head="d/left.head")
        for item in (data, turned)
    )
    assert other.data.classes == ("0", "1", "2")
    assert np.array_equal(other.data.train.labels, data.train.labels)
    assert other.data.train.digest == plain.data.train.digest
    first = data.train.images[:2], np.array([0, 1])
    some = ck.DataSet.of("some", first, first, ("2", "1"))
    few = start_parts.task("x", some, extractor="d/left.extractor", head="d/left.head")
    assert few.data.train.labels.tolist() == [2, 1]


def test_what_does_not_fit_is_refused(start_parts: ck.Registry) -> None:
    def started(data: ck.DataSet | ck.Split, *, supervised: bool = True) -> ck.Task:
        return start_parts.task(
            "x", data, extractor="d/left.extractor", head="d/left.head", supervised=supervised
        )

    five = data_set("five", classes=("0", "1", "x"))
    with pytest.raises(UsageError, match=r"knows 0, 1, 2; the images of five are also of x"):
        started(five)
    with pytest.raises(UsageError, match="is of kind extractor; expected head"):
        start_parts.task("x", data_set("left"), extractor="d/left.extractor", head="d/left.extractor")
    with pytest.raises(UsageError, match="a DataSet, not the Split"):
        started(data_set("left").train)
    wide = ck.Task("wide", data_set("wide"), "test_resnet", "layer2", size=32)
    start_parts.publish(quick(steps=1).fit([wide]), prefix="w")
    with pytest.raises(IncompatibleError):
        start_parts.task("x", data_set("left"), extractor="d/left.extractor", head="w/wide.head")
    task = started(data_set("left"))
    with pytest.raises(UsageError, match="would draw its weights again"):
        quick(steps=1).fit([task], ["identical_init"])
    with pytest.raises(UsageError, match=r"from components, which have .* Leave weights= out"):
        attrs.evolve(task, weights="pretrained")
    with pytest.raises(UsageError, match="Leave normalize= out"):
        attrs.evolve(task, normalize={"mean": 0, "std": 1})
    with pytest.raises(UsageError, match="expects a component of kind head"):
        attrs.evolve(task, head=task.extractor)
    with pytest.raises(UsageError, match="give the extractor"):
        attrs.evolve(task, extractor=None)
    with pytest.raises(UsageError, match="got str"):
        ck.Task("x", data_set("left"), BACKBONE, "layer2", extractor="d/left.extractor")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="which needs a trained extractor and head"):
        ck.Task("x", data_set("left"), BACKBONE, "layer2", supervised=False)
    with pytest.raises(UsageError, match="the images have"):
        quick(steps=1).fit([attrs.evolve(task, data=five)])
    alone = started(data_set("left").train, supervised=False)
    with pytest.raises(UsageError, match="a loss without any gradient"):
        quick(steps=1).fit([alone])


def test_parts_of_two_architectures_are_trained_and_kept(start_parts: ck.Registry) -> None:
    deep = ck.Task("deep", data_set("deep"), "resnet20_cifar", "layer2", size=16)
    start_parts.publish(quick(steps=1).fit([deep]), prefix="two")
    task = start_parts.task("x", data_set("left"), extractor="d/left.extractor", head="two/deep.head")
    fit = quick(steps=1).fit([task])
    parts = start_parts.publish(fit, prefix="mixed")
    models = [
        start_parts.store.manifest(parts[f"x.{side}"]).blueprint.model for side in ("extractor", "head")
    ]
    assert models == [BACKBONE, "resnet20_cifar"]
    assert equal(state(start_parts.load(parts["x.head"])), state(fit.tasks["x"].head))
