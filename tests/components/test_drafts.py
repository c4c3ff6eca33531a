"""Publishing a fit: what is proved before it is written, and what stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.components.drafts import drafts
from compatkit.components.probes import probe_shapes
from compatkit.contracts.contract import Blueprint, Port, Structural
from compatkit.errors import CutError, IntegrityError


@pytest.fixture(scope="module")
def tasks() -> list[ck.Task]:
    return [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
        for seed, name in enumerate(("left", "right"))
    ]


@pytest.fixture(scope="module")
def plain(tasks: list[ck.Task]) -> ck.Fit:
    """One network; only read."""
    return quick(steps=1).fit(tasks[:1])


@pytest.fixture(scope="module")
def first(tasks: list[ck.Task]) -> ck.Fit:
    """One network and the head that it was trained against; only read."""
    return quick(steps=1).fit(tasks[:1], ["dcc"])


@pytest.fixture(scope="module")
def both(tasks: list[ck.Task]) -> ck.Fit:
    """Two networks that share a head; only read."""
    return quick(steps=1).fit(tasks, ["identical_init", "dcc"])


@pytest.fixture
def registry(tmp_path: Path) -> ck.Registry:
    return ck.Registry.init(tmp_path / "parts")


def test_parts_come_extractors_first_then_shared_heads_then_heads(both: ck.Fit) -> None:
    assert [draft.key for draft in drafts(both)] == [
        "left.extractor",
        "right.extractor",
        "shared.dcc",
        "left.head",
        "right.head",
    ]


def test_the_contract_is_derived_from_module_and_run(
    tasks: list[ck.Task], both: ck.Fit, registry: ck.Registry
) -> None:
    parts = registry.publish(both, prefix="digits")
    extractor, head = (registry.store.manifest(parts[f"left.{side}"]) for side in ("extractor", "head"))
    port = extractor.contract.structural.outputs[0]
    assert (port.channels, port.layout, port.range) == (32, "NCHW", "nonnegative")
    assert [size.at(16) for size in port.spatial] == [8, 8]  # two strides: (H + 1) // 2 once, in layer2
    mean, std = tasks[0].data.train.resized((16, 16)).statistics()
    assert (extractor.contract.data.mean, extractor.contract.data.std) == (mean, std)
    assert extractor.contract.data.labels is None
    assert [label.name for label in head.contract.data.labels or ()] == ["0", "1", "2"]
    assert extractor.contract.protocol.norm == "batch"
    assert {anchor.kind for anchor in extractor.contract.protocol.anchors} == {
        "initial_weights",
        "auxiliary_head",
    }
    assert extractor.contract.protocol.anchors == head.contract.protocol.anchors
    assert head.parents[0].component == registry.store.resolve(parts["left.extractor"]).digest
    assert extractor.training["data"]["digest"] == tasks[0].data.train.digest
    assert [plugin["as"] for plugin in extractor.training["plugins"]] == ["dcc", "identical_init"]


def test_publishing_again_changes_nothing_and_new_weights_are_a_new_major(
    tasks: list[ck.Task], plain: ck.Fit, registry: ck.Registry
) -> None:
    first = registry.publish(plain, prefix="digits")
    assert registry.publish(plain, prefix="digits") == first
    second = registry.publish(quick(steps=2).fit(tasks[:1]), prefix="digits")
    assert second == {key: name.replace("@1.0.0", "@2.0.0") for key, name in first.items()}


def test_publishing_leaves_the_fit_as_it_is(first: ck.Fit, registry: ck.Registry) -> None:
    modules = [first.tasks["left"].extractor, first.tasks["left"].head, first.auxiliary["dcc"].module]
    before = [{key: value.clone() for key, value in module.state_dict().items()} for module in modules]
    registry.publish(first, prefix="digits")
    for module, state in zip(modules, before, strict=True):
        assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())


def test_a_frozen_head_is_not_published_a_second_time(
    tasks: list[ck.Task], first: ck.Fit, registry: ck.Registry
) -> None:
    released = registry.publish(first, prefix="digits")["shared.dcc"]
    from_fit = registry.publish(quick(steps=1).fit(tasks[1:], ["dcc"], frozen=first), prefix="digits")
    assert from_fit["shared.dcc"] == released
    heads = registry.frozen("digits/shared.*")
    from_registry = registry.publish(quick(steps=1).fit(tasks[1:], ["dcc"], frozen=heads), prefix="again")
    assert set(from_registry) == {"right.extractor", "right.head"}
    report = registry.check("digits/left.extractor", "digits/right.head")
    assert (report.wiring, report.promise) == ("direct", "shared-head")


def test_a_frozen_head_of_an_earlier_release_is_still_that_release(
    tasks: list[ck.Task], first: ck.Fit, registry: ck.Registry
) -> None:
    """The name has a newer version by now; a fit with the first head refers to the first, not to a third."""
    registry.publish(first, prefix="digits")
    latest = registry.publish(quick(steps=2).fit(tasks[:1], ["dcc"]), prefix="digits")
    assert latest["shared.dcc"] == "digits/shared.dcc@2.0.0"
    parts = registry.publish(quick(steps=1).fit(tasks[1:], ["dcc"], frozen=first), prefix="digits")
    assert parts["shared.dcc"] == "digits/shared.dcc@1.0.0"
    assert [str(version) for version in registry.store.versions("digits/shared.dcc")] == ["1.0.0", "2.0.0"]


@pytest.mark.case("A8")
def test_weights_that_are_not_finite_are_refused_before_anything_is_written(
    tasks: list[ck.Task], registry: ck.Registry
) -> None:
    fit = quick(steps=1).fit(tasks[:1])
    next(fit.tasks["left"].head.parameters()).data[0] = float("nan")
    with pytest.raises(IntegrityError, match=r"left.head: the tensor '.*' holds values that are not finite"):
        registry.publish(fit, prefix="digits")
    assert registry.store.names() == []


def test_parts_that_no_longer_make_the_network_are_refused(
    tasks: list[ck.Task], registry: ck.Registry
) -> None:
    """A module whose function is not in its state dict cannot be rebuilt, so it is not published."""
    fit = quick(steps=1).fit(tasks[:1])
    norm = next(
        module for module in fit.tasks["left"].head.modules() if isinstance(module, torch.nn.BatchNorm2d)
    )
    norm.eps = 0.5
    with pytest.raises(CutError):
        registry.publish(fit, prefix="digits")
    assert registry.store.names() == []


@pytest.mark.parametrize(
    ("traced", "spatial", "step", "grid", "size"),
    [
        ((224, 224), ("H", "W"), 1, (7, 7), (64, 64)),
        ((224, 224), ("H", "W"), 32, (7, 7), (64, 64)),
        ((224, 160), ("H", "W"), 16, (14, 10), (112, 80)),
        ((225, 129), ("H", "W"), 1, (113, 65), (112, 64)),
        ((299, 299), ("H", "W"), 1, (8, 8), (75, 75)),
        ((224, 224), ("H", "W"), 1, (1, 1), (112, 112)),
        ((224, 224), (224, 224), 1, (7, 7), (224, 224)),
        ((224, 224), ("H", "W"), 128, (7, 7), (128, 128)),
        ((224, 224), ("H", "W"), 112, (2, 2), (224, 224)),
        ((32, 32), ("H", "W"), 1, (8, 8), (32, 32)),
    ],
    ids=[
        "two positions a side",
        "in steps",
        "in steps, not square",
        "odd sides",
        "more than 64",
        "pooled: half",
        "one size only",
        "large steps",
        "no step fits",
        "small",
    ],
)
def test_the_probe_of_an_extractor_takes_smaller_images_than_were_traced_where_it_can(
    traced: tuple[int, int],
    spatial: tuple[int | str, int | str],
    step: int,
    grid: tuple[int, int],
    size: tuple[int, int],
) -> None:
    at = {f"{traced[0]}x{traced[1]}": grid}
    image = Port("image", ("N", 3, *spatial), multiple_of=step)
    features = Port("features", ("N", 8, "H", "W"), multiple_of=step, measured=at)
    blueprint = Blueprint("timm", "timm 1.0.31", "resnet18", {}, "layer1", "extractor", "fx", traced)
    assert probe_shapes(Structural((image,), (features,)), blueprint) == [(2, 3, *size)]
