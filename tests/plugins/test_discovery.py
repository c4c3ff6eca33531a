"""Finding one plugin: only what is named is imported, and each way to be broken has its message."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from compatkit.errors import PluginError, UnknownName
from compatkit.plugins import PluginWarning, find, names

GOOD = """
@hookimpl
def compatkit_regularizers(register):
    register("mine", Mine)

class Mine:
    def __init__(self, strength: float = 1.0): self.strength = strength
    @hookimpl
    def compatkit_losses(self, step): return {}
"""
Write = Callable[[str], None]


def refused(name: str = "mine") -> str:
    with pytest.raises(PluginError) as caught:
        find("regularizers", name)
    assert caught.value.plugin == f"regularizers.{name}"
    return str(caught.value)


def test_finds_what_is_installed_with_whose_it_is(module: Write) -> None:
    module(GOOD)
    offer = find("regularizers", "mine")
    assert (offer.key, offer.distribution, offer.version) == ("regularizers.mine", "demo", "1.0")
    assert offer.source is not None and offer.source.endswith("demo_mine.py")
    assert [str(setting) for setting in offer.settings] == ["strength: float = 1.0"]
    assert offer.make({"strength": 2.0}).strength == 2.0
    assert find("regularizers", "regularizers.mine").name == "mine"


@pytest.mark.parametrize(
    ("kind", "hook"),
    [
        ("regularizers", "compatkit_regularizers"),
        ("metrics", "compatkit_metrics"),
        ("builders", "compatkit_builders"),
        ("data_sets", "compatkit_data_sets"),
        ("loaders", "compatkit_loaders"),
        ("loggers", "compatkit_loggers"),
        ("studies", "compatkit_studies"),
        ("launchers", "compatkit_launchers"),
    ],
)
def test_every_kind_has_its_hook(install: Callable[..., None], kind: str, hook: str) -> None:
    source = f"from compatkit import hookimpl\n@hookimpl\ndef {hook}(register): register('mine', dict)\n"
    source = source.replace("dict", "lambda model='x', root=None: (model, root)")
    install("demo", {f"{kind}.mine": "demo_mine"}, {"demo_mine": source})
    assert find(kind, "mine").make({"root": "here"}) == ("x", "here")


def test_module_without_the_hook_of_its_kind(install: Callable[..., None], module: Write) -> None:
    module(GOOD)
    install("other", {"metrics.mine": "demo_mine"}, {})
    with pytest.raises(PluginError, match="compatkit_metrics registers nothing, not 'mine'"):
        find("metrics", "mine")


def test_imports_only_the_plugin_that_is_named(install: Callable[..., None], module: Write) -> None:
    install("other", {"regularizers.other": "other_one"}, {"other_one": "raise RuntimeError('imported')"})
    module(GOOD)
    find("regularizers", "mine")
    assert "other" in names("regularizers")
    assert "other_one" not in sys.modules


@pytest.mark.case("I")
def test_unknown_name_suggests_and_lists(install: Callable[..., None], module: Write) -> None:
    module(GOOD)
    install("other", {"metrics.sharpness": "other_one"}, {"other_one": ""})
    with pytest.raises(
        UnknownName, match=r"no plugin regularizers\.mnie\. Did you mean 'mine'\? Installed.*mine"
    ):
        find("regularizers", "mnie")
    with pytest.raises(UnknownName, match=r"There is metrics\.sharpness"):
        find("regularizers", "sharpness")
    with pytest.raises(UnknownName, match=r"no kind of plugin 'regularisers'\. Did you mean 'regularizers'"):
        find("regularisers", "mine")


@pytest.mark.case("I")
def test_two_distributions_with_one_key(install: Callable[..., None]) -> None:
    for who in ("first", "second"):
        install(who, {"regularizers.mine": f"{who}_one"}, {f"{who}_one": "raise RuntimeError('imported')"})
    assert "offered by first 1.0 and second 1.0" in refused()


@pytest.mark.case("I")
@pytest.mark.parametrize("variable", ["COMPATKIT_PLUGINS", "COMPATKIT_DISABLE_PLUGINS"])
@pytest.mark.parametrize(
    "value", ["mine", "regularizers.mine", "demo", "x, Demo", "*", "regularizers.*", "x, mi?e", "de*"]
)
def test_blocked_by_the_environment(
    module: Write, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    module(GOOD)
    monkeypatch.setenv(variable, value)
    if variable == "COMPATKIT_PLUGINS":
        assert find("regularizers", "mine").name == "mine"
        monkeypatch.setenv(variable, "")
    assert f"blocked by {variable}" in refused()
    assert "demo_mine" not in sys.modules or variable == "COMPATKIT_PLUGINS"


@pytest.mark.case("I")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise ValueError('no such thing')", "ValueError: no such thing"),
        ("raise OSError(13, 'locked')", "PermissionError|OSError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
        ("import not_there_at_all", "ModuleNotFoundError"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_import_that_fails_names_plugin_and_distribution(module: Write, source: str, message: str) -> None:
    module(source)
    with pytest.raises(PluginError, match=message) as caught:
        find("regularizers", "mine")
    assert "Plugin 'regularizers.mine' of demo 1.0: importing 'demo_mine' failed" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_interrupting_an_import_is_no_failure_of_the_plugin(module: Write) -> None:
    module("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        find("regularizers", "mine")


@pytest.mark.case("I")
def test_import_that_moves_global_state_is_put_back(module: Write) -> None:
    module(
        """
        import random, numpy, torch
        random.seed(1); numpy.random.seed(1); torch.manual_seed(1); torch.set_default_dtype(torch.float64)
        """
        + "\n"
        + "\n".join("        " + line for line in GOOD.splitlines())
    )
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    with pytest.warns(
        PluginWarning, match="Python's random state, numpy's.*torch's random state, torch's default dtype"
    ):
        find("regularizers", "mine")
    assert random.getstate() == before[0]
    assert (np.random.get_state()[1] == before[1]).all()
    assert torch.equal(torch.get_rng_state(), before[2])
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.case("I")
def test_hooks_of_another_version(module: Write) -> None:
    module("compatkit_api = 2\n" + GOOD)
    assert "needs version 2 of the hooks; this compatkit has version 1" in refused()


@pytest.mark.parametrize("stated", ["1", "'>=1,<3'"])
def test_hooks_of_this_version(module: Write, stated: str) -> None:
    module(f"compatkit_api = {stated}\n" + GOOD)
    assert find("regularizers", "mine").name == "mine"


@pytest.mark.parametrize("stated", ["True", "None", "'one'"])
def test_version_that_is_none(module: Write, stated: str) -> None:
    module(f"compatkit_api = {stated}\n" + GOOD)
    assert "write compatkit_api = 1" in refused()


HOOK = "@hookimpl\ndef compatkit_regularizers(register):\n    "


@pytest.mark.case("I")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", "it implements no hook"),
        (
            "@hookimpl\ndef compatkit_regularisers(register): ...",
            "no hook 'compatkit_regularisers'. Did you mean 'compatkit_regularizers'",
        ),
        ("def compatkit_regularizers(register): ...", "without a marker, so it would never be called"),
        ("@hookimpl\ndef compatkit_losses(step): ...", "is a training hook. Make it a method of the object"),
        (
            "@hookimpl\ndef compatkit_regularizers(registry): ...",
            "has no argument 'registry'. Did you mean 'register'",
        ),
        (HOOK + "register('other', dict)", "registers other, not 'mine'"),
        (HOOK + "pass", "registers nothing, not 'mine'"),
        (HOOK + "return {'mine': dict}", "returned a dict, which is ignored"),
        (HOOK + "register('mine', 3)", "registers 3 as 'mine', which is not callable"),
        (HOOK + "register('Mine!', dict)", "registers the name 'Mine!'"),
        (HOOK + "register('mine', dict); register('mine', dict)", "registers 'mine' twice"),
        (HOOK + "1 / 0", "compatkit_regularizers failed: ZeroDivisionError"),
        (
            HOOK + "register('mine', lambda weight=1: 0)",
            "has a setting 'weight', which is reserved",
        ),
    ],
)
def test_module_that_is_not_written_as_the_hooks_ask(module: Write, source: str, message: str) -> None:
    module(source)
    text = refused()
    assert message in text and "of demo 1.0" in text


@pytest.mark.case("I")
def test_entry_point_that_names_a_class(install: Callable[..., None]) -> None:
    install("demo", {"regularizers.mine": "demo_mine:Mine"}, {"demo_mine": "class Mine: ..."})
    assert "is the class 'Mine', not an instance" in refused()


def test_factory_without_a_signature(module: Write) -> None:
    module(HOOK + "register('mine', type)")
    assert "the arguments of its factory <class 'type'> cannot be read" in refused()


def test_entry_point_that_names_nothing(install: Callable[..., None]) -> None:
    install("demo", {"regularizers.mine": "demo_mine:absent"}, {"demo_mine": ""})
    assert "AttributeError" in refused()


def test_settings_are_checked_before_the_factory_is_called(module: Write) -> None:
    module(GOOD.replace("self.strength = strength", "self.strength = 1 / strength"))
    offer = find("regularizers", "mine")
    with pytest.raises(
        PluginError, match=r"no setting 'strenght'\. Did you mean 'strength'\? The settings are: strength"
    ):
        offer.make({"strenght": 1})
    with pytest.raises(PluginError, match=r"failed with strength=0: ZeroDivisionError") as caught:
        offer.make({"strength": 0})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_setting_without_default_is_needed(module: Write) -> None:
    module(GOOD.replace(": float = 1.0", ""))
    with pytest.raises(PluginError, match="setting 'strength' is needed"):
        find("regularizers", "mine").make({})


def test_factory_that_moves_random_states_is_told(module: Write) -> None:
    module("import torch\n" + GOOD.replace("self.strength = strength", "self.layer = torch.nn.Linear(2, 2)"))
    before = torch.get_rng_state()
    with pytest.warns(PluginWarning, match=r"its factory changed torch's random state.*compatkit_set_up"):
        find("regularizers", "mine").make({})
    assert torch.equal(torch.get_rng_state(), before)
