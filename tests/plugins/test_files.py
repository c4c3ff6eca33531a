"""Plugins of single files: what they register counts; what cannot be used is refused with its file named."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from distributions import Install
from small import data_set, quick

import compatkit as ck
from compatkit.adapters.builders import LibraryWarning
from compatkit.errors import PluginError, UnknownName
from compatkit.plugins import PluginWarning, add_file, find, listing, names
from compatkit.plugins.files import FILES

HEAD = "from compatkit import hookimpl\ncompatkit_api = 1\n"
PULL = """
@hookimpl
def compatkit_regularizers(register):
    register("pull", Pull)

class Pull:
    def __init__(self, target: float = 0.0):
        self.target = target

    @hookimpl
    def compatkit_losses(self, step):
        return {"square": (step.features.float() - self.target).square().mean()}
"""
NETS = """
import torch
from torch import nn

@hookimpl
def compatkit_builders(register):
    register("mynets", build)

def build(model, *, in_chans=3, num_classes=10):
    network = nn.Sequential()
    network.add_module("stem", nn.Conv2d(in_chans, 4, 3, padding=1))
    network.add_module("act", nn.ReLU())
    network.add_module("pool", nn.AdaptiveAvgPool2d(1))
    network.add_module("flat", nn.Flatten())
    network.add_module("fc", nn.Linear(4, num_classes))
    network.pretrained_cfg = {"input_size": (in_chans, 16, 16), "classifier": "fc"}
    return network
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Return ``write(source, name)``; no file is named yet, and modules are forgotten after the test."""
    monkeypatch.setenv(FILES, "")
    before = set(sys.modules)

    def made(source: str, name: str = "mynet_of_tests.py", head: str = HEAD) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + dedent(source))
        return path

    yield made
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_what_a_file_registers_is_found_and_listed_under_its_name(write: Write) -> None:
    path = write(PULL + NETS)
    assert add_file(path) == ("regularizers.pull", "builders.mynets")
    offer = find("regularizers", "pull")
    assert (offer.distribution, offer.source) == (path.name, str(path))
    assert offer.version is not None and offer.version.startswith("sha256-") and len(offer.version) == 23
    assert find("regularizers", "mynet-of-tests:pull").factory is find("regularizers", "pull").factory
    assert find("regularizers", "mynet_of_tests:regularizers.pull").factory is offer.factory
    assert "pull" in names("regularizers") and "mynets" in names("builders")
    (line,) = [entry for entry in listing() if entry.distribution == path.name and entry.kind == "builders"]
    assert (line.name, line.status, line.version) == ("mynets", "active", offer.version)
    assert add_file(path) == ("regularizers.pull", "builders.mynets")  # twice is once
    assert os.environ[FILES] == str(path)
    assert not list(path.parent.rglob("*.pyc"))


def test_a_run_uses_it_and_the_manifest_says_which_content(write: Write, tmp_path: Path) -> None:
    add_file(write(PULL + NETS))
    task = ck.Task("a", data_set("a", size=(16, 16)), "any", "act", builder="mynets", size=16)
    fit = quick(steps=2).fit([task], [ck.use("pull", target=2.0)])
    assert fit.history["a/pull/square"][0] > 0
    registry = ck.Registry.init(tmp_path / "parts")
    registry.publish(fit, prefix="d")
    head = registry.store.manifest("d/a.head")
    version = find("builders", "mynets").version
    assert head.blueprint.library == f"mynet_of_tests.py {version}"
    (plugin,) = head.training["plugins"]
    assert (plugin["name"], plugin["distribution"], plugin["version"]) == (
        "regularizers.pull",
        "mynet_of_tests.py",
        version,
    )


def test_parts_load_in_another_process_and_name_their_file_where_it_is_missing(
    write: Write, tmp_path: Path
) -> None:
    path = write(NETS)
    add_file(path)
    torch.manual_seed(0)
    weights = sys.modules[path.stem].build("any", num_classes=3).state_dict()
    registry = ck.Registry.init(tmp_path / "parts")
    registry.adopt(weights, "zoo/mine", model="any", cut="act", builder="mynets")
    program = """
import compatkit as ck
try:
    print(ck.Registry.open("parts").load("zoo/mine.head").__class__.__name__)
except ck.errors.UnknownName as error:
    print(error.code, error.subject, error)
    ck.plugins.add_file("mynet_of_tests.py")
