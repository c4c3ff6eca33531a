"""Builders that plugins bring: imported when named, checked in what they give, recorded with their version."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from small import data_set

import compatkit as ck
from compatkit.adapters.blueprints import build, build_pair
from compatkit.adapters.builders import BUILDERS, create, library_note
from compatkit.adapters.cutting.planning import plan
from compatkit.errors import EnvironmentFailure, PluginError, UnknownName, UsageError
from compatkit.plugins import PluginWarning, listing
from compatkit.training.testing import assert_builder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how_to" / "plugins" / "builders.md"
Install = Callable[..., None]
Write = Callable[[str], None]

HEAD = """
import random
import torch
from torch import nn
from compatkit import hookimpl

@hookimpl
def compatkit_builders(register):
    register("mynets", build)

def network(classes=4):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))

"""
GOOD = """
def build(model, *, num_classes=4):
    made = network(num_classes)
    made.pretrained_cfg = {"input_size": (3, 8, 8), "mean": [0.1, 0.2, 0.3], "classifier": "4"}
    return made

build.names = ("small", "wide")
"""


@pytest.fixture
def plugin(install: Install) -> Write:
    """Return ``plugin(source)``: the source is the builder ``mynets`` of the distribution ``demo`` 1.0."""

    def write(source: str) -> None:
        install("demo", {"builders.mynets": "demo_nets"}, {"demo_nets": HEAD + source})

    return write


def refused(**kwargs: Any) -> str:
    with pytest.raises(PluginError) as caught:
        create("mynets", "small", kwargs)
    assert (caught.value.plugin, caught.value.distribution) == ("builders.mynets", "demo")
    assert str(caught.value).startswith("Plugin 'builders.mynets' of demo 1.0: ")
    return str(caught.value)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("", "demo_nets.build('small', num_classes=5)"),
        ("build.expression = lambda model, kwargs: f'lab.{model}()'", "lab.small()"),
        ("build = (lambda made: lambda model, **kwargs: made(model, **kwargs))(build)", None),
    ],
    ids=["of the factory", "stated", "of no importable factory"],
)
def test_code_that_builds_a_network(plugin: Write, more: str, code: str | None) -> None:
    plugin(f"{GOOD}{more}\n")
    assert BUILDERS["mynets"].expression("small", {"num_classes": 5}) == code


def test_code_that_cannot_be_stated_is_the_plugins_fault(plugin: Write) -> None:
    plugin(GOOD + "build.expression = lambda model, kwargs: 1 / 0\n")
    with pytest.raises(PluginError):
        BUILDERS["mynets"].expression("small", {})


def test_a_network_is_planned_and_cut_like_any_other(plugin: Write) -> None:
    plugin(GOOD)
    planned = plan("small", "1", kwargs={"num_classes": 5}, builder="mynets")
    result = planned.extractor
    assert (result.builder, result.library, result.model) == ("mynets", "demo 1.0", "small")
    assert (planned.class_layer, planned.input.size, planned.input.mean) == (("4.",), (8, 8), (0.1, 0.2, 0.3))
    whole, extractor, head = build_pair(planned.extractor, planned.head, seed=0)
    images = torch.ones(2, 3, 8, 8)
    assert torch.equal(head.eval()(extractor.eval()(images)), whole.eval()(images))
    again = build(planned.head, state=head.state_dict())
    assert torch.equal(again.eval()(extractor(images)), head(extractor(images)))


def test_a_plugin_is_imported_only_when_it_is_named(plugin: Write) -> None:
    plugin(GOOD)
    create("timm", "resnet8_cifar", {})
    assert "demo_nets" not in sys.modules
    create("mynets", "small", {})
    assert "demo_nets" in sys.modules


def test_models_that_are_not_listed_are_refused_before_the_factory_sees_them(plugin: Write) -> None:
    plugin(GOOD)
    with pytest.raises(UnknownName, match="No model is called 'smal'; did you mean small"):
        create("mynets", "smal", {})
    for path in ("/etc/passwd", "../small", "hf-hub:small"):
        with pytest.raises(UnknownName, match="No model is called"):
            create("mynets", path, {})
    with pytest.raises(UnknownName) as caught:
        ck.Task("a", data_set("a"), "smal", "0", builder="mynets")
    assert caught.value.subject == "smal" and "small" in str(caught.value)


def test_a_factory_without_names_is_asked(plugin: Write) -> None:
    plugin("def build(model): return {'only': network}[model]()")
    assert create("mynets", "only", {}) is not None
    assert "building 'small' with no arguments failed: KeyError: 'small'" in refused()


def test_another_version_is_said_and_a_stated_one_counts(plugin: Write) -> None:
    plugin(GOOD + "build.version = '7'\n")
    planned = plan("small", "1", kwargs={}, builder="mynets").extractor
    assert planned.library == "demo 7"
    assert library_note(planned) is None
    note = library_note(attrs.evolve(planned, library="demo 6"))
    assert note == ("small was built by demo 6 and is built by demo 7 here; the network may differ.")


@pytest.mark.case("I")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def build(model): raise ValueError('too wide')",
            "building 'small' with no arguments failed: ValueError",
        ),
        ("def build(model): raise SystemExit(3)", "failed: SystemExit: 3"),
        ("def build(model): return 'small'", "returned a str, not a torch.nn.Module"),
        ("def build(model): return None", "returned a NoneType, not a torch.nn.Module"),
        ("def build(model): return nn.ReLU", "returned the class 'ReLU', not a torch.nn.Module"),
        ("def build(*, model): return network()", "its factory takes no model"),
        ("def build(): return network()", "its factory takes no model"),
        (GOOD + "build.names = 'small'", "names of its factory is a list of model names; got 'small'"),
        (GOOD + "build.names = [1]", r"names of its factory is a list of model names; got \[1\]"),
        (GOOD + "build.version = 'one two'", "version of its factory is a text such as '1.2'; got 'one two'"),
    ],
)
def test_a_broken_factory_is_named_with_plugin_and_distribution(
    plugin: Write, source: str, message: str
) -> None:
    plugin(source)
    if "version" in source:
        with pytest.raises(PluginError, match=message):
            plan("small", "1", kwargs={}, builder="mynets")
    else:
        assert re.search(message, refused())


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ("[1]", "is a list, not a mapping"),
        ("{'input_size': (8, 8)}", "['input_size'] of 'small' is three whole numbers above 0"),
        ("{'input_size': (3, 0, 8)}", "['input_size'] of 'small' is three whole numbers above 0"),
        ("{'mean': 0.5}", "['mean'] of 'small' is one number a channel; got 0.5"),
        ("{'interpolation': 3}", "['interpolation'] of 'small' is a text"),
        ("{'fixed_input_size': 'no'}", "['fixed_input_size'] of 'small' is True or False"),
        ("{'crop_pct': True}", "['crop_pct'] of 'small' is a number"),
        ("{'classifier': 'fc'}", "names 'fc', which is no module"),
        ("{'classifier': ['4', 'head']}", "names 'head', which is no module"),
    ],
)
def test_a_configuration_that_would_fail_later_is_refused(plugin: Write, stated: str, message: str) -> None:
    plugin(f"def build(model):\n    made = network()\n    made.pretrained_cfg = {stated}\n    return made\n")
    assert message in refused()


def test_arguments_that_the_factory_does_not_have_are_refused_with_those_it_has(plugin: Write) -> None:
    plugin(GOOD)
    result = refused(num_clases=3)
    assert "no setting 'num_clases'. Did you mean 'num_classes'? The settings are: num_classes = 4." in result
    assert "no setting 'model'" in refused(model="wide")


def test_flags_and_numbers_are_of_the_annotated_type(plugin: Write) -> None:
    head = "def build(model, *, flag: bool = False, count: int = 1, share: float | None = None, other: 'X' = 0):\n"
    plugin(f"{head}    return network()\n")
    assert "the setting 'flag' is True or False; got 'no'" in refused(flag="no")
    assert "the setting 'flag' is True or False; got 1" in refused(flag=1)
    assert "the setting 'count' is a whole number; got 2.0" in refused(count=2.0)
    assert "the setting 'count' is a whole number; got True" in refused(count=True)
    assert "the setting 'share' is a number or None; got 'a'" in refused(share="a")
    for good in ({"flag": True}, {"count": 3}, {"share": 1}, {"share": None}, {"share": 0.5}, {"other": "b"}):
        create("mynets", "small", good)


def test_there_are_no_pretrained_weights(plugin: Write) -> None:
    plugin(GOOD)
    with pytest.raises(
        UsageError, match=r"Plugin 'builders\.mynets' of demo 1\.0.* has no pretrained weights for 'small'"
    ):
        create("mynets", "small", {}, pretrained=True)
    with pytest.raises(UsageError, match="checkpoint_path cannot be part of a blueprint"):
        create("mynets", "small", {"checkpoint_path": "weights.pt"})


def test_other_failures_keep_what_they_are(plugin: Write) -> None:
    plugin(
        "from compatkit.errors import EnvironmentFailure\n"
        "def build(model): raise EnvironmentFailure('the disk is full')"
    )
    with pytest.raises(EnvironmentFailure, match="the disk is full") as caught:
        create("mynets", "small", {})
    assert str(caught.value).endswith("Raised by Plugin 'builders.mynets' of demo 1.0, building 'small'.")


@pytest.mark.case("I")
def test_a_blocked_builder_and_two_of_one_name_are_errors(
    plugin: Write, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(GOOD)
    monkeypatch.setenv("COMPATKIT_DISABLE_PLUGINS", "demo")
    assert "it is blocked by COMPATKIT_DISABLE_PLUGINS=demo" in refused()
    monkeypatch.delenv("COMPATKIT_DISABLE_PLUGINS")
    install("other", {"builders.mynets": "other_nets"}, {"other_nets": "raise RuntimeError('imported')"})
    with pytest.raises(PluginError, match=r"offered by demo 1\.0 and other 1\.0"):
        create("mynets", "small", {})


def test_what_a_factory_changes_is_put_back_but_for_the_draws_of_its_weights(plugin: Write) -> None:
    plugin(
        "def build(model):\n    random.seed(3)\n    torch.set_default_dtype(torch.float64)\n    return network()\n"
    )
    state = random.getstate(), torch.get_rng_state()
    with pytest.warns(
        PluginWarning, match=r"building 'small' changed Python's random state, torch's default dtype"
    ):
        create("mynets", "small", {})
    assert (random.getstate(), torch.get_default_dtype()) == (state[0], torch.float32)
    assert not torch.equal(torch.get_rng_state(), state[1])


def test_the_list_of_plugins_shows_models_and_settings(plugin: Write, install: Install) -> None:
    plugin(GOOD)
    install("taken", {"builders.timm": "demo_taken"}, {"demo_taken": HEAD.replace("mynets", "timm") + GOOD})
    result = {f"{line.kind}.{line.name}": line for line in listing(check=True)}
    line = result["builders.mynets"]
    assert (line.status, line.hooks, line.models) == ("active", ("compatkit_builders",), ("small", "wide"))
    assert [str(setting) for setting in line.settings] == ["num_classes = 4"]
    assert result["builders.timm"].status == "failed"
    assert "'timm' is built in. Choose another name" in result["builders.timm"].message


def test_the_builder_of_the_documentation_works_and_conforms(install: Install) -> None:
    text = PAGE.read_text()
    (source,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    key, module = re.findall(r'^"(.+)" = "(.+)"$', text, re.MULTILINE)[0]
    install("documented", {key: "documented_nets"}, {"documented_nets": source})
    assert module == "my_package.networks"
    planned = plan("small", "act", kwargs={"num_classes": 5}, builder="mynets")
    assert (planned.extractor.library, planned.class_layer) == ("documented 1.0", ("fc.",))
    assert_builder(sys.modules["documented_nets"].build, "small", num_classes=5)
    assert_builder(sys.modules["documented_nets"].build, "wide", in_chans=1)
