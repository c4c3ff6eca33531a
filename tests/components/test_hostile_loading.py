"""Components that cannot be built here: wrong weights, absent networks, plugins, devices; and never a download."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import timm
import torch
from torch import Tensor

import compatkit as ck
from compatkit.components.drafts import Draft
from compatkit.components.splitting import split
from compatkit.contracts.contract import Blueprint
from compatkit.contracts.manifest import Manifest
from compatkit.errors import CompatkitError, FormatError, IntegrityError, UnknownName, UsageError
from compatkit.training.precision import Precision

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def part() -> Draft:
    return split("resnet8_cifar", "layer2", kwargs={"num_classes": 3}, size=(16, 16), labels=("a", "b", "c"))[
        "extractor"
    ]


@pytest.fixture
def registry(tmp_path: Path) -> ck.Registry:
    return ck.Registry.init(tmp_path / "parts")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every attempt to reach another machine fail the test."""

    def refuse(*_: Any, **__: Any) -> Any:
        pytest.fail("the network was asked")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def publish_unchecked(
    registry: ck.Registry, part: Draft, state: Mapping[str, Tensor], **blueprint: Any
) -> str:
    """Publish a component as a stranger would: its weights and blueprint are not held against each other."""
    payload = registry.store.put_state(state, parameters=part.parameters)
    changed: Blueprint = attrs.evolve(part.blueprint, **blueprint)
    manifest = Manifest(kind="extractor", blueprint=changed, payload=payload, contract=part.contract)
    registry.store.publish("theirs", manifest)
    return "theirs"


@pytest.mark.case("G")
@pytest.mark.usefixtures("no_network")
def test_building_a_component_asks_no_network(registry: ck.Registry, part: Draft) -> None:
    registry.load(publish_unchecked(registry, part, part.module.state_dict()))


TIMM = {"builder": "timm", "library": f"timm {timm.__version__}"}


@pytest.mark.case("G")
@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    "blueprint",
    [
        {"kwargs": {"num_classes": 3, "pretrained": True}},
        {"kwargs": {"num_classes": 3, "pretrained_cfg": {"url": "https://example.org/x.safetensors"}}},
        {"kwargs": {"num_classes": 3, "checkpoint_path": "https://example.org/x.safetensors"}},
        {"kwargs": {"num_classes": 3, "pretrained_cfg_overlay": {"hf_hub_id": "a/b"}}},
        {**TIMM, "model": "hf-hub:timm/resnet18.a1_in1k"},
        {"model": "https://example.org/model"},
        {"model": "local-dir:/tmp"},
        {**TIMM, "model": "resnet18.a1_in1k", "kwargs": {"num_classes": 3}, "cut": "layer9"},
    ],
    ids=str,
)
def test_no_blueprint_brings_about_a_download(
    registry: ck.Registry, part: Draft, blueprint: dict[str, Any]
) -> None:
    with pytest.raises(CompatkitError):
        registry.load(publish_unchecked(registry, part, part.module.state_dict(), **blueprint))


def without(state: State) -> State:
    return dict(list(state.items())[1:])


def with_another(state: State) -> State:
    return {**state, "extra.weight": torch.zeros(2)}


def renamed(state: State) -> State:
    return {f"module.{name}": value for name, value in state.items()}


def of_another_shape(state: State) -> State:
    name, first = next(iter(state.items()))
    return {**state, name: torch.zeros(2, *first.shape)}


def buffers_only(state: State) -> State:
    return {name: value for name, value in state.items() if "running" in name or "num_batches" in name}


def in_bf16(state: State) -> State:
    return {
        name: value.to(torch.bfloat16) if value.is_floating_point() else value
        for name, value in state.items()
    }


@pytest.mark.case("G")
@pytest.mark.parametrize(
    "change",
    [without, with_another, renamed, of_another_shape, buffers_only, in_bf16],
    ids=lambda item: item.__name__,
)
def test_weights_that_are_not_exactly_those_of_the_network_are_refused(
    registry: ck.Registry, part: Draft, change: Callable[[State], State]
) -> None:
    state = change(dict(part.module.state_dict()))
    with pytest.raises(IntegrityError, match=r"theirs@1\.0\.0") as caught:
        registry.load(publish_unchecked(registry, part, state))
    assert caught.value.exit_code == 3


@pytest.mark.case("G", "A11")
def test_meta_tensors_hold_nothing_that_could_be_kept(registry: ck.Registry, part: Draft) -> None:
    empty = {name: value.to("meta") for name, value in part.module.state_dict().items()}
    with pytest.raises(FormatError, match="expected a dense tensor with data"):
        registry.store.put_state(empty, parameters=0)


@pytest.mark.case("G")
def test_a_renamed_architecture_gets_a_suggestion(registry: ck.Registry, part: Draft) -> None:
    with pytest.raises(UnknownName, match="did you mean resnet8_cifar"):
        registry.load(publish_unchecked(registry, part, part.module.state_dict(), model="resnet8_cifra"))


@pytest.mark.case("G", "I")
def test_a_component_of_a_plugin_that_is_not_installed_names_it(registry: ck.Registry, part: Draft) -> None:
    with pytest.raises(UnknownName, match=r"Install the package with the key 'builders\.theirs'"):
        registry.load(publish_unchecked(registry, part, part.module.state_dict(), builder="theirs"))


@pytest.mark.case("G")
@pytest.mark.parametrize("device", ["cuda:99", "gpu", "meta", "", "cpu:0:0", "vulkan"])
def test_a_device_that_cannot_compute_is_refused(device: str) -> None:
    with pytest.raises(UsageError, match="cannot be used here"):
        Precision.choose(device, "float32", None)


@pytest.mark.case("G")
def test_without_bf16_in_hardware_auto_takes_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compatkit.training.precision.has_fast_bf16", lambda: False)
    assert Precision.choose("cpu", "auto", None).dtype == "float32"
    assert Precision.choose("cpu", "bf16", None).dtype == "bf16"  # who asks for it gets it, slowly


@pytest.mark.case("G")
def test_a_part_that_is_not_what_its_contract_says_is_still_blamed_itself(
    registry: ck.Registry, part: Draft
) -> None:
    state = {
        key: value * 2 if value.is_floating_point() else value
        for key, value in part.module.state_dict().items()
    }
    with pytest.raises(IntegrityError, match="gives other outputs"), warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.load(publish_unchecked(registry, part, state))
