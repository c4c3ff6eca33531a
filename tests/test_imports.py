"""Who imports whom: the rooms of docs/explanation/architecture.md, read from the sources without running them.

The page's table is the rule itself: a room that it does not list, or an arrow that it does not allow, fails here.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

import compatkit

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDERS = {"compatkit": "compatkit", "compatkit_plugins": "plugins", "compatkit_studies": "studies"}
ONLY_IN = {
    "cryptography": ("compatkit.registry.signing.keys", "compatkit.registry.signing.private_keys"),
    "datasets": ("compatkit.data.huggingface",),
    "fsspec": (
        "compatkit.data.filesystem",
        "compatkit_plugins.remotes._filesystem",
    ),
    "huggingface_hub": ("compatkit_plugins.remotes.hf",),
    "pandas": ("compatkit.reports.tabular",),
    "pyarrow": ("compatkit.data.tables",),
    "ray": ("compatkit_plugins.launchers.ray",),
    "safetensors": ("compatkit.registry.weights.tensorfile",),
    "timm": (
        "compatkit.adapters.timm",
        "compatkit.adapters.augmentation",
        "compatkit.adapters.mixing",
        "compatkit.adapters.optimizers",
    ),
    "xarray": ("compatkit_plugins.data_sets.weatherbench",),
    "torchvision": (
        "compatkit.adapters.augmentation",
        "compatkit_plugins.data_sets.torchvision",
        "compatkit_plugins.networks.torchvision",
    ),
}
PUBLIC_MODULES = {
    "compatkit.components.bridges.rungs",
    "compatkit.errors",
    "compatkit.hooks",
    "compatkit.foundation.limits",
    "compatkit.evaluation.metrics",
    "compatkit.registry.remotes.failures",
    "compatkit.registry.remotes.objectstore",
    "compatkit.registry.remotes.packages",
    "compatkit.reports.pictures",
    "compatkit.experiments.studies",
    "compatkit.training.testing",
}
"""What plugins, and examples of the documentation, may import from besides ``compatkit`` itself."""
LIGHT = (
    "compatkit",
    "compatkit.cli",
    "compatkit.registry.store",
    "compatkit.contracts.check",
    "compatkit.reports.matrix",
    "compatkit.reports.contracts",
)
HEAVY = ("torch", "timm", "numpy", "safetensors.torch", "sklearn", "matplotlib.pyplot")
RARE = (
    *(
        "timm",
        "torchvision",
        "torch._dynamo",
        "torch._inductor",
        "torch.utils.flop_counter",
        "sklearn",
        "scipy.optimize",
    ),
    *(
        "scipy.linalg",
        "matplotlib",
        "pandas",
        "xarray",
        "requests",
        "fsspec",
        "compatkit_plugins",
        "compatkit_studies",
    ),
)
EVERYTHING = "every room above"


class Import(NamedTuple):
    """One imported name; ``when`` is ``"top"``, ``"later"`` (in a function) or ``"types"`` (never at run time)."""

    importer: str
    module: str
    name: str
    when: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.module}" + (f".{self.name}" if self.name else "")


class Row(NamedTuple):
    rooms: list[str]
    allowed: set[str]


@functools.cache
def sources() -> dict[str, ast.Module]:
    """Return the syntax tree of every module, by its name."""
    result: dict[str, ast.Module] = {}
    for package, folder in FOLDERS.items():
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            inside = path.relative_to(REPOSITORY / folder).with_suffix("").parts
            name = ".".join([package, *inside])
            result[name] = ast.parse(path.read_text(), str(path))
    return result


def imports_of(importer: str, node: ast.AST, when: str = "top") -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inner = when
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for entry in child.body:
                yield from imports_of(importer, ast.Module([entry], []), "types")
            yield from imports_of(importer, ast.Module(child.orelse, []), when)
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and when == "top":
            inner = "later"
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(importer, alias.name, "", when, child.lineno)
        elif isinstance(child, ast.ImportFrom):
            module = child.module or ""
            if child.level:
                above = importer.split(".")[: -child.level]
                module = ".".join([*above, *([module] if module else [])])
            for alias in child.names:
                whole = f"{module}.{alias.name}"
                if whole in sources() or f"{whole}.__init__" in sources():
                    yield Import(importer, whole, "", when, child.lineno)
                else:
                    yield Import(importer, module, alias.name, when, child.lineno)
        yield from imports_of(importer, child, inner)


@functools.cache
def imports() -> list[Import]:
    """Return every import of every module."""
    return [entry for name, tree in sources().items() for entry in imports_of(name, tree)]


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def room_of(module: str, rooms: set[str]) -> str | None:
    """The longest room that holds the module: ``evaluation/cells`` before ``evaluation``."""
    parts = module.removesuffix(".__init__").split(".")[1:] or ["__init__"]
    options = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((option for option in options if option in rooms), None)


def rows() -> list[Row]:
    text = (REPOSITORY / "docs" / "explanation" / "architecture.md").read_text()
    section = text.split("\n## Rooms\n", 1)[1].split("\n## ", 1)[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    result: list[Row] = []
    for first, _, last in cells:
        here = [room(entry) for entry in re.findall(r"`([^`]+)`", first)]
        above = {entry for row in result for entry in row.rooms}
        allowed = {room(entry) for entry in re.findall(r"`([^`]+)`", last)}
        result.append(Row(here, above if EVERYTHING in last else allowed))
    return result


def room(cell: str) -> str:
    return cell.removesuffix(".py").removesuffix("/")


ROWS = rows()
ROOMS = {room for row in ROWS for room in row.rooms}


def test_every_module_has_a_room_and_every_room_a_module() -> None:
    mine = [name for name in sources() if within(name, "compatkit")]
    homeless = [name for name in mine if room_of(name, ROOMS) is None]
    assert not homeless, f"no row under 'Rooms' of docs/explanation/architecture.md: {homeless}"
    empty = ROOMS - {room_of(name, ROOMS) for name in mine}
    assert not empty, f"rooms of docs/explanation/architecture.md without a module: {sorted(empty)}"


def test_the_page_lets_arrows_point_downwards_only() -> None:
    above: set[str] = set()
    for row in ROWS:
        assert row.allowed <= above, f"{row.rooms} may import {sorted(row.allowed - above)}, which come later"
        above |= set(row.rooms)


def arrows() -> Iterator[tuple[str, str, Import]]:
    for imported in imports():
        if within(imported.importer, "compatkit") and within(imported.module, "compatkit"):
            source, target = room_of(imported.importer, ROOMS), room_of(imported.module, ROOMS)
            if imported.module != "compatkit" and source and target and source != target:
                yield source, target, imported


def test_rooms_import_what_the_page_allows() -> None:
    allowed = {
        name: row.allowed | set(row.rooms) | {"errors", "foundation"} for row in ROWS for name in row.rooms
    }
    wrong = [str(value) for source, target, value in arrows() if target not in allowed[source]]
    assert not wrong, "\n".join(wrong)


def test_measuring_needs_nothing_of_training_but_the_state_of_a_task() -> None:
    names = {
        value.name for source, target, value in arrows() if (source, target) == ("measuring", "training")
    }
    assert names == {"TaskState"}


def test_the_package_itself_imports_nothing_of_its_own_at_once() -> None:
    at_once = {
        imported.module
        for imported in imports()
        if imported.importer == "compatkit.__init__" and imported.when == "top"
    }
    assert not {entry for entry in at_once if within(entry, "compatkit")}


@pytest.mark.parametrize("when", [("top",), ("top", "later", "types")])
def test_no_circle(when: tuple[str, ...]) -> None:
    """Neither at import time, nor among all that files name in functions and annotations."""
    graph: dict[str, set[str]] = {name.removesuffix(".__init__"): set() for name in sources()}
    for imported in imports():
        importer = imported.importer.removesuffix(".__init__")
        lazy = importer == "compatkit"
        if imported.when in when and imported.module in graph and imported.module != importer and not lazy:
            graph[importer].add(imported.module)
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_foreign_library_has_a_door_for_each_use(library: str) -> None:
    users = {imported.importer for imported in imports() if within(imported.module, library)}
    assert users == set(ONLY_IN[library])


def test_the_library_knows_no_plugin_and_no_study() -> None:
    for name, tree in sources().items():
        if within(name, "compatkit"):
            words = {
                str(node.value).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Constant)
            }
            names = {
                imported.module.split(".")[0] for imported in imports() if imported.importer == name
            } | words
            assert not {"compatkit_plugins", "compatkit_studies"} & names, name


def test_plugins_and_studies_use_public_names_only() -> None:
    for imported in imports():
        if within(imported.importer, "compatkit") or not within(imported.module, "compatkit"):
            continue
        if imported.module == "compatkit":
            assert not imported.name or imported.name in compatkit.__all__, str(imported)
        else:
            assert imported.module in PUBLIC_MODULES, str(imported)
            assert not imported.name.startswith("_"), str(imported)


def examples() -> Iterator[tuple[str, ast.Module]]:
    """Yield the programs of the documentation, and the package that authors of plugins copy."""
    pages = [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").glob("*.md"),
        *REPOSITORY.glob("examples/**/*.md"),
    ]
    for page in pages:
        blocks = re.findall(r"^( *)```python\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
        yield from ((page.name, ast.parse(dedent(text))) for _, text in blocks)
    for path in (
        *(REPOSITORY / "examples" / "third_party").rglob("*.py"),
        *(REPOSITORY / "examples" / "methods").rglob("*.py"),
    ):
        yield path.name, ast.parse(path.read_text())


def test_examples_use_public_names_only() -> None:
    for place, tree in examples():
        for entry in imports_of(place, tree):
            if entry.module == "compatkit":
                assert not entry.name or entry.name in compatkit.__all__, str(entry)
            elif within(entry.module, "compatkit"):
                public = (
                    entry.module in PUBLIC_MODULES
                    or entry.module.removeprefix("compatkit.") in compatkit.__all__
                )
                assert public and not entry.name.startswith("_"), str(entry)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("ck", "compatkit"):
                assert node.attr in compatkit.__all__, f"{place}: {ast.unparse(node)} is no public name"


def test_attributes_of_the_package_are_public_names() -> None:
    for name, tree in sources().items():
        called = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == "compatkit"
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                known = node.value.id not in called or node.attr in compatkit.__all__
                assert known, f"{name}:{node.lineno}: compatkit.{node.attr} is no public name"


def test_plugins_do_not_import_each_other() -> None:
    """What two share lies in a file that is no plugin: one that begins with _, or one inside a plugin's own folder."""
    points = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"][
        "compatkit"
    ]
    for imported in imports():
        if within(imported.importer, "compatkit_plugins") and within(imported.module, "compatkit_plugins"):
            own = imported.importer.split(".")[:3] == imported.module.split(".")[:3]
            assert own or imported.module not in points.values(), (
                f"{imported}: share through a file that is no plugin itself"
            )


