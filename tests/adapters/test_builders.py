"""The table of builders: a name and arguments from a file are looked up, and reach neither network, disk nor code."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

import attrs
import pytest
import timm
import timm.models
import torch
import torchvision.models
from torch import nn

from compatkit.adapters import timm as timm_adapter
from compatkit.adapters.builders import (
    BUILDERS,
    MAX_BYTES,
    WEIGHTS,
    Builder,
    check_model,
    create,
    json_kwargs,
    library_note,
)
from compatkit.adapters.cutting.planning import plan
from compatkit.errors import UnknownName, UsageError

BARRED = {"timm": timm_adapter.BARRED | WEIGHTS, "torchvision": WEIGHTS}
SMALL = {"timm": "test_resnet", "torchvision": "resnet18"}


@pytest.mark.case("G")
@pytest.mark.parametrize("builder", ["timm", "torchvision"])
@pytest.mark.parametrize(
    "model",
    [
        "hf-hub:timm/resnet18.a1_in1k",
        "hf_hub:timm/resnet18",
        "HF-HUB:timm/resnet18",
        "local-dir:/etc",
        "local:weights",
        "file:///etc/passwd",
        "timm/resnet18",
        "./resnet18",
        "../resnet18",
        "..\\resnet18",
        "C:\\models\\resnet18",
        "resnet18\n",
        "resnet18\x00",
        "",
        "-resnet18",
        "__import__('os')",
        "r" * 200,
    ],
)
def test_a_name_with_a_source_or_a_path_is_no_backbone(builder: str, model: str) -> None:
    with pytest.raises(UnknownName, match="No model is called"):
        create(builder, model, {})


def test_no_model_of_the_libraries_has_a_name_that_is_refused() -> None:
    assert all(BUILDERS["timm"].knows(name) for name in BUILDERS["timm"].names())  # type: ignore[misc]
    for name in BUILDERS["torchvision"].names():  # type: ignore[misc]
        check_model("torchvision", name)
    tagged = timm.list_models("resnet18*", include_tags=True)
    assert all(create("timm", name, {}) is not None for name in tagged[:2])


REFUSED = [(builder, name) for builder, names in BARRED.items() for name in sorted(names)]


@pytest.mark.case("G")
@pytest.mark.parametrize(("builder", "name"), REFUSED)
@pytest.mark.parametrize(
    "value", [True, "/etc/passwd", {"url": "https://example.org", "file": "/etc/passwd"}]
)
def test_arguments_that_fetch_read_or_choose_code_are_refused(
    builder: str, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def called(*_: Any, **__: Any) -> nn.Module:
        raise AssertionError("the library must not see it")

    monkeypatch.setitem(BUILDERS, builder, attrs.evolve(BUILDERS[builder], create=called))
    with pytest.raises(UsageError, match=f"{name} cannot be part of a blueprint"):
        create(builder, SMALL[builder], {name: value})


def test_everything_that_timm_takes_besides_a_description_is_barred() -> None:
    """A keyword that a later timm adds beside the network's own fails here until somebody has looked at it."""
    own = (timm.create_model, timm.models.build_model_with_cfg)
    taken = {name for function in own for name in inspect.signature(function).parameters}
    assert taken - {"kwargs"} <= BARRED["timm"]


def test_everything_that_torchvision_takes_besides_a_description_is_barred() -> None:
    taken: set[str] = set()
    for name in BUILDERS["torchvision"].names():
        taken |= set(inspect.signature(torchvision.models.get_model_builder(name)).parameters)
    assert taken - {"kwargs"} <= BARRED["torchvision"]


