"""A new package of plugins: what is written, what is refused, and that it works where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import compatkit as ck
from compatkit.cli import main
from compatkit.errors import EnvironmentFailure, UsageError
from compatkit.plugins.scaffold import new_package

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q")
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation")


def test_every_name_is_in_its_place(tmp_path: Path) -> None:
    files = new_package("lab-methods", tmp_path / "lab", regularizer="cross_norm", metric="sureness")
    assert {file.relative_to(tmp_path / "lab").as_posix() for file in files} >= {
        "pyproject.toml",
        "README.md",
        ".github/workflows/test.yml",
        "src/lab_methods/cross_norm.py",
        "src/lab_methods/sureness.py",
        "tests/test_cross_norm.py",
        "docs/sureness.md",
    }
    assert sorted(files) == sorted(path for path in (tmp_path / "lab").rglob("*") if path.is_file())
    project = tomllib.loads((tmp_path / "lab" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "lab-methods"
    assert project["project"]["entry-points"]["compatkit"] == {
        "regularizers.cross_norm": "lab_methods.cross_norm",
        "metrics.sureness": "lab_methods.sureness",
    }
    text = (tmp_path / "lab" / "src" / "lab_methods" / "cross_norm.py").read_text()
    assert "class CrossNorm:" in text and 'register("cross_norm", CrossNorm)' in text
    for file in files:
        assert "{{" not in file.read_text().replace("${{ matrix.python }}", ""), file
        if file.suffix == ".py":
            compile(file.read_text(), str(file), "exec")
    assert [path.name for path in tmp_path.iterdir()] == ["lab"]


@pytest.mark.parametrize(
    ("name", "settings", "subject"),
    [
        ("Lab", {}, "Lab"),
        ("../lab", {}, "../lab"),
        ("lab--x", {}, "lab--x"),
        ("lab-", {}, "lab-"),
        ("json", {}, "json"),
        ("compatkit-lab", {}, "compatkit-lab"),
        ("class", {}, "class"),
        ("", {}, ""),
        ("lab\n", {}, "lab\n"),
        ("x" * 80, {}, "x" * 80),
        ("lab", {"regularizer": "Norm"}, "Norm"),
        ("lab", {"regularizer": "a/b"}, "a/b"),
        ("lab", {"metric": "lambda"}, "lambda"),
        ("lab", {"metric": "a__b"}, "a__b"),
        ("lab", {"metric": "feature_norm"}, "feature_norm"),
    ],
)
def test_names_that_cannot_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, settings: dict[str, str], subject: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        new_package(name, **settings)
    assert caught.value.subject == subject and list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_or_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab").mkdir()
    with pytest.raises(UsageError) as caught:
        new_package("lab", tmp_path / "lab")
    assert caught.value.subject == str(tmp_path / "lab")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError):
        new_package("lab", tmp_path / "link")
    written = 0

    def fail(self: Path, *arguments: Any, **options: Any) -> int:
        nonlocal written
        written += 1
        if written == 5:
            raise OSError(28, "No space left on device")
        return len(arguments)

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(EnvironmentFailure) as failure:
        new_package("other", tmp_path / "other")
    assert failure.value.subject == tmp_path / "other"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lab", "link"]


def test_the_command_writes_it_and_says_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["plugins", "new", "lab-methods"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "cd lab-methods && pip install -e '.[dev]' && pytest" in text
    with pytest.raises(SystemExit) as end:
        main(["plugins", "new", "lab-methods", "--json"])
    assert end.value.code == 2
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["plugins", "new", "lab", "--out", "x", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["folder"] == "x" and all((tmp_path / file).is_file() for file in document["files"])


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=280, check=False
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new package, and its wheel installed in the folder ``site`` beside its sources."""
    folder = tmp_path_factory.mktemp("package") / "lab-methods"
    new_package("lab-methods", folder)
    assert run(*PIP, "wheel", *OFFLINE, "--wheel-dir", str(folder / "dist"), str(folder)).returncode == 0
    (wheel,) = (folder / "dist").iterdir()
    assert run(*PIP, "install", *OFFLINE, "--target", str(folder / "site"), str(wheel)).returncode == 0
    return folder


def test_it_passes_its_own_tests(package: Path) -> None:
    arguments = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(package),
        str(package / "tests"),
    )
    done = run(sys.executable, *arguments, PYTHONPATH=str(package / "site"), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout
    assert (
        run(
            sys.executable, "-m", "ruff", "check", "--no-cache", str(package / "src"), str(package / "tests")
        ).returncode
        == 0
    )


TRAIN = """
import compatkit as ck, numpy as np
from compatkit.training.testing import small_tasks
fit = ck.Trainer(steps=2, batch_size=4, progress=False).fit(small_tasks(), ["feature_norm"])
print(fit.run["plugins"][0]["distribution"], sorted(fit.history.names)[0])
"""


@pytest.fixture
def broken(package: Path) -> Iterator[Path]:
    """The installed module of the regularizer, restored afterwards."""
    module = package / "site" / "lab_methods" / "feature_norm.py"
    text = module.read_text()
    yield module
    module.write_text(text)


def test_it_is_discovered_trained_with_blocked_and_broken(package: Path, broken: Path) -> None:
    path = {"PYTHONPATH": str(package / "site"), "OMP_NUM_THREADS": "1"}
    command = (sys.executable, "-m", "compatkit", "plugins", "list", "feature_norm", "--json")
    (listed,) = json.loads(run(*command, **path).stdout)
    assert (listed["status"], listed["distribution"]) == ("active", "lab-methods")
    done = run(sys.executable, "-c", TRAIN, **path)
    assert done.stdout.startswith("lab-methods "), done.stderr

    done = run(sys.executable, "-c", TRAIN, COMPATKIT_DISABLE_PLUGINS="lab-methods", **path)
    assert (
        done.returncode == 1 and "PluginError" in done.stderr and "COMPATKIT_DISABLE_PLUGINS" in done.stderr
    )

    broken.write_text(broken.read_text().replace("compatkit_losses", "compatkit_loses"))
    done = run(sys.executable, "-c", TRAIN, **path)
    assert done.returncode == 1 and "'compatkit_loses'" in done.stderr and "compatkit_losses" in done.stderr
    other = TRAIN.replace('["feature_norm"]', '["identical_init"]')
    assert run(sys.executable, "-c", other, **path).stdout.startswith("compatkit ")


def test_the_fixtures_give_small_tasks_a_trainer_and_a_registry(
    compatkit_tasks: list[ck.Task], compatkit_trainer: Any, compatkit_registry: ck.Registry
) -> None:
    fit = compatkit_trainer(steps=1).fit(compatkit_tasks)
    parts = compatkit_registry.publish(fit, prefix="tried")
    assert len(parts) == 4 and len(compatkit_registry.search()) == 4
