"""The list of installed plugins: each on its own, with what it offers or why it cannot be used."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from compatkit.plugins import Listed, listing

GOOD = """
from compatkit import hookimpl

@hookimpl
def compatkit_regularizers(register):
    register("good", Good)

class Good:
    def __init__(self, layers: list = [1], *, eps: float = float("inf")): ...
    @hookimpl
    def compatkit_losses(self): return {}
    @hookimpl
    def compatkit_after_step(self, step): ...
"""
Install = Callable[..., None]


def listed(*, check: bool = True) -> dict[str, Listed]:
    return {line.key: line for line in listing(check=check)}


@pytest.fixture
def zoo(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("good", {"regularizers.good": "zoo_good"}, {"zoo_good": GOOD})
    install("bad", {"regularizers.bad": "zoo_bad"}, {"zoo_bad": "raise OSError('no license')"})
    install("late", {"metrics.late": "zoo_late"}, {"zoo_late": "compatkit_api = '>=7'"})
    install("typo", {"regularizer.typo": "zoo_typo"}, {"zoo_typo": ""})
    install("hid", {"metrics.hidden": "zoo_hid"}, {"zoo_hid": "raise RuntimeError('imported')"})
    for who in ("one", "two"):
        install(who, {"metrics.twice": f"zoo_{who}"}, {f"zoo_{who}": "raise RuntimeError('imported')"})
    broken = GOOD.replace("compatkit_losses", "compatkit_loses").replace('"good"', '"hook"')
    install("hook", {"regularizers.hook": "zoo_hook"}, {"zoo_hook": broken})
    monkeypatch.setenv("COMPATKIT_DISABLE_PLUGINS", "hidden")


@pytest.mark.case("I")
@pytest.mark.usefixtures("zoo")
def test_each_plugin_has_its_status() -> None:
    result = listed()
    assert {key: result[key].status for key in result if result[key].distribution != "compatkit"} == {
        "metrics.hidden": "blocked",
        "metrics.late": "failed",
        "metrics.twice": "clash",
        "regularizer.typo": "failed",
        "regularizers.bad": "failed",
        "regularizers.good": "active",
        "regularizers.hook": "failed",
    }
    assert [line.distribution for line in listing() if line.name == "twice"] == ["one", "two"]


@pytest.mark.usefixtures("zoo")
def test_metadata_are_listed_and_nothing_is_imported() -> None:
    result = listed(check=False)
    assert {key: result[key].status for key in result if result[key].distribution != "compatkit"} == {
        "metrics.hidden": "blocked",
        "metrics.late": "installed",
        "metrics.twice": "clash",
        "regularizer.typo": "failed",
        "regularizers.bad": "installed",
        "regularizers.good": "installed",
        "regularizers.hook": "installed",
    }
    assert not {"zoo_good", "zoo_bad", "zoo_late", "zoo_hook"} & set(sys.modules)
    line = result["regularizers.good"]
    assert (line.module, line.distribution, line.version) == ("zoo_good", "good", "1.0")
    assert (line.source, line.hooks, line.settings, line.message) == (None, (), (), "")
    assert listed()["regularizers.good"].order == line.order


@pytest.mark.usefixtures("zoo")
def test_one_plugin_is_listed_by_its_name() -> None:
    for name in ("good", "regularizers.good"):
        (line,) = listing(name, check=True)
        assert (line.key, line.status) == ("regularizers.good", "active")
    assert "zoo_bad" not in sys.modules and listing("no-such-plugin") == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('# a comment\n\n"""Pull features\nto zero."""\nraise OSError', "Pull features"),
        ('"""\n    Return ``zero``.\n"""', "Zero."),
        ('"""Not closed', ""),
        ('x = 1\n"""no docstring"""', ""),
        ('b"""bytes"""', ""),
        ("", ""),
    ],
)
def test_what_a_plugin_does_is_read_from_its_source(install: Install, source: str, expected: str) -> None:
    install("read", {"metrics.read": "zoo_read"}, {"zoo_read": source})
    install("gone", {"metrics.gone": "zoo_gone.missing"}, {"zoo_gone": source})
    install("away", {"metrics.away": "zoo_away"}, {})
    result = listed(check=False)
    assert result["metrics.read"].summary == expected
    assert result["metrics.gone"].summary == result["metrics.away"].summary == ""


def test_what_is_read_is_what_is_imported() -> None:
    imported, read = listed(), listed(check=False)
    assert imported.keys() == read.keys()
    assert {line.status for line in imported.values()} == {"active"}
    assert {line.status for line in read.values()} == {"installed"}
    different = [key for key in imported if imported[key].summary != read[key].summary]
    # one module has several, and registers them in a loop
    modules = Counter(line.module for line in read.values())
    assert all(modules[read[key].module] > 1 for key in different), different


@pytest.mark.usefixtures("zoo")
def test_messages_say_whose_fault_it_is_and_keep_the_traceback() -> None:
    result = listed()
    assert (
        "Plugin 'regularizers.bad' of bad 1.0: importing 'zoo_bad' failed: OSError: no license"
        in result["regularizers.bad"].message
    )
    assert "zoo_bad.py" in result["regularizers.bad"].traceback
    assert "Did you mean 'regularizers'?" in result["regularizer.typo"].message
    assert "Did you mean 'compatkit_losses'?" in result["regularizers.hook"].message
    assert "COMPATKIT_DISABLE_PLUGINS=hidden" in result["metrics.hidden"].message
    assert "offered by one 1.0 and two 1.0" in result["metrics.twice"].message


@pytest.mark.usefixtures("zoo")
def test_an_active_plugin_shows_what_it_offers() -> None:
    line = listed()["regularizers.good"]
    assert line.hooks == ("compatkit_regularizers", "compatkit_losses", "compatkit_after_step")
    assert [str(setting) for setting in line.settings] == ["layers: list = [1]", "eps: float = 'inf'"]
    assert line.source is not None and line.source.endswith("zoo_good.py")
    assert (line.distribution, line.version, line.message, line.notes) == ("good", "1.0", "", ())


@pytest.mark.usefixtures("zoo")
def test_the_list_is_json_and_ordered_by_name() -> None:
    lines = json.loads(json.dumps([line.to_json() for line in listing()], allow_nan=False))
    keys = [(line["kind"], line["name"]) for line in lines]
    assert keys == sorted(keys)


@pytest.mark.case("I")
def test_a_broken_installation_is_a_line_and_no_crash(install: Install) -> None:
    site = install("nameless", {"metrics.nameless": "zoo_nameless"}, {"zoo_nameless": ""})
    next(site.glob("*.dist-info/METADATA")).write_text("")  # type: ignore[attr-defined]
    assert listed()["metrics.nameless"].status == "failed"


def test_moving_a_random_state_is_noted(install: Install) -> None:
    install(
        "moved", {"regularizers.good": "zoo_moved"}, {"zoo_moved": "import random\nrandom.seed(3)\n" + GOOD}
    )
    assert "changed Python's random state; it was restored" in listed()["regularizers.good"].notes[0]


def test_plugins_of_one_module_are_described_one_by_one() -> None:
    for check in (True, False):
        rungs = {line.name: line.summary for line in listing(check=check) if line.kind == "rungs"}
        assert len(set(rungs.values())) == len(rungs)
        assert rungs["permutation"] == "The head after a permutation of the channels."
    assert listed()["metrics.cka"].summary.startswith("Linear CKA of all layers")