@pytest.mark.case("G")
@pytest.mark.parametrize(
    "kwargs",
    [
        {"act_layer": "os.system"},
        {"norm_layer": "torch.nn.BatchNorm2d"},
        {"block": "builtins.exec"},
        {"block_fn": "__import__('os').system('true')"},
        {"aa_layer": "antialiasing.Of.mine"},
    ],
)
def test_a_text_is_looked_up_in_tables_or_refused_and_never_evaluated(
    kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = set(sys.modules)
    monkeypatch.setattr(os, "system", lambda _: pytest.fail("a text was executed"))
    with pytest.raises(UsageError, match="timm does not build 'resnet18'"):
        create("timm", "resnet18", kwargs)
    assert {name for name in set(sys.modules) - loaded if not name.startswith(("timm", "torch"))} == set()


def test_layers_by_timms_own_names_are_fine() -> None:
    network = create("timm", "resnet18", {"act_layer": "silu", "norm_layer": "groupnorm"})
    kinds = {type(module).__name__ for module in network.modules()}
    assert "SiLU" in kinds and "GroupNorm" in kinds and "BatchNorm2d" not in kinds


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"width": {1, 2}}, "must be JSON values: value.width: expected a JSON value"),
        ({"width": {1: 2}}, "keys must be strings"),
        ({"width": float("inf")}, "only finite numbers"),
        ({"width": torch.nn.ReLU}, "must be JSON values"),
        ({"width": "\ud800"}, "a lone surrogate"),
        ({"width": 10**5000}, "must be JSON values"),
        ({"width": "x" * MAX_BYTES}, "at most 65536 bytes"),
    ],
)
def test_arguments_are_json_values_of_a_sensible_size(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        json_kwargs("resnet18", kwargs)


def test_arguments_are_not_nested_without_end() -> None:
    deep: list[Any] = []
    for _ in range(20):
        deep = [deep]
    with pytest.raises(UsageError, match="nested deeper than 16 levels"):
        json_kwargs("resnet18", {"width": deep})
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(UsageError, match="nested deeper than 100 levels"):
        json_kwargs("resnet18", {"width": circle})


def test_tuples_become_lists() -> None:
    assert json_kwargs("x", {"sizes": (1, 2), "deep": {"a": (3,)}}) == {"sizes": [1, 2], "deep": {"a": [3]}}


@pytest.mark.case("G")
@pytest.mark.parametrize(
    ("builder", "model", "message"),
    [
        ("timm", "resnet20_cifer", "did you mean resnet20_cifar"),
        ("timm", "resnet8", "did you mean resnet8_cifar or "),
        ("timm", "resnet81.a1_in1k", "did you mean resnet18"),
        ("torchvision", "mobilenet_v3_smal", "did you mean mobilenet_v3_small"),
        ("timm", "nothing_like_it_at_all", "look it up among the models of timm"),
        (
            "timm",
            "convnext_tiny_in22ft1k",
            r"no longer has a model 'convnext_tiny_in22ft1k'; it is 'convnext_tiny\.",
        ),
    ],
)
def test_a_near_miss_is_answered_with_a_suggestion(builder: str, model: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        create(builder, model, {})


def test_building_a_known_model_lists_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(*_: Any, **__: Any) -> list[str]:
        raise AssertionError("the list of all models was made")

    monkeypatch.setattr(timm_adapter, "list_models", listed)
    monkeypatch.setitem(BUILDERS, "timm", attrs.evolve(BUILDERS["timm"], names=listed))
    create("timm", "test_resnet", {})
    create("timm", "resnet18.a1_in1k", {})


def test_one_library_is_built_without_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    table = type(BUILDERS)()
    monkeypatch.delitem(sys.modules, "compatkit.adapters.timm")
    monkeypatch.delattr(sys.modules["compatkit.adapters"], "timm")
    assert table["torchvision"].library().startswith("torchvision ")
    assert "compatkit.adapters.timm" not in sys.modules


def test_builders_put_into_the_table_are_used_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        BUILDERS, "mine", Builder(lambda model, classes=2: nn.Linear(1, classes), lambda: "mine 1")
    )
    assert create("mine", "any", {"classes": 3}).weight.shape == (3, 1)  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="Builder 'odd' returned a str for 'any', not a module"):
        monkeypatch.setitem(BUILDERS, "odd", Builder(lambda model: "no", lambda: "odd 1"))  # type: ignore[arg-type]
        create("odd", "any", {})


@pytest.mark.case("G")
def test_a_missing_builder_says_which_plugin_key_is_missing() -> None:
    with pytest.raises(UnknownName, match=r"'mynets'; known are .*timm, torchvision.*'builders\.mynets'"):
        create("mynets", "any", {})


@pytest.mark.case("G")
def test_another_version_of_the_library_is_said() -> None:
    planned = plan("test_resnet", "layer1", kwargs={})
    assert library_note(planned.extractor) is None
    older = attrs.evolve(planned.extractor, library="timm 1.0.20")
    note = library_note(older)
    assert note is not None
    assert "test_resnet was built by timm 1.0.20" in note and f"timm {timm.__version__}" in note
