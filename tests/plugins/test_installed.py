"""Whose a name is: compatkit's own first, others as package:name; what pip left behind is no distribution."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from compatkit.adapters.builders import BUILDERS, create
from compatkit.data import load
from compatkit.errors import DataError, PluginError, UnknownName
from compatkit.plugins import PluginWarning, find, listing, names, use

Install = Callable[..., Path]
MINE = """
from compatkit import hookimpl

@hookimpl
def compatkit_regularizers(register):
    register("{name}", Mine)

class Mine:
    @hookimpl
    def compatkit_losses(self, step): return {{}}
"""


def plugin(install: Install, package: str, name: str = "dcc", version: str = "1.0") -> Path:
    module = f"{package.replace('-', '_')}_one"
    return install(package, {f"regularizers.{name}": module}, {module: MINE.format(name=name)}, version)


def test_a_name_of_compatkit_is_never_another_packages(install: Install):
    plugin(install, "My-Package")
    assert find("regularizers", "dcc").distribution == "compatkit"
    assert find("regularizers", "regularizers.dcc").distribution == "compatkit"
    for name in ("my-package:dcc", "my_package:dcc", "my-package:regularizers.dcc"):
        assert find("regularizers", name).distribution == "My-Package"
    assert {"dcc", "my-package:dcc"} <= set(names("regularizers")) and "compatkit:dcc" not in names(
        "regularizers"
    )
    lines = {line.name: line for line in listing(check=True) if line.kind == "regularizers"}
    assert (lines["dcc"].status, lines["dcc"].distribution) == ("active", "compatkit")
    assert (lines["my-package:dcc"].status, lines["my-package:dcc"].distribution) == ("active", "My-Package")


def test_compatkits_own_is_found_without_reading_other_packages(
    install: Install, monkeypatch: pytest.MonkeyPatch
):
    plugin(install, "demo")
    read: list[str] = []

    def reading(distribution: PathDistribution, file: str) -> str | None:
        read.append(distribution.name if file == "entry_points.txt" else "")
        return text_of(distribution, file)

    text_of = PathDistribution.read_text
    monkeypatch.setattr(PathDistribution, "read_text", reading)
    assert find("regularizers", "dcc").distribution == "compatkit"
    assert {*read} <= {"compatkit", ""}
    assert find("regularizers", "demo:dcc").distribution == "demo"
    assert "demo" in read


def test_a_run_names_the_other_one_by_its_package(install: Install):
    plugin(install, "demo")
    request = use("demo:regularizers.dcc")
    assert (request.name, request.as_) == ("demo:dcc", "dcc")
    assert use("demo:dcc", as_="theirs").as_ == "theirs"


@pytest.mark.parametrize("text", ["dcc", "regularizers.dcc"])
def test_a_plain_name_in_a_block_list_means_compatkits_own(
    install: Install, monkeypatch: pytest.MonkeyPatch, text: str
):
    plugin(install, "demo")
    monkeypatch.setenv("COMPATKIT_DISABLE_PLUGINS", text)
    with pytest.raises(PluginError, match=r"compatkit .*blocked"):
        find("regularizers", "dcc")  # the other one does not step in
    assert find("regularizers", "demo:dcc").distribution == "demo"
    monkeypatch.delenv("COMPATKIT_DISABLE_PLUGINS")
    monkeypatch.setenv("COMPATKIT_PLUGINS", text)
    assert find("regularizers", "dcc").distribution == "compatkit"
    with pytest.raises(PluginError, match=r"demo .*blocked"):
        find("regularizers", "demo:dcc")


@pytest.mark.parametrize("text", ["demo", "demo:dcc", "demo:regularizers.dcc", "x, Demo"])
def test_the_other_one_is_blocked_by_its_package(
    install: Install, monkeypatch: pytest.MonkeyPatch, text: str
):
    plugin(install, "demo")
    monkeypatch.setenv("COMPATKIT_DISABLE_PLUGINS", text)
    assert find("regularizers", "dcc").distribution == "compatkit"
    with pytest.raises(PluginError, match=r"demo .*blocked"):
        find("regularizers", "demo:dcc")


def test_two_other_packages_with_one_name_are_told_apart_by_package(install: Install):
    plugin(install, "first", "twice")
    plugin(install, "second", "twice")
    with pytest.raises(PluginError, match="first:twice or second:twice") as error:
        find("regularizers", "twice")
    assert "DISABLE_PLUGINS=compatkit" not in str(error.value)
    assert find("regularizers", "second:twice").distribution == "second"
    assert {"first:twice", "second:twice", "twice"} <= set(names("regularizers"))


@pytest.mark.parametrize("name", ["nobody:dcc", "demo:other", "compatkit:nothing"])
def test_a_package_that_brings_no_such_plugin(install: Install, name: str):
    plugin(install, "demo", "mine")
    with pytest.raises(UnknownName):
        find("regularizers", name)


@pytest.mark.parametrize(
    ("own", "name"), [("digits", "digits"), ("Fashion-MNIST", "fashion-mnist"), ("stl10", "stl-10")]
)
def test_a_data_set_of_compatkit_is_never_another_packages(
    install: Install, tmp_path: Path, own: str, name: str
):
    source = f"""
    from compatkit import hookimpl

    @hookimpl
    def compatkit_data_sets(register):
        register("{name}", lambda root=None, download=False: 3)
    """
    install("demo", {f"data_sets.{name}": "demo_data"}, {"demo_data": source})
    with suppress(DataError):  # of a name whose files are not here
        assert load(own, root=tmp_path).name == "digits"
    assert "demo_data" not in sys.modules
    with pytest.raises(DataError, match=f"'demo:{name}' must return a compatkit.data.DataSet"):
        load(f"demo:{name}")


def test_a_builder_of_compatkit_is_never_another_packages(install: Install):
    source = """
    from compatkit import hookimpl
    from torch import nn

    @hookimpl
    def compatkit_builders(register):
        register("torchvision", lambda model: nn.Sequential(nn.Flatten(), nn.Linear(3, 2)))
    """
    install("demo", {"builders.torchvision": "demo_nets"}, {"demo_nets": source})
    assert BUILDERS["torchvision"].library().startswith("torchvision ")
    assert type(create("torchvision", "resnet18", {})).__name__ == "ResNet"
    assert "demo_nets" not in sys.modules
    assert BUILDERS["demo:torchvision"].library() == "demo 1.0"
    assert type(create("demo:torchvision", "resnet18", {})).__name__ == "Sequential"


@pytest.mark.parametrize("package", ["compatkit", "demo"])
@pytest.mark.parametrize("folder", ["~{0}-0.9.dist-info", "~~{0}-0.9.dist-info"])
def test_what_pip_left_behind_is_ignored_and_named_once(install: Install, package: str, folder: str):
    site = plugin(install, "demo")
    left = site / folder.format(package[1:])
    shutil.copytree(site / "demo-1.0.dist-info", left)
    (left / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.9\n")
    (left / "entry_points.txt").write_text("[compatkit]\nregularizers.dcc = gone\nmetrics.cka = gone\n")
    with pytest.warns(PluginWarning, match="interrupted pip") as message:
        assert "dcc" in names("regularizers")
    assert len([entry for entry in message if str(left) in str(entry.message)]) == 1
    assert names("metrics")  # told once: this does not warn
    for kind, name in (("regularizers", "dcc"), ("metrics", "cka")):
        found = find(kind, name)
        assert found.distribution == "compatkit" and found.version != "0.9"
    assert not [line for line in listing() if line.version == "0.9" or line.status == "clash"]
