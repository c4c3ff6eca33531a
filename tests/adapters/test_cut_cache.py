"""Cuts that the process remembers give the very parts that tracing gives."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs
import pytest
import timm
import torch
from adapters.test_families import FAMILIES
from small import data_set, quick
from torch import nn

import compatkit as ck
from compatkit.adapters import blueprints
from compatkit.adapters.blueprints import build, build_pair
from compatkit.adapters.builders import create
from compatkit.adapters.cutting import cache
from compatkit.adapters.cutting.cache import cached_sides
from compatkit.adapters.cutting.cut import sides_of
from compatkit.adapters.cutting.planning import plan, working_cut
from compatkit.adapters.cutting.proof import restored_state
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.initialization import seeded
from compatkit.contracts.contract import Blueprint
from compatkit.errors import CutError
from compatkit.training import networks


@pytest.fixture(autouse=True)
def forgotten(no_outside_influence: None) -> None:
    cache.forget()


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Split points of the cuts that were made, not cached."""
    made: list[str] = []

    def counting(whole: nn.Module, cut: str, approach: str, image: tuple[int, ...]) -> Any:
        made.append(cut)
        return sides_of(whole, cut, approach, image)

    monkeypatch.setattr(cache, "sides_of", counting)
    return made


def outputs(whole: nn.Module, parts: tuple[nn.Module, nn.Module], images: torch.Tensor) -> list[Any]:
    """Return what crosses and what comes out, in eval and in train mode, with all state afterwards."""
    result: list[Any] = []
    with restored_state(whole), torch.no_grad():
        for training in (False, True):
            for part in parts:
                part.train(training)
            torch.manual_seed(5)
            features = parts[0](images)
            logits = parts[1](features)
            result += [*([features] if isinstance(features, torch.Tensor) else features), logits]
            result += [value.clone() for part in parts for value in part.state_dict().values()]
    return result


ORDINARY = (
    "resnet18",
    "swin_tiny_patch4_window7_224",
    "crossvit_9_240",
    "test_vit",
    "twins_svt_small",
    "pit_s_224",
)
"""One family of each way to cut, and number of tensors that cross; the others are slow tests."""


@pytest.mark.parametrize(
    ("model", "side", "kwargs", "cut", "way", "tensors", "other"),
    [
        pytest.param(
            *values, id=f"{values[0]}-{values[3]}", marks=() if values[0] in ORDINARY else pytest.mark.slow
        )
        for values in (getattr(family, "values", family) for family in FAMILIES)
    ],
)
def test_a_remembered_cut_gives_bitwise_the_parts_that_were_traced(
    model, side, kwargs, cut, way, tensors, other
):
    kwargs = {**kwargs, "num_classes": 10}
    with seeded(1):
        first = create("timm", model, kwargs)
    with seeded(2):
        second = create("timm", model, kwargs)
    request = Blueprint("timm", "timm", model, kwargs, cut, "extractor", "", (side, side))
    blueprint = working_cut(first, request)[0]
    image = (3, side, side)
    fresh = sides_of(second, cut, blueprint.approach, image)
    expected = outputs(second, (fresh["extractor"](second), fresh["head"](second)), signal((2, *image)))
    cached_sides(first, blueprint)
    sides = cached_sides(second, blueprint)
    parts = sides["extractor"](second), sides["head"](second)
    output = outputs(second, parts, signal((2, *image)))
    assert len(output) == len(expected)
    assert all(torch.equal(*pair) for pair in zip(output, expected, strict=True))
    for part, side_of in zip(parts, ("extractor", "head"), strict=True):
        assert part.state_dict().keys() == fresh[side_of](second).state_dict().keys()


def test_a_part_is_rebuilt_without_another_trace(traces):
    planned = plan("resnet20_cifar", "layer2")
    _, *parts = build_pair(planned.extractor, planned.head, seed=0)
    for blueprint, part in zip((planned.extractor, planned.head), parts, strict=True):
        build(blueprint, state=part.state_dict())
    assert traces == ["layer2"]
    cache.forget()
    build(planned.extractor, seed=0)
    assert traces == ["layer2", "layer2"]


def test_another_class_count_image_size_or_split_is_another_cut(traces):
    planned = plan("resnet20_cifar", "layer2")
    for changed in (
        attrs.evolve(planned.extractor, kwargs={"num_classes": 3}),
        attrs.evolve(planned.extractor, cut="layer1"),
        attrs.evolve(planned.extractor, traced_size=(64, 64)),
    ):
        build(changed, seed=0)
    assert len(traces) == 4  # the plan's too


def test_the_oldest_cut_is_dropped(traces, monkeypatch):
    monkeypatch.setattr(cache, "MAX_CACHED", 2)
    planned = plan("resnet20_cifar", "layer2")
    for classes in (3, 4, 5, 4, 3):
        build(attrs.evolve(planned.extractor, kwargs={"num_classes": classes}), seed=0)
    assert len(traces) == 5  # the plan's too