def imports_in(folder: str) -> Iterator[Import]:
    packages = [package for package, value in FOLDERS.items() if value == folder]
    if packages:
        yield from (imported for imported in imports() if within(imported.importer, packages[0]))
        return
    for path in (REPOSITORY / folder).rglob("*.py"):
        yield from imports_of(str(path), ast.parse(path.read_text()))


@pytest.mark.parametrize("folder", ["compatkit", "plugins", "studies", "tests", "examples", "benchmarks"])
def test_nobody_imports_a_bare_folder_name(folder: str) -> None:
    for entry in imports_in(folder):
        bare = entry.module.split(".")[0] in ("plugins", "studies", "tests")
        assert not bare, f"{entry}: that is only the name of a folder"


CODE_FROM_DATA = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "runpy",
}
CALLS = {"eval", "exec", "compile", "__import__"}
LOADERS = {"torch.load", "torch.save", "torch.jit.load", "torch.package", "torch.hub", "torch.export.load"}
CHILD = "compatkit.components.checkpoints.unpickle_subprocess"
"""Unpickles tensors, and nothing else, in a process of its own; nobody imports it."""


def test_no_file_content_chooses_code() -> None:
    for imported in imports():
        assert imported.module.split(".")[0] not in CODE_FROM_DATA, str(imported)
        assert f"{imported.module}.{imported.name}" not in LOADERS, str(imported)
    for name, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and (name, ast.unparse(node)) != (CHILD, "torch.load"):
                assert ast.unparse(node) not in LOADERS, f"{name}:{node.lineno}: {ast.unparse(node)}"
            if not isinstance(node, ast.Call):
                continue
            written = ast.unparse(node.func)
            assert written not in CALLS, f"{name}:{node.lineno}: {written}"
            settings = {
                keyword_argument.arg: ast.unparse(keyword_argument.value)
                for keyword_argument in node.keywords
            }
            numpy_load = written in ("np.load", "numpy.load")
            assert settings.get("allow_pickle", "missing" if numpy_load else "False") == "False", (
                f"{name}:{node.lineno}: say allow_pickle=False"
            )


