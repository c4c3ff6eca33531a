"""What is installed: pyproject.toml agrees with the folders, and the wheel holds that and nothing else."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
FOLDERS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
POINTS: dict[str, str] = PROJECT["project"]["entry-points"]["compatkit"]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def installed_name(path: Path) -> str:
    """``plugins/metrics/accuracy.py`` is imported as ``compatkit_plugins.metrics.accuracy``."""
    top, *inside = path.relative_to(REPOSITORY).with_suffix("").parts
    package = next(name for name, folder in FOLDERS.items() if folder == top)
    return ".".join([package, *inside])


def test_every_package_folder_is_listed_and_nothing_else() -> None:
    result = {
        installed_name(path.parent)
        for folder in FOLDERS.values()
        for path in (REPOSITORY / folder).rglob("__init__.py")
    }
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert sorted(result) == sorted(listed), "[tool.setuptools] packages in pyproject.toml"


def test_no_source_file_lies_outside_a_package() -> None:
    for folder in FOLDERS.values():
        for path in (REPOSITORY / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py"


def test_every_plugin_file_has_an_entry_point_and_the_other_way_round() -> None:
    """A plugin is a file or folder named after it in the folder of its kind.

    A file may hold several data sets, schemes of remotes or rungs; our own networks have one builder, torchvision's
    another.
    """
    files = {
        f"{path.parent.name}.{path.stem}": installed_name(path)
        for path in (REPOSITORY / "plugins").glob("*/*")
        if path.parent.name != "networks"
        and not path.name.startswith("_")
        and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    plugins = {key: value for key, value in POINTS.items() if not key.startswith("studies.")}
    files["builders.compatkit"] = "compatkit_plugins.networks"
    files["builders.torchvision"] = "compatkit_plugins.networks.torchvision"
    assert set(files.values()) == set(plugins.values()), "[project.entry-points.compatkit] in pyproject.toml"
    for key, module in plugins.items():
        kind = key.partition(".")[0]
        assert files.get(key) == module or (
            kind in ("data_sets", "remotes", "rungs") and module.split(".")[1] == kind
        ), key


def test_every_study_file_has_an_entry_point_by_its_number_and_the_other_way_round() -> None:
    files = {
        installed_name(path)
        for path in (REPOSITORY / "studies").rglob("*.py")
        if not path.name.startswith("_")
    }
    assert files == {value for key, value in POINTS.items() if key.startswith("studies.")}


def test_the_installation_knows_the_entry_points() -> None:
    from compatkit.plugins.installed import installed

    mine = {entry.name: entry.value for entry in installed() if entry.dist and entry.dist.name == "compatkit"}
    assert mine == POINTS, "entry points are written at installation: run `pip install -e .` again"


IMPORTED_AS = {"mlflow-skinny": "mlflow", "pillow": "PIL", "scikit-learn": "sklearn"}
REACHED_BY_NAME = {"s3fs": "fsspec imports it for s3://"}


def declared(lines: list[str]) -> set[str]:
    """Return what requirements are imported as."""
    names = {re.split("[^A-Za-z0-9_-]", line)[0] for line in lines}
    return {IMPORTED_AS.get(name, name) for name in names}


def imported() -> dict[str, set[str]]:
    """Return every distribution's module that is imported anywhere, also inside functions, and by which files."""
    result: dict[str, set[str]] = {}
    for folder in FOLDERS.values():
        for path in (REPOSITORY / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names = [node.module]
                for top in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {*FOLDERS}:
                    result.setdefault(top, set()).add(str(path.relative_to(REPOSITORY)))
    result.pop("annotationlib", None)  # of the standard library, from 3.14
    return result


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    always = declared(PROJECT["project"]["dependencies"])
    by_extra = {
        "cryptography": "signing",
        "datasets": "datasets",
        "fsspec": "remotes",
        "huggingface_hub": "remotes",
        "lpips": "lpips",
        "mlflow": "mlflow",
        "paramiko": "sftp",
        "requests": "remotes",
        "urllib3": "remotes",
        "pandas": "pandas",
        "pyarrow": "datasets",
        "ray": "ray",
        "xarray": "weather",
    }
    for module, files in imported().items():
        if module in by_extra:
            assert module in declared(extras[by_extra[module]]) and module not in always, module
        else:
            assert module in always, f"{module} is imported by {sorted(files)[:3]}: declare it"
    assert always - imported().keys() == set()
    assert (
        declared([*extras["signing"], *extras["remotes"], *extras["lpips"], *extras["ray"]])
        - imported().keys()
        == REACHED_BY_NAME.keys()
    )


def test_library_plugins_and_studies_are_typed() -> None:
    for folder in FOLDERS.values():
        assert (REPOSITORY / folder / "py.typed").read_bytes() == b"", f"{folder}/py.typed"


def call(*command: str, folder: Path, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network from a copy that also holds what must not be packed."""
    pytest.importorskip("setuptools", reason="building a wheel without a network needs setuptools here")
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    for name in (*FOLDERS.values(), "tests", "examples"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    call(
        *PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", ".", "./source", folder=folder
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def content(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_three_packages_and_nothing_else(content: set[str]) -> None:
    information = f"compatkit-{PROJECT['project']['version']}.dist-info"
    assert {name.split("/")[0] for name in content} == {*FOLDERS, information}


def test_the_wheel_holds_every_source_file_template_and_marker(content: set[str]) -> None:
    wanted = {
        f"{package}/{path.relative_to(REPOSITORY / folder).as_posix()}"
        for package, folder in FOLDERS.items()
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    packed = {name for name in content if ".dist-info/" not in name}
    assert packed == wanted
    assert any(name.endswith(".html.j2") for name in packed)


def test_the_wheel_holds_the_license(wheel: Path, content: set[str]) -> None:
    (license,) = [name for name in content if name.endswith(".dist-info/licenses/LICENSE")]
    metadata = license.replace("licenses/LICENSE", "METADATA")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(license) == (REPOSITORY / "LICENSE").read_bytes()
        assert "\nLicense-Expression: Apache-2.0\n" in archive.read(metadata).decode()


def test_the_installed_wheel_runs_elsewhere(wheel: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    call(*PIP, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel), folder=elsewhere)

    def run(*arguments: str) -> str:
        script = str(site / "bin" / "compatkit")
        return call(sys.executable, "-P", script, *arguments, folder=elsewhere, PYTHONPATH=str(site))

    assert re.search(rf"\b{re.escape(PROJECT['project']['version'])}\b", run("--version"))
    lines = json.loads(run("plugins", "--check", "--json"))
    listed = lines["plugins"] if isinstance(lines, dict) else lines
    mine = {
        f"{entry['kind']}.{entry['name']}": entry for entry in listed if entry["distribution"] == "compatkit"
    }
    mine = {name: value for name, value in mine.items() if value["source"]}  # the others are built in
    assert mine.keys() == POINTS.keys()
    for entry in mine.values():
        assert entry["status"] == "active", entry
        assert Path(entry["source"]).is_relative_to(site), f"{entry['source']} is not what was installed"