def test_a_second_fit_of_a_network_neither_traces_nor_rebuilds_it(traces, monkeypatch):
    rebuilt: list[str] = []
    monkeypatch.setattr(
        blueprints, "_check_rebuilt", lambda owner, *arguments, **settings: rebuilt.append(owner)
    )
    task = ck.Task("a", data_set("d"), "resnet8_cifar", "layer2", size=16)
    for _ in range(2):
        quick(steps=0).fit([task])
    assert traces == ["layer2"]
    assert rebuilt == ["Task 'a': the extractor", "Task 'a': the head"]


def test_a_result_is_cached_only_where_no_network_is_a_plugins(awkward):
    own = plan("resnet20_cifar", "layer2").extractor
    foreign = plan("tiny", "first", builder=awkward, size=(16, 16)).head
    computed: list[str] = []
    for _ in range(2):
        cache.cached([own, foreign], ("both",), lambda: computed.append("both"))
        cache.cached([own, own], ("own",), lambda: computed.append("own"))
    assert computed == ["both", "own", "both"]


def test_networks_of_plugins_are_cut_each_time(traces, awkward):
    planned = plan("tiny", "first", builder=awkward, size=(16, 16))
    for _ in range(2):
        build(planned.extractor, seed=0)
    assert traces == ["first"] * 3  # the plan's too


def test_settings_that_traced_code_reads_are_part_of_what_is_remembered(traces):
    planned = plan("vit_tiny_patch16_224", "blocks.1.attn.qkv", size=(32, 32), kwargs={"depth": 2})
    build(planned.extractor, seed=0)
    traces.clear()
    whole = create("timm", "vit_tiny_patch16_224", planned.extractor.kwargs)
    cached_sides(whole, planned.extractor)
    assert traces == []
    attention: Any = whole.get_submodule("blocks.1.attn")
    attention.fused_attn = not attention.fused_attn
    cached_sides(whole, planned.extractor)
    assert traces == ["blocks.1.attn.qkv"]


def checked(blueprints: list[Blueprint], values: object = (), *, fails: bool = False) -> bool:
    """Return whether a check of networks was carried out, in a new process."""
    cache.forget()
    carried_out: list[bool] = []

    def check() -> None:
        carried_out.append(True)
        if fails:
            raise CutError("No.")

    with suppress(CutError):
        cache.check_once(blueprints, "a check", values, check)
    return bool(carried_out)


def test_a_check_is_remembered_on_the_machine_for_networks_values_and_versions(tmp_path, monkeypatch):
    own, timms = (plan(model, "layer2").extractor for model in ("resnet20_cifar", "resnet18"))
    for networks_checked in ([own], [timms], [own, timms]):
        assert [checked(networks_checked) for _ in range(3)] == [True, False, False]
    assert checked([own], [3]) and not checked([own], [3])
    assert checked([attrs.evolve(own, cut="layer1")])
    for library in (ck, torch):
        monkeypatch.setattr(library, "__version__", "0.0.1")
        assert checked([own]) and not checked([own])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another user"))
    assert checked([own])


def test_a_check_that_fails_is_carried_out_again(tmp_path):
    own = plan("resnet20_cifar", "layer2").extractor
    assert checked([own], fails=True) and checked([own], fails=True)
    assert checked([own]) and not checked([own], fails=True)


def test_networks_without_a_version_are_checked_each_time(tmp_path, awkward, monkeypatch):
    own = plan("resnet20_cifar", "layer2").extractor
    foreign = plan("tiny", "first", builder=awkward, size=(16, 16)).head

    def resnet_of_a_program(**kwargs: Any) -> nn.Module:
        return create("timm", "resnet18", kwargs)

    monkeypatch.setitem(timm.models._registry._model_entrypoints, "resnet_of_a_program", resnet_of_a_program)
    registered = attrs.evolve(own, builder="timm", model="resnet_of_a_program")
    for unversioned in ([own, foreign], [own, registered]):
        assert all(checked(unversioned) for _ in range(2))


def test_a_fit_in_another_process_does_not_check_a_network_again(tmp_path, monkeypatch):
    passes: list[str] = []

    def counting(*arguments: Any, **settings: Any) -> Any:
        passes.append("structure")
        return structural(*arguments, **settings)

    monkeypatch.setattr(networks, "structural", counting)
    structural = blueprints.structural
    for classes, expected in ((("a", "b"), 2), (("a", "b"), 2), (("a", "c"), 4)):
        cache.forget()
        data = data_set("d", classes=classes)
        quick(steps=0).fit([ck.Task("a", data, "resnet8_cifar", "layer2", size=16)])
        assert len(passes) == expected