def test_the_one_place_that_unpickles_reads_tensors_only_and_is_imported_by_nobody() -> None:
    assert not [str(imported) for imported in imports() if imported.module == CHILD]
    calls = [node for node in ast.walk(sources()[CHILD]) if isinstance(node, ast.Call)]
    loads = [node for node in calls if ast.unparse(node.func) == "torch.load"]
    names = sum(
        ast.unparse(node) == "torch.load"
        for node in ast.walk(sources()[CHILD])
        if isinstance(node, ast.Attribute)
    )
    assert len(loads) == names == 1, "torch.load is called once, and not passed on"
    settings = {
        keyword_argument.arg: ast.unparse(keyword_argument.value) for keyword_argument in loads[0].keywords
    }
    assert settings == {"map_location": "'cpu'", "weights_only": "True"}


def test_no_validation_that_optimized_python_leaves_out() -> None:
    result = [
        f"{n}:{node.lineno}" for n, tree in sources().items() for node in ast.walk(tree) if is_assert(node)
    ]
    assert not result, f"raise an error of compatkit.errors instead of assert: {result}"


def is_assert(node: ast.AST) -> bool:
    return isinstance(node, ast.Assert)


def test_no_error_disappears() -> None:
    """Nothing is caught bare or only to be dropped; a broad clause passes the error on or says why not."""
    for package, folder in FOLDERS.items():
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            lines = path.read_text().splitlines()
            for node in ast.walk(ast.parse("\n".join(lines))):
                place = f"{package}: {path.name}:{getattr(node, 'lineno', 0)}"
                if isinstance(node, ast.ExceptHandler):
                    assert node.type is not None, f"{place}: a bare except"
                    assert not all(nothing(entry) for entry in node.body), f"{place}: the error is swallowed"
                    broad = ast.unparse(node.type) in ("Exception", "BaseException")
                    uses = {
                        ast.unparse(entry)
                        for entry in ast.walk(node)
                        if isinstance(entry, ast.Name | ast.Raise)
                    }
                    saved = any(use.startswith("raise") for use in uses) or node.name in uses
                    assert not broad or saved or "#" in lines[node.lineno - 1], f"{place}: a broad except"
                if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "suppress":
                    broad = {ast.unparse(arg) for arg in node.args} & {"Exception", "BaseException"}
                    assert not broad, f"{place}: suppresses everything"


def nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def python(script: str, **variables: str) -> str:
    command = [sys.executable, "-W", "error", "-c", script]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_loaded(names: Iterable[str], load: str, unwanted: Iterable[str]) -> None:
    """Load names one by one in a new process, and check that none of the unwanted modules comes with them."""
    script = (
        "import compatkit, importlib, json, sys\n"
        f"for name in {[*names]!r}:\n"
        f"    {load}\n"
        f"    print(json.dumps([name, [module for module in {[*unwanted]!r} if module in sys.modules]]))"
    )
    lines = python(script).splitlines()
    assert lines
    for line in lines:
        name, loaded = json.loads(line)
        assert not loaded, f"{name} loads {', '.join(loaded)}"


def test_what_every_command_needs_is_light() -> None:
    check_loaded(LIGHT, "importlib.import_module(name)", HEAVY)


def test_public_names_import_no_library_that_few_need() -> None:
    """What trains, loads and measures costs what torch costs, until a network or a metric needs more."""
    names = [name for name in compatkit.__all__ if name not in ("testing", "studies")]
    check_loaded(names, "getattr(compatkit, name)", RARE)


def test_the_library_works_without_any_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from small import data_set, quick

    from compatkit.plugins import listing

    loaded = [name for name in sys.modules if within(name, "compatkit_plugins")]
    for name in (*loaded, "compatkit_plugins"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    monkeypatch.setenv("COMPATKIT_PLUGINS", "")
    assert {line.status for line in listing()} == {"blocked"}
    task = compatkit.Task("noise", data_set("noise"), "test_resnet", "layer2", size=(32, 32))
    fit = quick(steps=1).fit([task])
    parts = compatkit.Registry.init(tmp_path / "registry").publish(fit, prefix="parts")
    assert sorted(parts) == ["noise.extractor", "noise.head"]