print(type(ck.Registry.open("parts").load("zoo/mine.head")).__name__)
"""

    def said(variable: str) -> str:
        environment = {**os.environ, FILES: variable, "COMPATKIT_CACHE": str(tmp_path / "cache")}
        words = [sys.executable, "-c", program]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    missing = said("")
    assert missing.startswith("unknown-name mynets ") and f"--plugin {path.name}" in missing
    assert missing.endswith("\nTracedPart\n")
    path.write_text(path.read_text() + "# another content\n")
    changed = said(str(path))
    assert changed.startswith("TracedPart\nTracedPart\n") and "LibraryWarning" in changed


def test_a_version_of_its_own_outlives_changes_of_the_file(write: Write, tmp_path: Path) -> None:
    path = write(NETS + "\nbuild.version = '1'\n")
    add_file(path)
    registry = ck.Registry.init(tmp_path / "parts")
    weights = sys.modules[path.stem].build("any", num_classes=3).state_dict()
    registry.adopt(weights, "zoo/mine", model="any", cut="act", builder="mynets")
    assert registry.store.manifest("zoo/mine.head").blueprint.library == "mynet_of_tests.py 1"
    os.environ[FILES] = ""
    del sys.modules[path.stem]
    add_file(write(NETS + "\nbuild.version = '1'  # moved\n", "elsewhere/mynet_of_tests.py"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LibraryWarning)
        registry.load("zoo/mine.head")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = (\n", "SyntaxError"),
        ("import no_such_module_at_all\n", "ModuleNotFoundError"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("raise SystemExit(0)\n", "SystemExit"),
        ("x = 1\n", "no hook"),
        ("@hookimpl\ndef compatkit_builder(register): pass\n", "compatkit_builders"),
        ("def compatkit_builders(register): pass\n", "marker"),
        ("@hookimpl\ndef compatkit_builders(register): pass\n", "registers nothing"),
        ("@hookimpl\ndef compatkit_builders(register): register('timm', print)\n", "built in"),
        ("@hookimpl\ndef compatkit_builders(register): register('My Net', print)\n", "lower-case"),
        ("@hookimpl\ndef compatkit_builders(register): register('mine', lambda: None)\n", "takes no model"),
        ("compatkit_api = 99\n" + PULL, "version 99"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_forgotten(write: Write, source: str, message: str) -> None:
    path = write(source)
    with pytest.raises(PluginError, match=message) as error:
        add_file(path)
    assert error.value.code == "plugin" and error.value.subject is not None
    assert os.environ[FILES] == "" and path.stem not in sys.modules
    path.write_text(HEAD + PULL)  # repaired
    assert add_file(path) == ("regularizers.pull",)


def test_a_file_states_the_version_of_the_hooks(write: Write) -> None:
    path = write(PULL, head="from compatkit import hookimpl\n")
    with pytest.raises(PluginError, match="compatkit_api = 1") as error:
        add_file(path)
    assert error.value.subject == str(path)


def test_a_neighbor_is_not_imported(write: Write) -> None:
    write("x = 1\n", "blocks_of_tests.py")
    with pytest.raises(PluginError, match="Other files of its folder are not importable"):
        add_file(write("import blocks_of_tests\n" + PULL))


@pytest.mark.parametrize(
    "name",
    ["my-net.py", "1net.py", "net.txt", "json.py", "timm.py", "compatkit.py", "scikit_learn.py", "a.b.py"],
)
def test_a_name_that_cannot_be_a_plugins_is_refused(write: Write, name: str) -> None:
    path = write(PULL, name)
    with pytest.raises(PluginError) as error:
        add_file(path)
    assert error.value.subject == str(path)
    assert os.environ[FILES] == ""


def test_what_is_no_file_here_is_refused(tmp_path: Path, write: Write) -> None:
    (tmp_path / "folder.py").mkdir()
    for wrong in ("missing.py", "folder.py"):
        with pytest.raises(PluginError) as error:
            add_file(tmp_path / wrong)
        assert error.value.subject == str(tmp_path / wrong)
    with pytest.raises(PluginError, match="separates"):
        add_file(write(PULL, f"a{os.pathsep}b/mynet_of_tests.py"))
    with pytest.raises(ck.errors.UsageError):
        add_file("s3://bucket/mynet.py")


def test_two_files_of_one_stem_are_refused(write: Write) -> None:
    first = write(PULL)
    add_file(first)
    for twin in ("other/mynet_of_tests.py", "mynet__of_tests.py"):
        with pytest.raises(PluginError, match="same stem"):
            add_file(write(PULL, twin))
    assert os.environ[FILES] == str(first)


def test_a_change_needs_a_new_process(write: Write) -> None:
    path = write(PULL)
    add_file(path)
    path.write_text(path.read_text() + "# more\n")
    with pytest.raises(PluginError, match="Restart Python"):
        add_file(path)


def test_compatkits_own_name_wins_and_that_is_told_once(write: Write) -> None:
    with pytest.warns(PluginWarning, match="'mynet-of-tests:dcc' this one"):
        add_file(write(PULL.replace('"pull"', '"dcc"')))
    assert find("regularizers", "dcc").distribution == "compatkit"
    assert find("regularizers", "mynet_of_tests:dcc").distribution == "mynet_of_tests.py"


def test_a_name_that_a_package_has_too_is_a_clash(
    write: Write, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("demo", {"regularizers.pull": "demo_pull"}, {"demo_pull": HEAD + PULL})
    add_file(write(PULL))
    with pytest.raises(PluginError, match="demo:pull or mynet-of-tests:pull") as error:
        find("regularizers", "pull")
    assert "COMPATKIT_DISABLE_PLUGINS=mynet-of-tests" in str(error.value)
    assert find("regularizers", "demo:pull").distribution == "demo"
    monkeypatch.setenv("COMPATKIT_DISABLE_PLUGINS", "mynet-of-tests")
    assert find("regularizers", "pull").distribution == "demo"
    monkeypatch.setenv("COMPATKIT_DISABLE_PLUGINS", "")
    monkeypatch.setenv("COMPATKIT_PLUGINS", "dcc")
    with pytest.raises(PluginError, match="blocked"):
        find("regularizers", "mynet_of_tests:pull")


def test_global_state_that_a_file_changes_is_put_back(write: Write) -> None:
    state = torch.get_rng_state()
    with pytest.warns(PluginWarning, match="random state"):
        add_file(write("import torch\ntorch.manual_seed(5)\n" + PULL))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_file_may_ask_for_plugins_while_it_is_imported(write: Write) -> None:
    add_file(write("import compatkit as ck\nKNOWN = ck.plugins.names('regularizers')\n" + PULL))
    assert "dcc" in sys.modules["mynet_of_tests"].KNOWN


def test_no_file_is_named_by_a_name(write: Write) -> None:
    path = write(PULL)
    for name in (str(path), f"{path}:pull", path.name, f"{path.name}:pull"):
        with pytest.raises(UnknownName):
            find("regularizers", name)
    assert path.stem not in sys.modules
